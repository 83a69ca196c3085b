package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/jobfile"
)

// document is a parsed documentation page.
type document struct {
	path   string // relative to the repository root
	blocks []string
	spans  []string // inline code
	text   string   // without code
}

var (
	fence    = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$")
	indented = regexp.MustCompile(`(?m)(?:^\n)((?:    .*\n)(?:(?:    .*)?\n)*)`)
	comment  = regexp.MustCompile(`  +\S.*| # .*`)
	span     = regexp.MustCompile("(?s)`([^`]+)`")
	foreign  = regexp.MustCompile(`(?m)^\| (?:syncoid|syncoid's option) \|.*\n(?:\|.*\n)+`) // the first column contains another tool's options
	firstRow = regexp.MustCompile(`(?m)^\|(?:[^|` + "`]|`[^`]*`" + `)*\|`)
)

// readPages reads the pages of the documentation.
func readPages(t *testing.T) (pages []*document) {
	root := filepath.Join("..", "..")
	add := func(path string) {
		raw, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		p, text := &document{path: path}, string(raw)
		cut := func(re *regexp.Regexp, into *[]string) {
			for _, m := range re.FindAllStringSubmatch(text, -1) {
				*into = append(*into, m[1])
			}
			text = re.ReplaceAllString(text, "\n")
		}
		cut(fence, &p.blocks)
		cut(indented, &p.blocks)
		text = foreign.ReplaceAllStringFunc(text, func(table string) string { return firstRow.ReplaceAllString(table, "|") })
		cut(span, &p.spans)
		p.text = text
		pages = append(pages, p)
	}
	add("README.md")
	add("CONTRIBUTING.md")
	add("SECURITY.md")
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			rel, _ := filepath.Rel(root, path) // cannot fail: both paths start with root
			add(rel)
		}
		return err
	}))
	return pages
}

// commandsOf returns the zxfer command lines in a block. The block may contain prompts,
// output, comments and pipelines.
func commandsOf(block string) (commands [][]string) {
	block = regexp.MustCompile(`\\\n *`).ReplaceAllString(block, "")
	for l := range strings.Lines(block) {
		l = comment.ReplaceAllString(strings.TrimPrefix(strings.TrimSpace(l), "$ "), "")
		words, err := shellquote.Split(l)
		if err != nil || !slices.Contains(words, "zxfer") {
			continue
		}
		for len(words) > 0 {
			end := slices.IndexFunc(words, func(w string) bool { return w == "|" || w == "&&" || w == ";" || strings.HasPrefix(w, ">") })
			if end < 0 {
				end = len(words)
			}
			if words[0] == "sudo" {
				words, end = words[1:], end-1
			}
			usage := slices.ContainsFunc(words[:end], func(w string) bool { return w == "[FLAGS]" || strings.ContainsAny(w, "|→─…") })
			if words[0] == "zxfer" && !usage {
				commands = append(commands, words[1:end])
			}
			words = words[min(end+1, len(words)):]
		}
	}
	return commands
}

// TestDocsCommandsParse expects zxfer to accept every command line in the
// documentation's blocks.
func TestDocsCommandsParse(t *testing.T) {
	t.Parallel()
	n := 0
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			for _, words := range commandsOf(b) {
				n++
				require.NoError(t, parseCommand(words), "%s: zxfer %s", p.path, strings.Join(words, " "))
			}
		}
	}
	require.Greater(t, n, 60)
	require.Error(t, parseCommand([]string{"send", "--no-such-flag", "tank/a", "b:c"}))
	require.Error(t, parseCommand([]string{"send", "tank/a"}))
	require.Error(t, parseCommand([]string{"replicate", "sned"}))
	require.Equal(t, [][]string{{"doctor", "a b"}, {"dev", "-", "b:/f"}},
		commandsOf("$ sudo zxfer doctor 'a b'  # why\noutput\npg_dump db | zxfer dev - \\\n  b:/f\n"))
}

func parseCommand(words []string) error {
	cmd, rest, err := newRoot(&app{}).Find(words)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// TestDocsFlagsExist expects every flag and verb in the text to exist.
func TestDocsFlagsExist(t *testing.T) {
	t.Parallel()
	root := newRoot(&app{})
	long, short := map[string]bool{"help": true}, map[string]bool{"h": true}
	var collect func(cmd *cobra.Command)
	collect = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { long[f.Name], short[f.Shorthand] = true, true })
		for _, c := range cmd.Commands() {
			collect(c)
		}
	}
	collect(root)
	// These pages describe other programs or are generated.
	other := []string{"CONTRIBUTING.md", "docs/dev/guest.md", "docs/dev/style.md",
		"docs/reference/protocol-control.md", "docs/reference/protocol-data.md"}
	for _, p := range readPages(t) {
		if slices.Contains(other, p.path) || strings.HasPrefix(p.path, "docs/benchmarks") || strings.HasPrefix(p.path, "docs/reference/cli/") {
			continue
		}
		for _, s := range p.spans {
			words, err := shellquote.Split(s)
			if err != nil || len(words) == 0 {
				continue
			}
			of := words[0] == "zxfer"
			if of && len(words) > 1 && !strings.HasPrefix(words[1], "-") && words[1] != "…" {
				cmd, rest, err := root.Find(words[1:])
				require.NoError(t, err, "%s: `%s`", p.path, s)
				require.NotEqual(t, root, cmd, "%s: `%s` %q", p.path, s, rest)
			}
			if !of && !strings.HasPrefix(words[0], "-") {
				continue // another program
			}
			for _, w := range words {
				if name, ok := strings.CutPrefix(w, "--"); ok {
					name, _, _ = strings.Cut(name, "=")
					require.True(t, long[name], "%s: `%s`: there is no flag --%s", p.path, s, name)
				} else if name, ok := strings.CutPrefix(w, "-"); ok && len(name) == 1 {
					require.True(t, short[name], "%s: `%s`: there is no flag -%s", p.path, s, name)
				}
			}
		}
	}
}

// TestDocsLinksResolve expects every relative link to lead to a file of the
// repository, and its anchor to a heading.
func TestDocsLinksResolve(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	paths := []string{"CHANGELOG.md"}
	for _, p := range readPages(t) {
		paths = append(paths, p.path)
	}
	headings := map[string][]string{}
	for _, path := range paths {
		headings[path] = anchors(t, path)
	}
	n := 0
	var broken []string
	for _, path := range paths {
		raw, err := os.ReadFile(filepath.Join("..", "..", path))
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(string(raw), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			n++
			file, anchor, anchored := strings.Cut(m[1], "#")
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), file)
			}
			switch info, err := os.Stat(filepath.Join("..", "..", to)); {
			case strings.HasPrefix(to, "..") || err != nil || !info.Mode().IsRegular():
				broken = append(broken, path+": no such file: "+m[1])
			case anchored && !slices.Contains(headings[to], anchor):
				broken = append(broken, path+": no such heading: "+m[1])
			}
		}
	}
	require.Greater(t, n, 100)
	require.Empty(t, broken, strings.Join(broken, "\n"))
}

// anchors returns the anchors of a page's headings as GitHub forms them. Repeated headings get
// a number.
func anchors(t *testing.T, path string) (all []string) {
	raw, err := os.ReadFile(filepath.Join("..", "..", path))
	require.NoError(t, err)
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	count := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(fence.ReplaceAllString(string(raw), ""), -1) {
		anchor := strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		if count[anchor]++; count[anchor] > 1 {
			anchor += fmt.Sprintf("-%d", count[anchor]-1)
		}
		all = append(all, anchor)
	}
	return all
}

// TestDocsListJSONSchemas expects docs/reference/output.md to list exactly the JSON
// schemas in the code.
func TestDocsListJSONSchemas(t *testing.T) {
	t.Parallel()
	schema := regexp.MustCompile(`zxfer(?:\.[a-z]+)+/v[0-9]+`)
	of := func(text string) []string {
		all := schema.FindAllString(text, -1)
		slices.Sort(all)
		return slices.Compact(all)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "output.md"))
	require.NoError(t, err)
	require.Equal(t, of(sourceCode(t)), of(string(page)))
}

// TestDocsJobFilesParse expects zxfer to read every job file in the documentation.
func TestDocsJobFilesParse(t *testing.T) {
	t.Parallel()
	n := 0
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			if strings.Contains(b, "[[job]]") {
				n++
				inv, err := jobfile.Read("", []byte(b))
				require.NoError(t, err, "%s:\n%s", p.path, b)
				for _, part := range inv.Parts() {
					require.NoError(t, part.Err, "%s:\n%s", p.path, b)
				}
				if len(inv.Names()) == 0 {
					_, err = inv.For("web1")
					require.NoError(t, err, "%s:\n%s", p.path, b)
				}
			}
		}
	}
	require.Greater(t, n, 1)
}

// TestDocsShortStreamsHaveNoBottleneck expects no bottleneck in examples of
// short streams. zxfer reports none for them.
func TestDocsShortStreamsHaveNoBottleneck(t *testing.T) {
	t.Parallel()
	short := regexp.MustCompile(`(?m)^.* \d+(?:\.\d+)? (?:B|KiB) in [01](?:\.\d+)? s .*limited by.*$`)
	for _, p := range readPages(t) {
		for _, b := range p.blocks {
			require.Empty(t, short.FindString(b), p.path)
		}
	}
	require.Regexp(t, short, "tank/a@b: done, 47 KiB in 1.0 s (46 KiB/s), wire tls, limited by source\n")
}

// TestDocsTroubleshootingMessagesExist expects the code to contain every message that
// docs/howto/troubleshoot.md explains. It compares the parts between the placeholders ("…").
func TestDocsTroubleshootingMessagesExist(t *testing.T) {
	t.Parallel()
	all := regexp.MustCompile(`\{\{([a-z-]+)`).ReplaceAllString(sourceCode(t), "--$1")
	all = strings.NewReplacer("}}", "", `\"`, `"`).Replace(all)
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "howto", "troubleshoot.md"))
	require.NoError(t, err)
	messages := regexp.MustCompile("(?m)^### `(.*)`$").FindAllStringSubmatch(string(raw), -1)
	require.Greater(t, len(messages), 15)
	for _, m := range messages {
		for part := range strings.SplitSeq(m[1], "…") {
			if part = strings.TrimSpace(part); len(part) > 2 {
				require.True(t, strings.Contains(all, part), "no message contains %q of heading %q", part, m[1])
			}
		}
	}
}

// sourceCode returns the text of all Go files except tests.
func sourceCode(t *testing.T) string {
	var code strings.Builder
	for _, dir := range []string{filepath.Join("..", "..", "pkg"), "."} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			source := strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".sh")
			if err != nil || !source {
				return err
			}
			text, err := os.ReadFile(path)
			code.Write(text)
			return err
		}))
	}
	return code.String()
}
