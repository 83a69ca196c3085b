package replicate

import (
	"zxfer/pkg/replicate/calendar"
)

// Mirror destroys on a target what was deleted on the source.
type Mirror struct {
	// Limit is the maximum number of snapshots per dataset, and of datasets, that one run
	// destroys; nil = 100.
	Limit *int `toml:"limit,omitempty"`
	// Gone is the grace period before a run destroys an orphan. 0, written "keep", means never.
	Gone calendar.Grace `toml:"gone,omitempty"`
}

// LimitOrDefault returns Limit or its default.
func (m *Mirror) LimitOrDefault() int { return valueOr(m.Limit, defaultPruneLimit) }

// MirrorsSnapshots reports whether the mirror destroys snapshots. A retention grid replaces that.
func (t *Target) MirrorsSnapshots() bool { return t.Mirror != nil && t.Retention == nil }

// MirrorsDatasets reports whether the mirror destroys orphans.
func (t *Target) MirrorsDatasets() bool { return t.Mirror != nil && t.Mirror.Gone != 0 }
