package main

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
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
		{"--on race ./pkg/plan", ""},
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

func TestPartsRunAfterDependencies(t *testing.T) {
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

func TestToolParts(t *testing.T) {
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

func TestPartFailureWithoutFailedTest(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]part{
		"check prints":             {quiet: true, command: []string{"echo", "file.go"}},
		"check exits with 1":       {command: []string{"false"}},
		"missing program":          {command: []string{"/no/such/program"}},
		"tests without events":     {tests: true, command: []string{"sh", "-c", "echo guest died >&2; exit 125"}},
		"tests print other output": {tests: true, command: []string{"echo", "oops"}},
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

// TestKilledPartNamesRunningTest kills a process of tests, and expects the report to
// name the running tests.
func TestKilledPartNamesRunningTest(t *testing.T) {
	t.Parallel()
	const events = `{"Action":"run","Package":"zxfer/p","Test":"Ended"}
{"Action":"pass","Package":"zxfer/p","Test":"Ended"}
{"Action":"run","Package":"zxfer/p","Test":"Paused"}
{"Action":"pause","Package":"zxfer/p","Test":"Paused"}
{"Action":"run","Package":"zxfer/p","Test":"Hangs"}
{"Action":"run","Package":"zxfer/p","Test":"Hangs/inside"}
`
	for name, tt := range map[string]struct {
		end       string // of the script
		interrupt bool
		want      string // a regular expression
	}{
		"killed":      {"kill -9 $$", false, `signal: killed\n     ran when it ended: zxfer/p Hangs/inside for \d+ s\n`},
		"interrupted": {"echo up >&3; exec sleep 600", true, `FAIL interrupted\n     interrupted while it ran zxfer/p Hangs/inside for`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, out := newSuite(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			fifo := filepath.Join(s.work, "fifo")
			require.NoError(t, syscall.Mkfifo(fifo, 0o600))
			up, err := os.OpenFile(fifo, os.O_RDWR, 0)
			require.NoError(t, err)
			defer up.Close()
			if tt.interrupt {
				go func() {
					_, _ = up.Read(make([]byte, 3))
					for s.tally.runningTests(name) == "" {
						time.Sleep(time.Millisecond)
					}
					cancel()
				}()
			}
			s.runAll(ctx, []part{{
				name: name, lane: hostLane, tests: true,
				command: []string{"sh", "-c", "exec 3>" + fifo + "; cat <<'END'\n" + events + "END\n" + tt.end},
			}})
			require.Regexp(t, tt.want, out.String())
			require.Len(t, s.tally.failures, 1)
		})
	}
}

func TestFailedTestIsPrintedImmediately(t *testing.T) {
	t.Parallel()
	s, out := newSuite(t)
	o := &output{part: part{name: "host"}, suite: s}
	_, err := o.Write([]byte(failing[:strings.Index(failing, `{"Action":"fail","Package":"zxfer/p"}`)]))
	require.NoError(t, err)
	require.Equal(t, "   FAIL host: zxfer/p C/x\n     Error:      \tboom \x1b\n", out.String())
	require.True(t, o.failed)
}

func TestCost(t *testing.T) {
	t.Parallel()
	s := &suite{times: []timing{{processor: 50 * time.Second}, {processor: 30 * time.Second}}}
	require.Equal(t, "45 s, 80 CPU s", s.cost(45*time.Second))
	s.times = append(s.times, timing{processor: 21*time.Minute + 50*time.Second})
	require.Equal(t, "12 min 3 s, 23 CPU min", s.cost(12*time.Minute+3*time.Second))
	require.Equal(t, "1 min 0 s, 23 CPU min", s.cost(59*time.Second+600*time.Millisecond))
}

// unraced lists packages outside racePackages that start goroutines or share memory. Each
// value is the reason for racing the package only with --long.
var unraced = map[string]string{
	"pkg/transport/tcp/tcptest": "pkg/internal/roundtrips uses it",
	"cmd/zxfer":                 "its tests start a process for each command, and the packages below pkg do the work",
	"pkg/job/jobtest":           "no part of the product: the packages that use it are raced",
	"pkg/option":                "shares a regular expression that never changes",
	"pkg/replicate/damage":      "the tests of pkg/replicate/runner call it",
	"pkg/replicate/disk":        "the tests of pkg/replicate/runner call it",
	"pkg/replicate/drill":       "the tests of pkg/replicate/runner call it",
	"pkg/replicate/session":     "the tests of pkg/replicate/runner call it",
	"pkg/replicate/statedir":    "only the ledger of a run is shared, in the tests of pkg/replicate/runner",
	"pkg/testenv":               "no part of the product: the packages that use it are raced",
	"pkg/transfer/transfertest": "no part of the product: the packages that use it are raced",
	"scripts/suite":             "no part of the product",
}

// TestRacePackagesAreComplete expects the race part to run every package whose
// production code starts goroutines or shares memory.
func TestRacePackagesAreComplete(t *testing.T) {
	t.Parallel()
	sharing := regexp.MustCompile(`(?m)^\s*go (func\(|[\w.]+\()|"sync(/atomic)?"$|"golang.org/x/sync/errgroup"$`)
	found := map[string]string{}
	root := testenv.Root(t)
	for _, top := range []string{"cmd", "pkg", "scripts"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err == nil && sharing.Match(text) {
				dir, _ := filepath.Rel(root, filepath.Dir(path))
				found[dir] = "."
			}
			return err
		}))
	}
	require.Contains(t, found, "pkg/transfer")
	for dir := range found {
		raced := slices.Contains(racePackages(), strings.TrimPrefix(dir, "pkg/"))
		_, exception := unraced[dir]
		require.True(t, raced != exception, "%s: in racePackages %t, in unraced %t", dir, raced, exception)
	}
	for dir := range unraced {
		require.Contains(t, found, dir, "unraced has a stale entry")
	}
	for _, name := range racePackages() {
		require.Contains(t, found, "pkg/"+name, "racePackages has a stale entry")
	}
	for _, test := range unracedTests() {
		out, err := exec.CommandContext(t.Context(), "grep", "-rl", "^func "+test+"(", filepath.Join(root, "pkg")).CombinedOutput()
		require.NoError(t, err, "no test %s: %s", test, out)
	}
}

func TestRaceDetector(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		options
		part      string
		raced     bool
		arguments []string
	}{
		{options{}, "host", false, []string{"./..."}},
		{options{}, "race", true, []string{"./pkg/zfs/lzc", "./pkg/zfs/zfsmem"}},
		{options{long: true}, "race", true, []string{"./..."}},
		{options{on: "race", packages: "./pkg/plan", run: "^TestX$"}, "race", true, []string{"-run", "^TestX$", "./pkg/plan"}},
	} {
		s := &suite{options: tt.options, slowness: 1}
		parts := s.plan()
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == tt.part })
		require.GreaterOrEqual(t, i, 0, tt.part)
		command := parts[i].command
		require.Equal(t, tt.raced, slices.Contains(command, "-race"))
		require.Equal(t, tt.raced, slices.Contains(parts[i].env, "CGO_ENABLED=1"))
		require.Equal(t, tt.arguments, command[len(command)-len(tt.arguments):])
		require.Equal(t, tt.options == options{} && tt.raced, slices.Contains(command, "-short"))
	}
}

// TestGroupsDoNotOverlap expects every test of cmd/zxfer to match the expression of at most
// one group. The last group runs all other tests.
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
	require.Len(t, used, len(groups)-1, "a group has no test")
}

// TestGuestTestsRunInGuest expects the guest to run every test that needs ZFS or
// disposable devices. Such a test, or a function that it calls, reads ZXFER_GUEST or creates a
// pool.
func TestGuestTestsRunInGuest(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	runs := map[string]*regexp.Regexp{"cmd/zxfer": regexp.MustCompile(commandInGuest + "|" + others(commandGroups()))}
	for _, g := range guestPackages() {
		runs[filepath.Clean(g.path)] = regexp.MustCompile(g.tests)
	}
	found := map[string]int{}
	for _, top := range []string{"cmd", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(dir string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return err
			}
			pkg, err := filepath.Rel(root, dir)
			if err != nil {
				return err
			}
			for _, test := range guestTests(t, dir) {
				found[pkg]++
				require.True(t, runs[pkg] != nil && runs[pkg].MatchString(test), "no part runs %s of %s in the guest", test, pkg)
			}
			return nil
		}))
	}
	for _, pkg := range []string{"cmd/zxfer", "pkg/device", "pkg/hosts/hoststest", "pkg/zfs/cli"} {
		require.Positive(t, found[pkg], pkg)
	}
}

// guestTests returns the tests of a directory's package that need the guest.
func guestTests(t *testing.T, dir string) (tests []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	uses, needs := map[string][]string{}, map[string]bool{}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			name := f.Name.Name
			if f.Recv != nil { // methods of different types share names, but never with functions
				name = "." + name
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "zfstest" && slices.Contains([]string{"Require", "NewPool"}, n.Sel.Name) {
						needs[name] = true
					}
				case *ast.CallExpr:
					switch called := n.Fun.(type) {
					case *ast.Ident:
						uses[name] = append(uses[name], called.Name)
					case *ast.SelectorExpr:
						uses[name] = append(uses[name], "."+called.Sel.Name)
					}
				case *ast.BinaryExpr: // these comparisons make a test run only in the guest
					if call, ok := n.X.(*ast.CallExpr); ok && len(call.Args) == 1 {
						arg, _ := call.Args[0].(*ast.BasicLit)
						value, _ := n.Y.(*ast.BasicLit)
						if arg != nil && value != nil && arg.Value == `"ZXFER_GUEST"` && (n.Op == token.EQL) == (value.Value == `""`) {
							needs[name] = true
						}
					}
				}
				return true
			})
		}
	}
	for again := true; again; {
		again = false
		for name, used := range uses {
			if !needs[name] && slices.ContainsFunc(used, func(u string) bool { return needs[u] }) {
				needs[name], again = true, true
			}
		}
	}
	for name := range needs {
		if strings.HasPrefix(name, "Test") && name != "TestMain" {
			tests = append(tests, name)
		}
	}
	return tests
}
