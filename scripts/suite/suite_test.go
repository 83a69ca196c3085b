package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args string
		err  string
	}{
		{"", ""},
		{"--quick", ""},
		{"--long --matrix", ""},
		{"--on zfs-2.1 ./cmd/zxfer ^TestX$", ""},
		{"--on host ./pkg/plan", ""},
		{"--on host", "needs a package"},
		{"--on zfs-9 ./pkg/plan", `unknown place "zfs-9"`},
		{"./pkg/plan", `unknown argument "./pkg/plan"`},
		{"--slow", "flag provided but not defined: -slow"},
	} {
		_, err := parse(strings.Fields(tt.args))
		if tt.err == "" {
			require.NoError(t, err, tt.args)
		} else {
			require.ErrorContains(t, err, tt.err, tt.args)
		}
	}
}

func TestFactor(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]float64{0: 1, reference: 1, reference * 12 / 10: 1.5, 3 * reference: 3, 33 * reference / 10: 3.5} {
		require.InDelta(t, want, factor(d), 0.001, d)
	}
}

func newSuite(t *testing.T) (*suite, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	s := &suite{work: t.TempDir(), slowness: 1, began: time.Now(), out: &out}
	s.tally = newTally(s.again)
	return s, &out
}

func TestPartsRunAfterThoseTheyName(t *testing.T) {
	t.Parallel()
	s, _ := newSuite(t)
	log := s.work + "/log"
	shell := func(name, lane, script string, after ...string) part {
		return part{name: name, lane: lane, after: after, command: []string{"sh", "-c", script}}
	}
	s.runAll(t.Context(), []part{
		shell("second", guestLane, "echo second >>"+log, "first"),
		shell("first", toolLane, "echo first >>"+log),
	})
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "first\nsecond\n", string(text))
	require.Empty(t, s.tally.failures)
	require.Len(t, s.times, 2)
}

func TestAToolIsExportedAndMayFail(t *testing.T) {
	t.Parallel()
	s, out := newSuite(t)
	s.runAll(t.Context(), []part{
		{name: "tools: a", lane: toolLane, tool: true, variable: "TEST_A", directory: "/a", path: "/a/bin", command: []string{"true"}},
		{name: "tools: b", lane: toolLane, tool: true, variable: "TEST_B", directory: "/b", command: []string{"sh", "-c", "echo no network; exit 1"}},
		{name: "vet", lane: hostLane, after: []string{"tools: a", "tools: b"}, command: []string{"sh", "-c", `echo "$TEST_A $TEST_B $ZXFER_TEST_SLOWNESS ${PATH%%:*}"; exit 1`}},
	})
	require.Contains(t, out.String(), "tools: b: not prepared, the tests that need it are skipped: no network")
	require.Len(t, s.tally.failures, 1)
	require.Contains(t, s.tally.failures[0].text, "/a  1 /a/bin")
}

func TestAPartThatFailsWithoutAFailedTestIsAFailure(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]part{
		"a check that prints":            {quiet: true, command: []string{"echo", "file.go"}},
		"a check that exits with 1":      {command: []string{"false"}},
		"a missing program":              {command: []string{"/no/such/program"}},
		"tests that end without events":  {tests: true, command: []string{"sh", "-c", "echo guest died >&2; exit 125"}},
		"tests that print another thing": {tests: true, command: []string{"echo", "oops"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := newSuite(t)
			p.name, p.lane = name, hostLane
			s.runAll(t.Context(), []part{p})
			require.Len(t, s.tally.failures, 1)
		})
	}
}

// Every test of the command runs in one group: in the one whose expression matches it, or
// in the last.
func TestGroupsDoNotOverlap(t *testing.T) {
	t.Parallel()
	groups := commandGroups()
	require.Empty(t, groups[len(groups)-1].tests)
	cmd := exec.CommandContext(t.Context(), "grep", "-rhoE", `^func Test[A-Za-z0-9_]+`, "../../cmd/zxfer")
	out, err := cmd.Output()
	require.NoError(t, err)
	used := map[string]bool{}
	for l := range strings.Lines(string(out)) {
		test := strings.TrimPrefix(strings.TrimSpace(l), "func ")
		var in []string
		for _, g := range groups[:len(groups)-1] {
			if regexp.MustCompile(g.tests).MatchString(test) {
				in = append(in, g.name)
				used[g.name] = true
			}
		}
		require.LessOrEqual(t, len(in), 1, "%s is in %v", test, in)
		require.Equal(t, len(in) == 1, regexp.MustCompile(others(groups)).MatchString(test))
	}
	require.Len(t, used, len(groups)-1, "a group without a test")
}
