// Command jobs runs replication jobs between pools in memory, for scripts/bench:
//
//	jobs JOBS DATASETS DIR [SNAPSHOTS]
//
// DATASETS is the number in each job, and SNAPSHOTS the number of earlier hourly snapshots of each
// dataset. The command runs all jobs one after the other: first with empty targets, then with a
// change in each dataset, then without changes. Then it checks them. After each pass, it prints a
// line:
//
//	pass=first datasets=10000 us=1200000 cpu_ms=1100 mib=96
//
// The memory is the highest so far, and includes all pools. DIR gets the job file,
// replicate.toml, and the jobs' records, state.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/zfs/zfsmem"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "jobs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 3 && len(args) != 4 {
		return fmt.Errorf("unknown arguments %q", args)
	}
	jobs, err := strconv.Atoi(args[0])
	datasets, derr := strconv.Atoi(args[1])
	snapshots, serr := strconv.Atoi(append(args, "0")[3])
	if err := errors.Join(err, derr, serr); err != nil {
		return err
	}
	dir := args[2]
	text := jobFile(jobs)
	if err := os.WriteFile(filepath.Join(dir, "replicate.toml"), []byte(text), 0o644); err != nil {
		return err
	}
	file, err := jobfile.Parse("replicate.toml", []byte(text))
	if err != nil {
		return err
	}
	now := time.Now().Add(-2 * time.Hour)
	var worlds []*world
	for i := range jobs {
		worlds = append(worlds, newWorld(fmt.Sprintf("src/j%d", i), datasets, &now))
		if err := worlds[i].addSnapshots(&file.Jobs[i], snapshots); err != nil {
			return err
		}
	}
	for _, pass := range []string{"first", "changed", "unchanged", "check"} {
		if pass == "first" || pass == "changed" {
			for _, w := range worlds {
				w.write(pass)
			}
		}
		began := time.Now()
		cpu, _ := usage()
		for i, w := range worlds {
			do := w.run
			if pass == "check" {
				do = w.check
			}
			if err := do(ctx, &file.Jobs[i], filepath.Join(dir, "state")); err != nil {
				return err
			}
		}
		after, mib := usage()
		fmt.Printf("pass=%s datasets=%d us=%d cpu_ms=%d mib=%d\n", pass, jobs*datasets, time.Since(began).Microseconds(), (after - cpu).Milliseconds(), mib)
		if pass != "unchanged" {
			now = now.Add(time.Hour) // the last pass is now, so that nothing is late
		}
	}
	return nil
}

// jobFile returns a job file.
func jobFile(jobs int) string {
	var b strings.Builder
	for i := range jobs {
		fmt.Fprintf(&b, `[[job]]
name = "job%d"
source = "src/j%d"
recursive = true
schedule = "hourly"
snapshots = { take = "zxfer_{job}_%%Y-%%m-%%d_%%H:%%M:%%S", skip_unchanged = true }
retention = { last = 10, hourly = 36, daily = 14 }
target = [{ name = "vault", to = "dst/j%d", retention = { last = 10, daily = 30 } }]
`, i, i, i)
	}
	return b.String()
}

// world is a host with one job's datasets. It connects to itself.
type world struct {
	memory   *zfsmem.Host
	datasets []string
	now      *time.Time
}

func newWorld(root string, datasets int, now *time.Time) *world {
	w := &world{memory: zfsmem.New("src", "dst"), now: now}
	w.memory.Now = func() int64 { return now.Unix() }
	for i := range datasets {
		name := root
		if i > 0 {
			name += fmt.Sprintf("/%06d", i)
		}
		w.memory.Create(name, nil)
		w.datasets = append(w.datasets, name)
	}
	return w
}

// write changes each dataset.
func (w *world) write(text string) {
	for _, name := range w.datasets {
		w.memory.Write(name, []byte(text))
	}
}

// addSnapshots adds hourly snapshots of the job to each dataset.
func (w *world) addSnapshots(j *replicate.Job, number int) error {
	naming, err := replicate.NewNaming(j.Snapshots.Take, j.Name)
	if err != nil {
		return err
	}
	var names []string
	for i := range number {
		names = append(names, naming.At(w.now.Add(-time.Duration(number-i)*time.Hour)))
	}
	for _, name := range w.datasets {
		w.memory.AddSnapshots(name, names)
	}
	return nil
}

// check checks a job.
func (w *world) check(ctx context.Context, j *replicate.Job, stateDir string) error {
	r := runner.New(stateDir, w, func() time.Time { return *w.now }, func(string) {})
	defer r.Env.Close()
	p, err := r.Preview(ctx, j)
	if err == nil {
		err = p.Err()
	}
	return err
}

// run runs a job as a process of its own would.
func (w *world) run(ctx context.Context, j *replicate.Job, stateDir string) error {
	r := runner.New(stateDir, w, func() time.Time { return *w.now }, func(string) {})
	defer r.Env.Close()
	run, err := r.Run(ctx, j, true)
	if err == nil && run.Error != "" {
		err = errors.New(run.Error)
	}
	return err
}

// Open connects to the host. The runner closes the connection.
func (w *world) Open(context.Context, hosts.Address) (hosts.Host, error) {
	return hosts.On(w.memory, "test", func(string) {}), nil
}

// usage returns the processor time of this process, and its highest memory in MiB.
func usage() (cpu time.Duration, mib int64) {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return 0, 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), used.Maxrss >> 10
}
