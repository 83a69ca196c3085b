package status

import (
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
)

// judgeReceived makes a copy of a relay late if its source gets no new snapshots, and reports whether it
// is late for this reason.
func (j *JobStatus) judgeReceived(d *DatasetStatus, of *replicate.Job, r *replicate.Received, due *deadline) bool {
	if r == nil || of.Snapshots.ReceivedFrom == "" {
		return false
	}
	from, late := due.judgeReceived(d, time.Duration(of.Snapshots.Late), r.Since)
	if late && !from.IsZero() && d.Lag > j.Lag {
		j.Lag = d.Lag
		j.LagWarning, j.LagCritical = due.levels(from)
	}
	return late
}

// addSilence adds the reasons why datasets of a relay get no new snapshots.
func (j *JobStatus) addSilence(of *replicate.Job, st *statedir.State, datasets []string) {
	job, _, _ := strings.Cut(of.Snapshots.ReceivedFrom, ":")
	nothing, unconfirmed, promoted := &Problem{State: Late}, &Problem{State: Late}, &Problem{State: Late}
	since, arrived := map[*Problem]time.Time{}, 0
	for _, name := range datasets {
		p, r := nothing, st.Datasets[name].Received
		switch {
		case r.Promoted:
			p = promoted
		case r.State == decide.ReceivedUnconfirmed:
			p, arrived = unconfirmed, arrived+r.Unconfirmed
		}
		p.Datasets = append(p.Datasets, name)
		if at := since[p]; at.IsZero() || r.Since.Before(at) {
			since[p] = r.Since
		}
	}
	for _, p := range []*Problem{unconfirmed, nothing, promoted} {
		if len(p.Datasets) == 0 {
			continue
		}
		j.Problems = append(j.Problems, p)
		from := since[p].Local().Format(time.DateTime)
		if p == promoted {
			p.Error = fmt.Sprintf("no snapshot was taken since %s: a fail over made it the source", from)
			p.Hint = "replace snapshots.received_from of job " + of.Name + " with snapshots.take"
			continue
		}
		p.Error = fmt.Sprintf("%s has confirmed no new snapshot since %s", of.Snapshots.ReceivedFrom, from)
		p.Hint = fmt.Sprintf("on the host of job %s: zxfer replicate status %s\nif that job was renamed or removed, change snapshots.received_from", job, job)
		if p == unconfirmed {
			p.Error += fmt.Sprintf(", but %d arrived", arrived)
			p.Hint += "\nthat job needs holds = \"both\" or \"target\""
		} else {
			p.Hint += "\nif it takes snapshots less often, set snapshots.late"
		}
	}
}
