package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// suite is one run.
type suite struct {
	options
	work     string  // a directory that is removed at the end
	slowness float64 // of the machine
	began    time.Time
	tally    *tally
	out      io.Writer

	mu      sync.Mutex // guards all below, and out
	exports []string   // variables of prepared tools
	path    []string   // directories of prepared tools
	times   []timing
	running map[string]time.Time
}

// timing is what a part cost.
type timing struct {
	name      string
	took      time.Duration
	processor time.Duration // of its processes that it waited for
}

// width returns how many parts of a lane run side by side.
func width(lane string) int {
	switch lane {
	case toolLane:
		return 2
	case guestLane:
		return guests()
	}
	return 1
}

// runAll runs the parts, each after those that it names, and returns when all have ended.
func (s *suite) runAll(ctx context.Context, parts []part) {
	s.running = map[string]time.Time{}
	ended := map[string]chan struct{}{}
	lanes := map[string]chan struct{}{}
	for _, p := range parts {
		ended[p.name] = make(chan struct{})
		if lanes[p.lane] == nil {
			lanes[p.lane] = make(chan struct{}, width(p.lane))
		}
	}
	stop := s.reportProgress()
	defer stop()
	// Parts of a lane start in the order of the plan: each waits for the one before it
	// to have its place.
	turn := map[string]chan struct{}{}
	for _, p := range parts {
		before, mine := turn[p.lane], make(chan struct{})
		turn[p.lane] = mine
		go func() {
			defer close(ended[p.name])
			if before != nil {
				<-before
			}
			for _, name := range p.after {
				if c := ended[name]; c != nil {
					<-c
				}
			}
			lanes[p.lane] <- struct{}{}
			close(mine)
			defer func() { <-lanes[p.lane] }()
			if ctx.Err() == nil {
				s.runPart(ctx, p)
			}
		}()
	}
	for _, c := range ended {
		<-c
	}
}

// runPart runs one part.
func (s *suite) runPart(ctx context.Context, p part) {
	began := time.Now()
	s.startPart(p.name, began)
	var stderr tail
	output := &output{part: p, suite: s}
	cmd := exec.CommandContext(ctx, p.command[0], p.command[1:]...)
	cmd.Dir = p.dir
	cmd.Env = append(append(os.Environ(), s.environment(p)...), p.env...)
	cmd.Stdout, cmd.Stderr = output, &stderr
	if !p.tests {
		cmd.Stdout = &stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	err := cmd.Run()
	output.finish()
	text := strings.TrimSpace(stderr.String())
	running := s.tally.runningTests(p.name)
	switch {
	case ctx.Err() != nil && err == nil:
	case ctx.Err() != nil && running != "":
		s.fail(p, "interrupted while it ran "+running)
	case ctx.Err() != nil:
		s.fail(p, "interrupted")
	case p.tool && err == nil:
		s.export(p)
	case p.tool:
		s.printf("   %s: not prepared, the tests that need it are skipped: %s\n", p.name, lastLine(text))
	case p.tests && err != nil && !output.failed:
		if running != "" {
			text += "\nran when it ended: " + running
		}
		s.fail(p, fmt.Sprintf("%v\n%s", err, text))
	case !p.tests && (err != nil || p.quiet && text != ""):
		s.fail(p, strings.TrimSpace(fmt.Sprintf("%s: %v\n%s", strings.Join(p.command, " "), err, text)))
	}
	s.endPart(p, time.Since(began), processorTime(cmd.ProcessState))
}

// fail records and prints that a part failed without a failed test.
func (s *suite) fail(p part, text string) {
	s.tally.broken(p, text)
	s.printf("   FAIL %s\n%s", p.name, indent("     ", summary(text)))
}

// processorTime returns the processor time of a process, or 0 if it did not start.
func processorTime(state *os.ProcessState) time.Duration {
	if state == nil {
		return 0
	}
	return state.UserTime() + state.SystemTime()
}

// environment returns the variables of a part that come from the machine and the level.
func (s *suite) environment(p part) []string {
	slow := s.slowness
	if p.lane == guestLane {
		// Guests share the processors, and a system call costs ten times as much in them.
		slow *= 4
	}
	env := []string{fmt.Sprintf("ZXFER_TEST_SLOWNESS=%g", slow)}
	if s.long {
		env = append(env, "ZXFER_TEST_LONG=1")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.path) > 0 {
		env = append(env, "PATH="+strings.Join(s.path, ":")+":"+os.Getenv("PATH"))
	}
	return append(env, s.exports...)
}

// export makes a prepared tool known to later parts.
func (s *suite) export(p part) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.variable != "" {
		s.exports = append(s.exports, p.variable+"="+p.directory)
	}
	if p.path != "" {
		s.path = append(s.path, p.path)
	}
}

func (s *suite) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format, args...)
}

func (s *suite) startPart(name string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[name] = at
	fmt.Fprintf(s.out, "== %4.0f s: %s started\n", at.Sub(s.began).Seconds(), name)
}

func (s *suite) endPart(p part, took, processor time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, p.name)
	s.times = append(s.times, timing{p.name, took, processor})
	fmt.Fprintf(s.out, "== %4.0f s: %s ended after %.0f s\n", time.Since(s.began).Seconds(), p.name, took.Seconds())
}

// reportProgress prints a line each minute until the returned function is called.
func (s *suite) reportProgress() (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(time.Minute)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				passed, failed := s.tally.counts()
				s.printf("   %4.0f s: %d passed, %d failed; running: %s\n", time.Since(s.began).Seconds(), passed, failed, s.runningNow())
			}
		}
	}()
	return func() { close(done) }
}

func (s *suite) runningNow() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.running {
		if tests := s.tally.runningTests(name); tests != "" {
			name += " (" + tests + ")"
		}
		names = append(names, name)
	}
	return strings.Join(slices.Sorted(slices.Values(names)), ", ")
}

// printTimes prints the slowest tests, and the time and the processor time of each part.
func (s *suite) printTimes(w io.Writer) {
	s.tally.slow(w)
	fmt.Fprintln(w, "== time per part, and processor time")
	for _, t := range slices.SortedFunc(slices.Values(s.times), func(a, b timing) int { return cmp.Compare(b.took, a.took) }) {
		fmt.Fprintf(w, "%7.1f s %7.1f s %s\n", t.took.Seconds(), t.processor.Seconds(), t.name)
	}
}

// cost returns the time of the run and the processor time of its parts, such as
// "12 min 3 s, 23 CPU min".
func (s *suite) cost(took time.Duration) string {
	var processor time.Duration
	for _, t := range s.times {
		processor += t.processor
	}
	wall, cpu := took.Round(time.Second), fmt.Sprintf("%.0f CPU s", processor.Seconds())
	if processor >= 2*time.Minute {
		cpu = fmt.Sprintf("%.0f CPU min", processor.Minutes())
	}
	if wall < time.Minute {
		return fmt.Sprintf("%.0f s, %s", wall.Seconds(), cpu)
	}
	return fmt.Sprintf("%d min %d s, %s", wall/time.Minute, wall%time.Minute/time.Second, cpu)
}

// guests returns how many guests run side by side: two for each processor, because tests
// also wait, and no more than memory allows.
func guests() int {
	const each = 3 << 30 // bytes that a guest with 4 GiB uses at most in the tests
	return max(1, min(2*runtime.NumCPU(), int(availableMemory()/each)))
}

// output passes on the events that a part writes.
type output struct {
	part   part
	suite  *suite
	rest   []byte
	failed bool // a test or package failed
}

func (o *output) Write(b []byte) (int, error) {
	o.rest = append(o.rest, b...)
	for {
		line, after, whole := bytes.Cut(o.rest, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		o.line(line)
		o.rest = bytes.Clone(after)
	}
}

// finish passes on a last line without a line break.
func (o *output) finish() {
	if len(o.rest) > 0 {
		o.line(o.rest)
	}
	o.rest = nil
}

func (o *output) line(line []byte) {
	f, failed := o.suite.tally.line(o.part, line)
	if failed {
		o.failed = true
	}
	if f != nil {
		o.suite.printf("   FAIL %s: %s\n%s", o.part.name, f.name, indent("     ", summary(f.text)))
	}
}

// tail keeps the end of what a command prints.
type tail struct{ b []byte }

const tailSize = 64 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.b = append(t.b, b...)
	if len(t.b) > 2*tailSize {
		t.b = bytes.Clone(t.b[len(t.b)-tailSize:])
	}
	return len(b), nil
}

func (t *tail) String() string { return string(t.b) }

func lastLine(text string) string { return text[strings.LastIndexByte(text, '\n')+1:] }

// availableMemory returns the bytes of memory that are free for programs.
func availableMemory() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for l := range strings.Lines(string(text)) {
		var kib uint64
		if n, _ := fmt.Sscanf(l, "MemAvailable: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}
