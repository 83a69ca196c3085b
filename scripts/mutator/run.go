package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// binary is the compiled tests of one package.
type binary struct{ path, dir, pkg string }

// test is one test of a binary: what it costs without a mutant, and the mutants that it
// reaches.
type test struct {
	binary
	name      string
	cpu, wall time.Duration
	reaches   map[int]bool
}

type outcome int

const (
	notCovered outcome = iota
	survived
	killed
	timedOut
	outcomes
)

// Limits of a run with a mutant. The limit of processor time does not depend on the load
// of the machine. The limit of elapsed time stops a run that waits forever.
const (
	limitFactor = 10
	leastCPU    = 2 * time.Second
	leastWall   = 5 * time.Minute
	maxData     = 4 << 20 // KiB
	// quick is the processor time of tests that run in one process.
	quick = 200 * time.Millisecond
)

// measure runs each test of a binary alone, except those to skip.
func measure(ctx context.Context, b binary, skip *regexp.Regexp, dir string) (tests []test, err error) {
	cmd := exec.CommandContext(ctx, b.path, "-test.list", ".")
	cmd.Dir = b.dir
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: list of tests: %w", b.pkg, err)
	}
	for _, name := range strings.Fields(string(out)) {
		if strings.HasPrefix(name, "Benchmark") || skip != nil && skip.MatchString(name) {
			continue
		}
		trace := filepath.Join(dir, "trace")
		if err := os.Remove(trace); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		t := test{binary: b, name: name, wall: time.Hour, cpu: time.Hour}
		var said []byte
		var result outcome
		if result, said, t.cpu, t.wall, err = run(ctx, []test{t}, 0, "MUTANT_TRACE="+trace); err != nil {
			return nil, err
		} else if result != survived {
			return nil, fmt.Errorf("%s: %s fails without a mutant:\n%s", b.pkg, name, said)
		}
		if t.reaches, err = reached(trace); err != nil {
			return nil, err
		}
		tests = append(tests, t)
	}
	return tests, nil
}

func reached(trace string) (map[int]bool, error) {
	text, err := os.ReadFile(trace)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	all := map[int]bool{}
	for _, f := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		all[n] = true
	}
	return all, nil
}

// try runs the tests that reach a mutant, the cheapest first, until one fails.
func try(ctx context.Context, tests []test, number int) (outcome, error) {
	var groups [][]test // of one binary each
	for _, t := range tests {
		if !t.reaches[number] {
			continue
		}
		i := slices.IndexFunc(groups, func(g []test) bool { return g[0].path == t.path && g[0].cpu < quick && t.cpu < quick })
		if i < 0 {
			groups = append(groups, []test{t})
		} else {
			groups[i] = append(groups[i], t)
		}
	}
	slices.SortStableFunc(groups, func(a, b []test) int { return cmp.Compare(total(a).cpu, total(b).cpu) })
	result := notCovered
	for _, g := range groups {
		var err error
		if result, _, _, _, err = run(ctx, g, number); err != nil || result != survived {
			return result, err
		}
	}
	return result, nil
}

func total(tests []test) (sum test) {
	for _, t := range tests {
		sum.cpu, sum.wall = sum.cpu+t.cpu, sum.wall+t.wall
	}
	return sum
}

// run runs tests of one binary with a mutant switched on, 0 = none. If the tests pass,
// the mutant survived.
func run(ctx context.Context, tests []test, number int, env ...string) (result outcome, said []byte, cpu, wall time.Duration, err error) {
	var names []string
	for _, t := range tests {
		names = append(names, regexp.QuoteMeta(t.name))
	}
	limitCPU, limitWall := leastCPU+limitFactor*total(tests).cpu, leastWall+limitFactor*total(tests).wall
	limited, stop := context.WithTimeout(ctx, limitWall)
	defer stop()
	cmd := exec.CommandContext(limited, "sh", "-c", `ulimit -t "$1" && ulimit -d "$2" && shift 2 && exec "$@"`, "sh",
		strconv.Itoa(int(limitCPU.Seconds())), strconv.Itoa(maxData),
		tests[0].path, "-test.run", "^("+strings.Join(names, "|")+")$", "-test.short", "-test.failfast", "-test.parallel=1", "-test.timeout=0")
	cmd.Dir, cmd.Env = tests[0].dir, append(append(os.Environ(), "GOMAXPROCS=1", "MUTANT="+strconv.Itoa(number)), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	began := time.Now()
	failure := cmd.Run()
	wall = time.Since(began)
	if ctx.Err() != nil {
		return 0, nil, 0, 0, ctx.Err()
	}
	if cmd.ProcessState == nil {
		return 0, nil, 0, 0, failure
	}
	cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case failure == nil:
		result = survived
	case limited.Err() != nil, status.Signaled() && status.Signal() == syscall.SIGKILL && cpu >= limitCPU-time.Second:
		result = timedOut
	default:
		result = killed
	}
	return result, text.Bytes(), cpu, wall, nil
}
