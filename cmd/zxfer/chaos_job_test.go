package main

import (
	"fmt"
	"testing"

	"zxfer/pkg/replicate"
)

// chaosJob runs zxfer replicate with a job file in a chaos round.
type chaosJob struct {
	*datasets
	r *replication
	// holds and bookmarks are the settings in the job file.
	holds, bookmarks string
}

func newChaosJob(t *testing.T, c chaos) *chaosJob {
	t.Helper()
	j := &chaosJob{datasets: newDatasets(t, c)}
	j.holds, j.bookmarks = choose(j.rand, "both", "both", "source", "target", "none"), choose(j.rand, "sent", "none")
	wire := ""
	if c.direction != "local" {
		wire = fmt.Sprintf("wire = %q\ntrusted_link = %t", c.wire, c.wire == "plain")
	}
	j.r = newReplication(t, fmt.Sprintf(`
[[job]]
name = "chaos"
source = %q
recursive = true
parallel = %d
retries = %d
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ", adopt = ["s*"] }
holds = %q
bookmarks = %q
[job.transfer]
bandwidth = "%dMiB"
%s
[[job.target]]
name = "near"
to = %q
`, j.p.from+j.src, 1+j.rand.IntN(3), j.rand.IntN(6), j.holds, j.bookmarks, c.rate, wire, j.p.to+j.dst))
	if j.rand.IntN(2) == 0 {
		mustZxfer(t, j.argv()...)
		j.change(t, c.mib)
	}
	return j
}

func (j *chaosJob) argv() []string {
	return []string{"replicate", "run", "-c", j.r.file, "--state-dir", j.r.state, "chaos"}
}

// requireComplete fails the test unless the target has all source snapshots of every dataset. The
// configured holds and bookmarks must be on the most recent snapshot.
func (j *chaosJob) requireComplete(t *testing.T) {
	t.Helper()
	seen := j.checkedProperties(t)
	j.requireSoundIn(t, seen)
	j.loadKeys(t, seen)
	for _, b := range j.below {
		names := seen.versions(j.src+b, "@")
		j.requireCopy(t, b, seen, names)
		newest := names[len(names)-1]
		var holds, bookmarks []string
		for end, name := range map[string]string{"source": j.src + b, "target": j.dst + b} {
			if j.holds == "both" || j.holds == end {
				holds = append(holds, name+"@"+newest+" "+replicate.Tag("chaos", "near"))
			}
		}
		if j.bookmarks == "sent" {
			bookmarks = []string{"zxfer:chaos:" + newest}
		}
		j.requireHoldsAndBookmarks(t, b, seen, holds, bookmarks)
	}
}
