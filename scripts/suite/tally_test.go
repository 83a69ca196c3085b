package main

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Events in the format of go test -json in Go 1.26.
const (
	onHost = `{"Action":"output","Package":"zxfer/p","Test":"A","Output":"    a_test.go:1: needs ZFS\n"}
{"Action":"skip","Package":"zxfer/p","Test":"A"}
{"Action":"output","Package":"zxfer/p","Test":"B","Output":"    b_test.go:1: needs root\n"}
{"Action":"skip","Package":"zxfer/p","Test":"B"}
{"Action":"pass","Package":"zxfer/p","Test":"C","Elapsed":1.5}
{"Action":"pass","Package":"zxfer/p"}
`
	inGuest = `{"Action":"pass","Package":"zxfer/p","Test":"A","Elapsed":20}
{"Action":"pass","Package":"zxfer/p"}
`
	failing = `{"Action":"run","Package":"zxfer/p","Test":"C/x"}
{"Action":"output","Package":"zxfer/p","Test":"C/x","Output":"=== RUN   C/x\n"}
{"Action":"output","Package":"zxfer/p","Test":"C/x","Output":"    \tError Trace:\tc_test.go:7\n"}
{"Action":"output","Package":"zxfer/p","Test":"C/x","Output":"    \tError:      \tboom \u001b\n"}
{"Action":"output","Package":"zxfer/p","Test":"C/x","Output":"--- FAIL: C/x (0.00s)\n"}
{"Action":"fail","Package":"zxfer/p","Test":"C/x"}
{"Action":"fail","Package":"zxfer/p","Test":"C"}
{"Action":"fail","Package":"zxfer/p"}
`
	unbuilt = `{"Action":"build-output","ImportPath":"zxfer/q [zxfer/q.test]","Output":"q.go:1: syntax error\n"}
{"Action":"fail","Package":"zxfer/q"}
`
	hanging = `{"Action":"run","Package":"zxfer/p","Test":"D"}
{"Action":"output","Package":"zxfer/p","Test":"D","Output":"panic: test timed out after 30m\n"}
{"Action":"fail","Package":"zxfer/p"}
`
)

// countEvents returns a tally of the events of parts, its report, and the result of report.
func countEvents(t *testing.T, parts []part, events []string) (*tally, string, bool) {
	t.Helper()
	ta := newTally((&options{}).again)
	for i, p := range parts {
		for l := range strings.Lines(events[i]) {
			ta.line(p, []byte(strings.TrimSuffix(l, "\n")))
		}
	}
	var out strings.Builder
	ok := ta.report(&out, "1 s, 2 CPU s")
	return ta, out.String(), ok
}

func TestReport(t *testing.T) {
	t.Parallel()
	host, guest := part{name: "host", place: "host"}, part{name: "zfs-2.3 command", place: "zfs-2.3"}
	tests := []struct {
		name   string
		events []string
		ok     bool
		want   []string
	}{
		{"pass replaces skip", []string{onHost, inGuest}, true, []string{"2 passed, 0 failed, 1 skipped\n", "SKIP needs root: p B\n"}},
		{"failure in one part", []string{onHost, failing}, false, []string{"0 passed, 2 failed, 2 skipped\n"}},
		{
			"failure with error and command", []string{onHost, failing}, false,
			[]string{"FAIL zxfer/p C/x\n  Error:      \tboom \x1b\n  run it again: scripts/test --on zfs-2.3 ./p '^C$/^x$'\n1 s, 2 CPU s\n0 passed"},
		},
		{"package does not build", []string{inGuest, unbuilt}, false, []string{"1 passed, 1 failed, 0 skipped\n", "syntax error", "run it again: scripts/test --on zfs-2.3 ./q\n"}},
		{"test does not end", []string{inGuest, hanging}, false, []string{"did not end: D\n", "panic: test timed out after 30m"}},
		{"no tests", []string{"", ""}, false, []string{"0 passed, 0 failed, 0 skipped\n"}},
		{"other output", []string{inGuest, "panic: no JSON\n"}, false, []string{"panic: no JSON", "1 failed"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, text, ok := countEvents(t, []part{host, guest}, tt.events)
			require.Equal(t, tt.ok, ok)
			for _, w := range tt.want {
				require.Contains(t, text, w)
			}
		})
	}
}

func TestReportCountsLabelsSeparately(t *testing.T) {
	t.Parallel()
	parts := []part{{name: "a"}, {name: "b"}, {name: "c", place: "zfs-2.1", label: "ZFS 2.1"}}
	_, text, ok := countEvents(t, parts, []string{inGuest, inGuest, strings.Replace(inGuest, "pass", "fail", 1)})
	require.False(t, ok)
	require.Contains(t, text, "FAIL zxfer/p A (ZFS 2.1)\n  run it again: scripts/test --on zfs-2.1 ./p '^A$'\n1 s, 2 CPU s\n1 passed, 1 failed, 0 skipped\n")
}

func TestSlowestTestsAreListed(t *testing.T) {
	t.Parallel()
	ta, _, _ := countEvents(t, []part{{name: "a"}, {name: "b"}}, []string{onHost, inGuest})
	var out strings.Builder
	ta.slow(&out)
	require.Equal(t, "== slowest tests\n   20.0 s zxfer/p A\n    1.5 s zxfer/p C\n    0.0 s zxfer/p B\n", out.String())
}

func TestSummaryKeepsLastLines(t *testing.T) {
	t.Parallel()
	lines := summary(strings.Repeat("more\n", 20) + "last\n")
	require.Len(t, lines, summaryLines+1)
	require.Equal(t, "(9 lines above)", lines[0])
	require.Equal(t, "last", lines[len(lines)-1])
}

func TestAgain(t *testing.T) {
	t.Parallel()
	require.Equal(t, "scripts/test --long --on host ./pkg/plan '^TestX$/^a\\(b\\)$'", (&options{long: true}).again("host", "zxfer/pkg/plan", "TestX/a(b)"))
	require.Equal(t, "go test -short ./pkg/plan -run '^TestX$'", (&options{quick: true}).again("host", "zxfer/pkg/plan", "TestX"))
}

func TestJUnit(t *testing.T) {
	t.Parallel()
	parts := []part{{name: "host"}, {name: "arm64", label: "arm64"}, {name: "guest"}, {name: "vet"}}
	ta, _, _ := countEvents(t, parts, []string{onHost, failing, inGuest, unbuilt})
	path := filepath.Join(t.TempDir(), "report.xml")
	require.NoError(t, ta.writeJUnit(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var got junitSuites
	require.NoError(t, xml.Unmarshal(text, &got))
	require.Equal(t, 6, got.Tests)
	require.Equal(t, 3, got.Failures)
	require.Equal(t, 1, got.Skipped)
	require.Equal(t, "zxfer/p", got.Suites[0].Name)
	require.Equal(t, "21.500", got.Suites[0].Time)
	require.Equal(t, "zxfer/p (arm64)", got.Suites[1].Name)
	require.Contains(t, string(text), `message="Error:      &#x9;boom ?"`, "control characters are not XML")
}
