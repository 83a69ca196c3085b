package roundtrips

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/runner"
)

// jobOf is the format of a job: its source, and more keys.
const jobOf = `[[job]]
name = "j"
source = %q
%s
retention = { last = 2 }
`

// targetOf is the format of a target: its name and its dataset.
const targetOf = `[[job.target]]
name = %q
to = %q
retention = { last = 3 }
`

const takes = `snapshots = { take = "s_%Y-%m-%d_%H:%M:%S" }`

// replication is a job that a scenario runs.
type replication struct {
	*world
	job replicate.Job
	dir string
}

// replication returns a job that replicates from a dataset to targets.
func (w *world) replication(source, keys string, targets ...string) *replication {
	text := fmt.Sprintf(jobOf, source, keys)
	for i, to := range targets {
		text += fmt.Sprintf(targetOf, fmt.Sprint("t", i), to)
	}
	f, err := jobfile.Parse("j.toml", []byte(text))
	require.NoError(w.t, err)
	return &replication{world: w, job: f.Jobs[0], dir: w.t.TempDir()}
}

// run measures a run after an hour.
func (r *replication) run() (float64, string) {
	time.Sleep(time.Hour)
	return r.measure(func(*hosts.Set) error {
		run := runner.New(r.dir, r.world, time.Now, func(s string) { r.t.Log(s) })
		_, err := run.Run(r.t.Context(), &r.job, true)
		require.NoError(r.t, run.Env.Close())
		return err
	})
}

func replicateTo(t *testing.T) []measured {
	return replications(t, "replicate run to a remote host", "", "beta:", []float64{8, 4, 1, 5, 4, 4})
}

func replicateFrom(t *testing.T) []measured {
	return replications(t, "replicate run from a remote host", "beta:", "", []float64{10, 6, 2, 7, 6, 6})
}

// replications measures jobs from the host source to the host target, "" or "beta:". most has the
// permitted round trips of each.
func replications(t *testing.T, name, source, target string, most []float64) (all []measured) {
	add := func(what string, trips float64, timeline string) {
		all = append(all, measured{name + ", " + what, trips, most[len(all)], timeline})
	}
	scenario := func(f func(w *world)) { inWorld(t, f) }
	scenario(func(w *world) {
		r := w.replication(source+"tank/a", takes, target+"vault/a")
		trips, timeline := r.run()
		add("first full send of an empty dataset", trips, timeline)
		for range 4 { // until retention destroys snapshots on both sides
			w.write("tank/a")
			trips, timeline = r.run()
		}
		require.Contains(t, timeline, "destroy")
		add("increment of 64 KiB", trips, timeline)
	})
	scenario(func(w *world) {
		r := w.replication(source+"tank/a", strings.Replace(takes, "}", ", skip_unchanged = true }", 1), target+"vault/a")
		w.write("tank/a")
		for range 2 {
			r.run()
		}
		trips, timeline := r.run()
		require.NotContains(t, timeline, "transfer")
		add("nothing new", trips, timeline)
	})
	scenario(func(w *world) {
		for _, h := range w.hosts() {
			for p, v := range map[string]string{"encryption": "aes-256-gcm", "keystatus": "unavailable", "encryptionroot": "tank/a"} {
				h.Set("tank/a", p, v)
			}
		}
		r := w.replication(source+"tank/a", takes, target+"vault/a")
		r.run()
		w.write("tank/a")
		trips, timeline := r.run()
		add("encrypted increment", trips, timeline)
	})
	scenario(func(w *world) {
		r := w.replication(source+"tank/a", takes, target+"vault/a", target+"vault/b")
		r.run()
		w.write("tank/a")
		trips, timeline := r.run()
		add("increment to two targets on one host", trips, timeline)
	})
	scenario(func(w *world) {
		datasets := []string{"tank/a"}
		for i := range 9 {
			datasets = append(datasets, fmt.Sprint("tank/a/", i))
			for _, h := range w.hosts() {
				h.Create(datasets[i+1], nil)
			}
		}
		r := w.replication(source+"tank/a", "recursive = true\nparallel = 10\n"+takes, target+"vault/a")
		r.run()
		w.write(datasets...)
		trips, timeline := r.run()
		add("increments of ten datasets", trips, timeline)
	})
	return all
}

// write writes 64 KiB to datasets of both hosts.
func (w *world) write(datasets ...string) {
	for _, h := range w.hosts() {
		for _, d := range datasets {
			h.Write(d, make([]byte, 64<<10))
		}
	}
}
