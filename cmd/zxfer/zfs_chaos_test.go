package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// maxFailures is the number of failed rounds after which the test ends.
const maxFailures = 10

// TestZFSChaos runs random transfers under random faults, and expects each to leave the
// target complete, unchanged or resumable, as its exit code says. scripts/chaos --seed N
// --rounds 1 repeats the round with seed N.
func TestZFSChaos(t *testing.T) {
	lab(t)
	seed, rounds := chaosSeeds(t)
	until := time.Now().Add(chaosTime(t))
	printSystem(t)
	mustZxfer(t, "doctor", "--quick", "beta") // from now on, beta has zxfer in its cache
	failed := 0
	for i := 0; i < rounds && time.Now().Before(until) && failed < maxFailures; i++ {
		c := newChaos(seed(i))
		result := "passed"
		if !t.Run(fmt.Sprint(c.seed), c.run) {
			failed++
			result = "failed"
			fmt.Printf("chaos: failed: scripts/chaos --seed %d --rounds 1: %s\n", c.seed, c)
		}
		// The summary of scripts/chaos reads these lines.
		fmt.Printf("chaos: round %d %s %d %d\n", c.seed, result, linkBytes(t), time.Now().Unix())
	}
}

// printSystem prints the versions of OpenZFS and Linux, and the time, for the summary of scripts/chaos.
func printSystem(t *testing.T) {
	t.Helper()
	module, err := os.ReadFile("/sys/module/zfs/version")
	require.NoError(t, err)
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	require.NoError(t, err)
	fmt.Printf("chaos: system %s %s %d\n", bytes.TrimSpace(module), bytes.TrimSpace(kernel), time.Now().Unix())
}

// linkBytes returns the bytes that the link between the hosts has carried in both directions.
func linkBytes(t *testing.T) (sum int64) {
	t.Helper()
	statistics := "/sys/class/net/zxb0/statistics/"
	for n := range strings.FieldsSeq(run(t, "ip", "netns", "exec", betaPool, "cat", statistics+"rx_bytes", statistics+"tx_bytes")) {
		count, err := strconv.ParseInt(n, 10, 64)
		require.NoError(t, err)
		sum += count
	}
	return sum
}

// chaosSeeds returns the seeds and the number of rounds. scripts/chaos sets them in the
// environment. Otherwise the first rounds have fixed seeds and the others random ones.
func chaosSeeds(t *testing.T) (seed func(i int) uint64, rounds int) {
	t.Helper()
	number := func(name string, otherwise uint64) uint64 {
		s := os.Getenv(name)
		if s == "" {
			return otherwise
		}
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, name)
		return n
	}
	random := uint64(rand.Uint32())
	if os.Getenv("ZXFER_CHAOS_SEED") == "" && os.Getenv("ZXFER_CHAOS_ROUNDS") == "" {
		fixed, more := 2, 1
		if testenv.Long() {
			fixed, more = 8, 12
		}
		return func(i int) uint64 {
			if i < fixed {
				return uint64(i)
			}
			return random + uint64(i-fixed)
		}, fixed + more
	}
	first := number("ZXFER_CHAOS_SEED", random)
	return func(i int) uint64 { return first + uint64(i) }, int(number("ZXFER_CHAOS_ROUNDS", 100))
}

// chaosTime returns the time after which no further round starts.
func chaosTime(t *testing.T) time.Duration {
	t.Helper()
	if s := os.Getenv("ZXFER_CHAOS_MINUTES"); s != "" {
		minutes, err := strconv.ParseFloat(s, 64)
		require.NoError(t, err)
		return time.Duration(minutes * float64(time.Minute))
	}
	return 100 * time.Hour
}

// round is one run of a chaos.
type round struct {
	t     *testing.T
	c     chaos
	work  chaosWork
	disk  *labDisk
	began time.Time
	log   strings.Builder
	// injected reports whether the fault of the current attempt occurred.
	injected bool
}

// logf logs an event. The test prints the log if the round fails.
func (r *round) logf(format string, args ...any) {
	fmt.Fprintf(&r.log, "%6.2f %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (c chaos) run(t *testing.T) {
	r := &round{t: t, c: c, began: time.Now()}
	t.Cleanup(func() {
		r.logf("end of the round")
		t.Logf("%s\n%s", c, &r.log)
		if t.Failed() {
			removeLeftovers(t) // they would fail the next rounds, too
		}
	})
	if c.uncached {
		cache, err := os.UserCacheDir()
		require.NoError(t, err)
		require.NoError(t, os.RemoveAll(filepath.Join(cache, "zxfer")))
	}
	if c.wire == "nc" {
		installNC(t, choose(newRand(c.seed, "nc"), "nc.openbsd", "nc.openbsd", "nc.traditional", "ncat"))
	}
	r.setUp()
	requireNoLeftovers(t) // zxfer does not wait for the end of its shared connection
	r.logf("set up")
	before := footprint(t)
	finished := false
	for _, h := range c.faults {
		o := r.attempt(h)
		finished = o.code == 0
		if finished && !r.work.repeatable() {
			break
		}
		if c.patient {
			requireNoLeftovers(t)
		}
	}
	switch {
	case !finished:
		r.finish()
	case c.repeat && r.work.repeatable():
		r.finish()
	}
	requireNoLeftovers(t)
	r.logf("all processes have ended")
	require.Equal(t, before, footprint(t), "leftover files")
}

func (r *round) setUp() {
	t, c := r.t, r.c
	if c.disk != "" && !c.isWork("dev", "delta") {
		r.disk = newLabDisk(t, faultPool+"disk", 192<<20)
		r.disk.createPool(faultPool)
	}
	switch {
	case c.isWork("dev", "delta"):
		d := newChaosDevice(t, c)
		r.work, r.disk = d, d.disk
	case c.work == "replicate":
		r.work = newChaosJob(t, c)
	default:
		r.work = newDatasets(t, c)
	}
}

// datasets returns the datasets of the work. It panics if the work has no datasets.
func (r *round) datasets() *datasets {
	if j, ok := r.work.(*chaosJob); ok {
		return j.datasets
	}
	return r.work.(*datasets)
}

// attempt runs the command once under a fault, and judges its exit code and the resulting
// state.
func (r *round) attempt(h chaosFault) cmdResult {
	t, argv := r.t, r.work.argv()
	was := r.work.state(t)
	r.logf("zxfer %q; %s", argv, h)
	r.injected = false
	env, undo := r.prepare(h)
	p := startAs(t, env, alphaBin, argv...)
	after := r.inject(p, h, argv)
	o := p.wait(t)
	after()
	undo()
	r.logf("%s", o)
	r.printAttempt(h, o)
	r.check(h, o, was)
	return o
}

// printAttempt prints a line about an attempt for the summary of scripts/chaos.
func (r *round) printAttempt(h chaosFault, o cmdResult) {
	occurred := "missed"
	if r.injected {
		occurred = "occurred"
	}
	fmt.Printf("chaos: attempt %d %s %s %s %s\n", o.code, o.resumption(), h.kind, occurred, h.arg)
}

var resumedOutput = regexp.MustCompile(`, resumed\b|"resumes": *true`)

// resumption returns "resumed" if the command continued from partially received state, and
// otherwise "whole".
func (o cmdResult) resumption() string {
	if resumedOutput.MatchString(o.stdout) || resumedOutput.MatchString(o.stderr) {
		return "resumed"
	}
	return "whole"
}

// check fails the test unless the state matches the exit code.
func (r *round) check(h chaosFault, o cmdResult, was string) {
	t := r.t
	t.Helper()
	r.work.requireSound(t)
	switch o.code {
	case 0:
		r.work.requireComplete(t)
	case 1:
		// A failure that a retry can cure must exit with 4 if there is something to resume.
		// If zfs receive is stopped within the stream's header, it reads only the rest of
		// the header, and reports that the stream is too new.
		headerCut := h.kind == "stop" && strings.Contains(o.stderr, "kernel modules must be upgraded")
		if !headerCut && slices.Contains([]string{"none", "kill", "signal", "stop", "cut", "reset", "netem", "clock"}, h.kind) {
			require.Equal(t, was, withoutSnapshot(r.settledState(), o.takenSnapshot()), "exit code 1, but something changed")
		}
		require.Regexp(t, `(?m)^zxfer: |"event":"error"`, o.stderr)
	case 3:
		if h.kind != "rival" { // the rival may have changed it
			require.Equal(t, was, r.settledState(), "exit code 3, but something changed")
		}
	case 4:
		if strings.Contains(o.stderr, "nothing was changed") { // the signal arrived before the transfer
			require.Equal(t, was, r.settledState(), "reported as unchanged, but something changed")
		} else {
			require.Regexp(t, `the same command,? resumes`, o.stderr)
		}
	case -1:
		if h.kind == "signal" { // the signal arrived before zxfer had a handler
			require.Equal(t, was, r.settledState(), "killed by a signal before the transfer, but something changed")
		} else {
			require.Equal(t, "kill zxfer", h.kind+" "+h.arg, "zxfer was killed")
		}
	default:
		t.Fatalf("exit code %d", o.code)
	}
}

// settledState returns the state after all processes have ended.
func (r *round) settledState() string {
	requireNoLeftovers(r.t)
	return r.work.state(r.t)
}

// takenSnapshot returns the snapshot that a run of a job took, or "". The run keeps this snapshot
// even if no target is reachable.
func (o cmdResult) takenSnapshot() string {
	if m := regexp.MustCompile(`(?m): took (@\S+) of`).FindStringSubmatch(o.stderr); m != nil {
		return m[1]
	}
	return ""
}

// withoutSnapshot returns a state without the lines about a snapshot.
func withoutSnapshot(state, snapshot string) string {
	if snapshot == "" {
		return state
	}
	about := func(line string) bool { return strings.Contains(line, snapshot+" ") }
	return strings.Join(slices.DeleteFunc(strings.Split(state, "\n"), about), "\n")
}

// finish repeats the command without faults and expects success. The first try may exit
// with 4 if the remote host still cleans up.
func (r *round) finish() {
	t := r.t
	for try := 0; ; try++ {
		r.logf("repeat without faults")
		o := start(t, r.work.argv()...).wait(t)
		r.logf("%s", o)
		fmt.Printf("chaos: repeat %d %s\n", o.code, o.resumption())
		if o.code == 0 {
			r.work.requireComplete(t)
			return
		}
		require.Equal(t, 4, o.code, "the same command does not complete the transfer: %s", o)
		require.True(t, try == 0 && !r.c.patient, "the transfer does not complete: %s", o)
		requireNoLeftovers(t)
	}
}

// footprint lists temporary files, devices, pools and top-level datasets of both hosts.
func footprint(t *testing.T) string {
	t.Helper()
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	var b strings.Builder
	for _, dir := range []string{"/tmp", "/var/tmp", "/run", home, "/dev/shm", "/dev/mapper", cache, filepath.Join(cache, "zxfer"), journals} {
		entries, _ := os.ReadDir(dir) // the directory may not exist
		for _, e := range entries {
			if name := filepath.Join(dir, e.Name()); !strings.HasPrefix(name, cache) && !strings.HasPrefix(name, os.TempDir()+"/Test") && name != journals {
				b.WriteString(name + "\n")
			}
		}
	}
	b.WriteString(run(t, "zpool", "list", "-H", "-o", "name,health"))
	b.WriteString(zfsCmd(t, "list", "-H", "-o", "name", "-d", "1"))
	return b.String()
}
