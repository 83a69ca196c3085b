package decision

import (
	"fmt"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// Pruning lists what a run destroys on one side.
type Pruning struct {
	Side      string   `json:"side"`      // replicate.SourceSide or target name
	Remove    []string `json:"remove"`    // full names
	Kept      int      `json:"kept"`      // snapshots in the scope
	Held      []string `json:"held"`      // kept because of holds or clones
	Protected int      `json:"protected"` // bases of increments, and for interrupted receives
	// Untrusted are snapshots with untrusted dates.
	Untrusted []string `json:"doubted,omitempty"`
	Error     string   `json:"error,omitempty"`
	Hint      string   `json:"hint,omitempty"`
	// Mirror means that the mirror decided, not a grid.
	Mirror bool `json:"mirror,omitempty"`
	// Datasets are orphans to destroy.
	Datasets []string `json:"remove_datasets,omitempty"`
	// Refused means that Remove exceeds a limit. Then nothing is destroyed.
	Refused bool `json:"refused,omitempty"`

	// KeepReasons holds the reasons to keep snapshots in the scope, by full name. It omits
	// datasets without changes since an earlier run.
	KeepReasons map[string]retention.Reason `json:"-"`
	// Removed counts the destroyed Datasets.
	Removed int `json:"-"`
	// OrphanRequests has the requests to destroy Datasets.
	OrphanRequests []zfs.Orphan `json:"-"`
	// Results holds new knowledge about each checked dataset, by the name of its original.
	Results map[string]*PruneResult `json:"-"`
}

// PruneResult is knowledge about a dataset on one side.
type PruneResult struct {
	History *retention.History
	// Fingerprint is the fingerprint of the decision's input if nothing is to destroy. While it is
	// the same, later runs skip the dataset. "" = something is, or will be, to destroy.
	Fingerprint string
	// Waiting means that time alone will make something prunable.
	Waiting bool
	// Original is the GUID of the original of a mirror's copy; 0 = unchanged.
	Original uint64
}

// Rule returns the name of the rule that decided, for messages.
func (p *Pruning) Rule() string {
	if p.Mirror {
		return "mirror"
	}
	return "retention"
}

// Failed returns the error of the pruning, or nil.
func (p *Pruning) Failed() error {
	switch {
	case p.Error == "":
		return nil
	case p.Refused:
		return fault.Refusef(p.Hint, "%s: %s", p.Side, p.Error)
	}
	return fault.Failf(p.Hint, "%s: %s", p.Side, p.Error)
}

// Keep records a snapshot that has a hold or a clone.
func (p *Pruning) Keep(name string) {
	p.Held = append(p.Held, name)
	p.Kept++
}

// Complete records that the pruning is complete.
func (p *Pruning) Complete() {
	for _, l := range p.Results {
		if l.History != nil && !l.Waiting {
			l.History.Complete()
		}
	}
}

// Record saves the new knowledge of p in the state. It does not depend on whether Remove succeeds.
func (p *Pruning) Record(s *replicate.State) {
	for source, l := range p.Results {
		known := s.Dataset(source)
		if l.History != nil {
			if known.Histories == nil {
				known.Histories = map[string]*retention.History{}
			}
			known.Histories[p.Side] = l.History
		}
		if l.Original != 0 {
			s.Copy(source, p.Side).OriginalGUID = l.Original
		}
		switch {
		case l.Fingerprint != "":
			if known.Pruned == nil {
				known.Pruned = map[string]string{}
			}
			known.Pruned[p.Side] = l.Fingerprint
		case l.Waiting:
			delete(known.Pruned, p.Side)
		}
	}
}

// refuse sets the error of p, which then destroys nothing.
func (p *Pruning) refuse(format string, args ...any) {
	p.Refused, p.Error = true, "nothing was destroyed: "+fmt.Sprintf(format, args...)
}
