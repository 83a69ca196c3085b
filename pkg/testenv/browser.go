package testenv

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// browserPath returns the path of a headless browser. It skips the test if there is none.
func browserPath(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("not at the quick level: starts a browser")
	}
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium-headless-shell and no chromium in PATH")
	return ""
}

// Browse loads a file in a headless browser with more flags. It returns the DOM when the page and its frames
// have loaded, and the lines of the console. It skips the test if there is no browser.
func Browse(t testing.TB, file string, flags ...string) (dom, console string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), browserPath(t), append([]string{"--headless", "--no-sandbox", "--disable-gpu",
		"--user-data-dir=" + t.TempDir(), "--enable-logging=stderr", "--dump-dom"}, append(flags, "file://"+file)...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &said, Timeout()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	for l := range strings.Lines(said.String()) {
		if strings.Contains(l, ":CONSOLE") {
			console += l
		}
	}
	return out.String(), console
}
