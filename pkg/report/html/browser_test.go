package html

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/report/history"
	"zxfer/pkg/testenv"
)

// measure is a script that measures a loaded page. The page's policy forbids scripts, so the test
// removes it from a copy.
const measure = `<script>addEventListener('load', () => {
const root = document.documentElement, out = document.createElement('output')
out.id = 'measured'
const curve = document.querySelector('path.outline'), matrix = curve?.getScreenCTM()
const drawn = moment => { // the height of the curve where a pointer finds the moment
  const box = moment.getBoundingClientRect(), x = (box.left + box.width / 2 - matrix.e) / matrix.a
  let from = 0, to = curve.getTotalLength()
  while (to - from > 0.01) {
    const half = (from + to) / 2
    if (curve.getPointAtLength(half).x < x) from = half; else to = half
  }
  return Math.round(1000 - curve.getPointAtLength(to).y)
}
const wide = [...document.querySelectorAll('main *')].filter(e => !e.closest('svg') && e.getBoundingClientRect().right > root.clientWidth + 1)
out.textContent = [root.scrollWidth - root.clientWidth, wide.length, performance.getEntriesByType('resource').length,
  getComputedStyle(document.body).backgroundColor, [...document.querySelectorAll('rect.find')].map(drawn)].join(';')
document.body.append(out)
})</script>`

// load loads a page and returns the DOM and the console messages.
func load(t *testing.T, html []byte, width int, dark bool) (dom, console string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.html")
	require.NoError(t, os.WriteFile(file, html, 0o600))
	scheme := "1"
	if dark {
		scheme = "0"
	}
	return testenv.Browse(t, file, fmt.Sprintf("--window-size=%d,900", width), "--blink-settings=preferredColorScheme="+scheme)
}

// TestBrowser expects that every kind of page loads in a browser without errors and requests. It
// must fit a telephone and a wide window, follow light and dark mode, and show the curve.
func TestBrowser(t *testing.T) {
	t.Parallel()
	pages, err := samples()
	require.NoError(t, err)
	_, device := sampleDevice()
	courses := map[string]history.Recording{"send": sampleCourse(), "run": sampleCourse(), "device": device}
	answer := regexp.MustCompile(`<output id="measured">(-?\d+);(\d+);(\d+);(.*);([\d,]*)</output>`)
	for name, html := range pages {
		t.Run(name, func(t *testing.T) {
			dom, console := load(t, html, 1400, false)
			require.Empty(t, console)
			require.Contains(t, dom, "<footer>zxfer v1.2.3 on alpha", "it loaded completely")
			asked := append(bytes.Replace(html, []byte("default-src 'none'; "), nil, 1), measure...)
			paper := map[bool]string{}
			for width, dark := range map[int]bool{400: true, 1400: false} {
				dom, console := load(t, asked, width, dark)
				require.Empty(t, console)
				m := answer.FindStringSubmatch(dom)
				require.NotNil(t, m, "%s", dom)
				require.Equal(t, []string{"0", "0", "0"}, m[1:4], "%d pixels wide: pixels and elements too many, and requests", width)
				paper[dark] = m[4]
				requireCurve(t, courses[name], m[5])
			}
			require.NotEqual(t, paper[false], paper[true], "light and dark")
		})
	}
}

// requireCurve compares the curve that a browser drew with the rates of a course.
func requireCurve(t *testing.T, c history.Recording, drawn string) {
	t.Helper()
	if len(c.Moved.Slices) == 0 {
		require.Empty(t, drawn)
		return
	}
	rates, heights := rateOf(&c), strings.Split(drawn, ",")
	require.Len(t, heights, len(rates), "points of the curve")
	most, highest := slices.Max(rates), 0.0
	numbers := make([]float64, len(heights))
	for i, h := range heights {
		n, err := strconv.ParseFloat(h, 64)
		require.NoError(t, err)
		numbers[i], highest = n, max(highest, n)
	}
	require.Greater(t, highest, 200.0, "it fills the plot")
	for i, n := range numbers {
		require.InDelta(t, rates[i]/most, n/highest, 0.01, "point %d of the curve", i)
	}
}

// TestBrowserRunsNothing expects that a browser shows text from another host as text.
func TestBrowserRunsNothing(t *testing.T) {
	t.Parallel()
	for name, html := range hostile(t) {
		dom, console := load(t, html, 800, false)
		require.Empty(t, console, name)
		require.NotContains(t, dom, "<i>pwned", name)
		require.Contains(t, dom, "&lt;i&gt;pwned", name)
	}
}
