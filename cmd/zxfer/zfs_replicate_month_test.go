package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// monthDatasets returns the datasets of the month's job, relative to its source.
func monthDatasets() []string { return []string{"", "/a", "/a/b"} }

// mainMonth runs a job repeatedly in one process, as its timer would, with a clock that
// jumps between runs. Before each run it changes a file in every dataset. It prints the
// number and the exit code of each run.
//
//	zxfer-month FILE STATE SOURCE MOUNTPOINT BEGIN STEP FIRST LAST
func mainMonth() {
	arg := os.Args[1:]
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	begin, step := number(arg[4]), number(arg[5])
	var now time.Time
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, now: func() time.Time { return now }}
	o := &replicateOptions{file: arg[0], stateDir: arg[1]}
	f, err := o.load()
	if err != nil {
		panic(err)
	}
	r, _ := o.runner(a)
	for i := number(arg[6]); i <= number(arg[7]); i++ {
		now = time.Unix(begin+i*step, 0)
		for _, d := range monthDatasets() {
			text := fmt.Appendf(nil, "%s%s in run %d\n", arg[2], d, i)
			if err := os.WriteFile(filepath.Join(arg[3], d, fmt.Sprintf("f%d", i%50)), text, 0o600); err != nil {
				panic(err)
			}
		}
		code := 0
		if _, err := r.Run(context.Background(), &f.Jobs[0], true); err != nil {
			code = int(fault.ClassOf(err))
			fmt.Fprintln(os.Stderr, err)
		}
		fmt.Printf("%d %d\n", i, code)
	}
	_ = r.Env.Close() // the process ends
}

// TestZFSReplicateMonth simulates a month of a job with two targets, ten days below the
// long level, with kills, link cuts and an unreachable target. It expects exactly the
// snapshots that the retention policies keep, equal contents, and no second full send.
func TestZFSReplicateMonth(t *testing.T) {
	lab(t)
	// ZXFER_MONTH_STEP=1h takes twelve times as long.
	step, days, offlineFrom, onlineFrom := 12*time.Hour, 30, 8, 18
	if !testenv.Long() {
		step, days, offlineFrom, onlineFrom = 24*time.Hour, 10, 4, 6
	}
	if s := os.Getenv("ZXFER_MONTH_STEP"); s != "" {
		var err error
		step, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "recordsize=16k", src)
	for _, d := range monthDatasets()[1:] {
		zfsCmd(t, "create", src+d)
	}
	near := retention.Grid{Hourly: 24, Daily: 30, Weekly: 4}
	far := retention.Grid{Last: 5, Daily: 40}
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	text := `
[[job]]
name = "month"
source = %q
recursive = true
schedule = "hourly"
parallel = 3
retries = 2
snapshots = { take = "m-%%Y%%m%%d%%H%%M" }
retention = { hourly = 36, daily = 14 }
[[job.target]]
name = "near"
to = "beta:%s/near"
retention = { hourly = 24, daily = 30, weekly = 4 }
[[job.target]]
name = "far"
to = "beta:%s/far"
retention = { last = 5, daily = 40 }
transfer = { rsh = "%s" }
`
	reachable, unreachable := "ssh -F "+labDir+"/ssh_config -o ConnectTimeout=2", "/bin/false"
	file := func(rsh string) string { return fmt.Sprintf(text, src, dst, dst, rsh) }
	r := newReplication(t, file(reachable))
	bin := filepath.Join(filepath.Dir(alphaBin), "zxfer-month")
	if _, err := os.Stat(bin); err != nil {
		require.NoError(t, os.Link(alphaBin, bin))
	}
	begin := time.Date(2026, 10, 28, 0, 10, 0, 0, time.UTC)
	runs := int(time.Duration(days) * 24 * time.Hour / step)
	perDay := int(24 * time.Hour / step)
	interval := max(perDay, 4) // runs between two faults, on average
	random := rand.New(rand.NewPCG(11, 2026))
	kills, cuts, failed := 0, 0, 0

	started := time.Now()
	// runJobs executes the runs from first to last. After a kill it continues with the next
	// run.
	runJobs := func(first, last int, faults bool) {
		for first <= last {
			end := last
			fault := ""
			if faults {
				end = min(last, first+interval/2+random.IntN(interval))
				fault = []string{"kill", "cut"}[(kills+cuts)%2]
			}
			p := startAs(t, nil, bin, r.file, r.state, src, mountpoint(t, src), fmt.Sprint(begin.Unix()), fmt.Sprint(int(step.Seconds())), fmt.Sprint(first), fmt.Sprint(end))
			if fault != "" {
				// Inject the fault in the middle of a run.
				deadline := time.After(testenv.Timeout())
				for strings.Count(p.stdout.String(), "\n") < 1 {
					select {
					case <-deadline:
						t.Fatalf("the first run has not ended: %s", p.stderr)
					case <-time.After(20 * time.Millisecond):
					}
				}
				time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
			}
			switch fault {
			case "kill":
				kills++
				_ = p.cmd.Process.Kill() // it may have ended already
			case "cut":
				cuts++
				run(t, labScript(), "cut")
				time.Sleep(time.Duration(random.IntN(2500)) * time.Millisecond)
				run(t, labScript(), "mend")
			}
			<-p.done
			t.Logf("%s runs %d to %d: %s %s", time.Since(started).Round(time.Second), first, end, fault, strings.ReplaceAll(strings.TrimSpace(p.stdout.String()), "\n", ", "))
			out := strings.Fields(p.stdout.String())
			done := 0
			for i := 0; i+1 < len(out); i += 2 {
				n, err := strconv.Atoi(out[i])
				require.NoError(t, err)
				done = n
				if out[i+1] != "0" {
					failed++
				}
			}
			if fault == "kill" {
				first = max(first, done+1) // a killed run is not repeated
				if done+1 <= end {
					first = done + 2
				}
				continue
			}
			require.Equal(t, end, done, "%s", p.stderr)
			first = end + 1
		}
	}
	runJobs(0, offlineFrom*perDay-1, true)
	r.write(t, file(unreachable)) // the far target is unreachable
	runJobs(offlineFrom*perDay, onlineFrom*perDay-1, false)
	r.write(t, file(reachable))
	runJobs(onlineFrom*perDay, runs-3, true)
	failedBefore := failed
	runJobs(runs-2, runs-1, false) // the last runs are undisturbed
	require.Equal(t, failedBefore, failed, "one of the last runs failed")
	require.Positive(t, kills)
	require.Positive(t, cuts)
	t.Logf("%d runs every %s, %d killed, link cut %d times, %d runs failed in part", runs, step, kills, cuts, failed)

	// Apply the retention policies to all snapshots that were ever taken.
	log, err := statedir.Peek(r.state, "month").Runs(1 << 20)
	require.NoError(t, err)
	fullSends := map[string]int{}
	var points []retention.Point
	for i := range runs {
		at := begin.Add(time.Duration(i) * step)
		points = append(points, retention.Point{Name: at.Format("m-200601021504"), Time: at, Order: uint64(i)})
	}
	taken := map[string]bool{}
	for _, rec := range log {
		if rec.Snapshots > 0 {
			taken[rec.Started.Format("m-200601021504")] = true
		}
	}
	// A killed run leaves no record. If it took snapshots, they are on one of the hosts, or
	// no policy keeps them.
	for _, d := range monthDatasets() {
		for _, side := range []string{src + d, dst + "/near" + d, dst + "/far" + d} {
			for _, name := range snapshotNames(t, side) {
				taken[name] = true
			}
		}
	}
	points = slices.DeleteFunc(points, func(p retention.Point) bool { return !taken[p.Name] })
	for _, d := range monthDatasets() {
		require.Equal(t, slices.Sorted(maps.Keys(near.Keep(points))), snapshotNames(t, dst+"/near"+d), "near%s", d)
		require.Equal(t, slices.Sorted(maps.Keys(far.Keep(points))), snapshotNames(t, dst+"/far"+d), "far%s", d)
		require.Equal(t, slices.Sorted(maps.Keys((&retention.Grid{Hourly: 36, Daily: 14}).Keep(points))), snapshotNames(t, src+d), "source%s", d)
		newest := points[len(points)-1].Name
		sameSnapshot(t, src+d+"@"+newest, dst+"/near"+d+"@"+newest)
		sameSnapshot(t, src+d+"@"+newest, dst+"/far"+d+"@"+newest)
		// There is one copy. The records below show the number of full sends.
		require.Equal(t, 1, strings.Count(zfsCmd(t, "list", "-H", "-o", "name", dst+"/near"+d), "\n"))
		for _, side := range []string{src + d, dst + "/near" + d, dst + "/far" + d} {
			var held []string
			for _, h := range holdsOf(t, side) {
				if strings.HasPrefix(h, side+"@") {
					held = append(held, h)
				}
			}
			want := []string{side + "@" + newest + " " + replicate.Tag("month", "near"), side + "@" + newest + " " + replicate.Tag("month", "far")}
			switch side {
			case dst + "/near" + d:
				want = want[:1]
			case dst + "/far" + d:
				want = want[1:]
			}
			require.ElementsMatch(t, want, held)
		}
	}
	for _, rec := range log {
		for _, tr := range rec.Targets {
			for _, dr := range tr.Datasets {
				fullSends[dr.Source+" to "+tr.Target] += dr.Full
			}
		}
	}
	for where, n := range fullSends {
		require.LessOrEqual(t, n, 1, "%s was sent in full %d times", where, n)
	}
	requireNoLeftovers(t)
}

// sameSnapshot compares the files of two snapshots. Unlike a mounted dataset, a snapshot
// contains no files of descendants.
func sameSnapshot(t *testing.T, a, b string) {
	t.Helper()
	dirs := []string{t.TempDir(), t.TempDir()}
	for i, s := range []string{a, b} {
		run(t, "mount", "-t", "zfs", s, dirs[i])
		defer run(t, "umount", dirs[i])
	}
	entries, err := os.ReadDir(dirs[0])
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	run(t, "diff", "-r", dirs[0], dirs[1])
}
