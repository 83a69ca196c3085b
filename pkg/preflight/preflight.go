// Package preflight checks a planned transfer against what is known of both
// hosts, before anything is changed. Checks are a table: an id, a title, and
// a function from facts to findings with evidence and remedy.
//
// It is pure: it looks at nothing by itself and decides nothing but how
// serious a finding is.
package preflight

import (
	"slices"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Severity orders findings.
type Severity string

// The severities. Fail stops a transfer before anything was changed.
const (
	OK   Severity = "ok"
	Note Severity = "note"
	Warn Severity = "warn"
	Fail Severity = "fail"
)

// Finding is what a check found.
type Finding struct {
	ID       string   `json:"id"`
	Host     string   `json:"host"`
	Severity Severity `json:"severity"`
	Summary  string   `json:"summary"`
	Evidence string   `json:"evidence,omitempty"` // what was read, and where
	Remedy   string   `json:"remedy,omitempty"`   // a command where there is one
}

// Host is one end, as far as checks need it.
type Host struct {
	Name   string // as messages name it
	ZFS    string // kernel module version, "2.3.9-1"; "" = unknown
	Kernel string
	User   string
	Root   bool
}

// Input is everything that the checks of a send look at.
type Input struct {
	Source, Target               Host
	SourceListing, TargetListing zfs.Listing
	Plan                         plan.Plan
}

// Check is one row of the table.
type Check struct {
	ID    string
	Title string
	eval  func(*Input) []Finding
}

// Checks are all checks of a send, in the order in which they are shown.
func Checks() []Check {
	return []Check{
		{"pool-health", "The target's pool takes writes", poolHealth},
		{"space", "The target has room for what will arrive", space},
		{"pool-full", "The target's pool is not nearly full", poolFull},
		{"permissions", "The users may do what the plan needs", permissions},
		{"zfs-defects", "Both ZFS versions are free of defects that the plan would meet", defects},
	}
}

// Send evaluates all checks.
func Send(in Input) []Finding {
	var out []Finding
	for _, c := range Checks() {
		for _, f := range c.eval(&in) {
			f.ID = c.ID
			out = append(out, f)
		}
	}
	return out
}

// Blocking returns the findings that forbid the transfer, but for those whose
// ids are to be skipped.
func Blocking(findings []Finding, skip []string) []Finding {
	var out []Finding
	for _, f := range findings {
		if f.Severity == Fail && !slices.Contains(skip, f.ID) {
			out = append(out, f)
		}
	}
	return out
}
