package scripts_test

import (
	"encoding/json"
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// sitePage holds the contents that a browser found in an HTML page.
type sitePage struct {
	URL    string
	Anchor []string // IDs of elements
	Links  []string
	Loads  []string // URLs of images, styles, scripts and other resources
	Broken []string // images that did not load
}

// inspect is a script for a page that contains other pages in frames. It waits until all of
// them have loaded.
const inspect = `<script>addEventListener('load', () => {
const out = document.createElement('output')
out.textContent = JSON.stringify([...document.querySelectorAll('iframe')].map(frame => {
  const page = frame.contentDocument, all = selector => [...page.querySelectorAll(selector)]
  return {
    URL: page.URL,
    Anchor: all('[id]').map(e => e.id),
    Links: all('a[href]').map(e => e.href),
    Loads: [...all('[src]').map(e => e.src), ...all('link[href]').map(e => e.href),
      ...frame.contentWindow.performance.getEntriesByType('resource').map(e => e.name)],
    Broken: all('img').filter(e => !e.naturalWidth).map(e => e.src),
  }
}))
document.body.append(out)
})</script>`

// TestSite opens each HTML page of the documentation from its file. All links must lead
// somewhere, and no page may load anything from a network. A page with one mistake of each
// kind shows that the test finds them.
func TestSite(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not at the quick level: starts a browser")
	}
	if _, err := exec.LookPath("hugo"); err != nil {
		t.Skip("needs hugo")
	}
	dir := t.TempDir()
	mustRun(t, "..", "scripts/site", dir)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("wrong.html", `<a href="missing.html"></a> <a href="index.html#missing"></a> <a href="/etc/passwd"></a>
		<a href="https://example.org/"></a> <img src="missing.png"> <img src="http://127.0.0.1:1/a.png">`)
	frames := "<!DOCTYPE html><body>"
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".html") {
			frames += fmt.Sprintf("<iframe src=%q></iframe>\n", path)
		}
		return err
	}))
	require.Greater(t, strings.Count(frames, "<iframe"), 40)
	write("frames.html", frames+inspect)
	dom, console := testenv.Browse(t, dir+"/frames.html", "--allow-file-access-from-files")
	found := regexp.MustCompile(`(?s)<output>(.*)</output>`).FindStringSubmatch(dom)
	require.NotNil(t, found, "%s", console)
	var pages []sitePage
	require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(found[1])), &pages))
	base := "file://" + dir + "/"
	require.ElementsMatch(t, []string{
		"wrong.html: link to " + base + "missing.html",
		"wrong.html: link to " + base + "index.html#missing",
		"wrong.html: link to file:///etc/passwd",
		"wrong.html: image " + base + "missing.png",
		"wrong.html: image http://127.0.0.1:1/a.png",
		"wrong.html: loads http://127.0.0.1:1/a.png",
	}, pageErrors(base, pages))
}

// pageErrors returns the broken links, broken images and loads from outside base.
func pageErrors(base string, pages []sitePage) (all []string) {
	anchors := map[string][]string{}
	for _, p := range pages {
		anchors[p.URL] = p.Anchor
	}
	for _, p := range pages {
		add := func(what, url string) {
			if m := strings.TrimPrefix(p.URL, base) + ": " + what + " " + url; !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
		for _, l := range p.Links {
			if !strings.HasPrefix(l, "https://") && !resolves(base, l, anchors) {
				add("link to", l)
			}
		}
		for _, l := range p.Loads {
			if !strings.HasPrefix(l, base) {
				add("loads", l)
			}
		}
		for _, l := range p.Broken {
			add("image", l)
		}
	}
	return all
}

// resolves reports whether a link leads to a file below base and to an existing anchor of that
// file.
func resolves(base, link string, anchors map[string][]string) bool {
	u, err := url.Parse(link)
	if err != nil || !strings.HasPrefix(link, base) {
		return false
	}
	if _, err := os.Stat(u.Path); err != nil {
		return false
	}
	fragment := u.Fragment
	u.Fragment = ""
	return fragment == "" || slices.Contains(anchors[u.String()], fragment)
}
