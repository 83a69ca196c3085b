// Package preflight checks a planned transfer against what is known of both
// hosts, before anything is changed. Checks are a table: an id, a title, and
// a function from facts to findings with evidence and remedy.
//
// It is pure: it looks at nothing by itself, and changes nothing. What a plan
// cannot do at all is a conflict of package plan, not a finding.
package preflight

import (
	"cmp"
	"slices"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Severity says how serious a finding is.
type Severity string

// The severities, in order. Fail stops a transfer before anything was changed.
const (
	OK   Severity = "ok"
	Note Severity = "note"
	Warn Severity = "warn"
	Fail Severity = "fail"
)

// Compare orders severities, the more serious last; what is none of them
// comes first.
func (s Severity) Compare(t Severity) int {
	all := []Severity{OK, Note, Warn, Fail}
	return cmp.Compare(slices.Index(all, s), slices.Index(all, t))
}

// Finding is what a check found.
type Finding struct {
	ID       string   `json:"id"` // of the check
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
	User   string // effective; "" = unknown
	Root   bool
}

// Input is everything that the checks of a send look at. Estimates are those
// of the plan's steps.
type Input struct {
	Source, Target               Host
	SourceListing, TargetListing zfs.Listing
	Plan                         plan.Plan
}

// Check is one row of the table.
type Check struct {
	ID    string // stable: users name it to --skip-check
	Title string // what holds where the check finds nothing
	Docs  string // where to read on
	find  func(*Input) []Finding
}

// Checks are all checks of a send, in the order in which they are shown.
func Checks() []Check {
	return []Check{
		{"pool-health", "Both pools answer, and the target's takes writes", "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zpoolconcepts.7.html", poolHealth},
		{"space", "The target has room for what will arrive", "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zfsprops.7.html", space},
		{"pool-full", "The target's pool is not nearly full", "https://openzfs.github.io/openzfs-docs/Performance%20and%20Tuning/Workload%20Tuning.html", poolFull},
		{"permissions", "The users may do what the plan needs", "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-allow.8.html", permissions},
		{"keys", "What arrives can be read there without more ado", "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-load-key.8.html", keys},
		{"zfs-defects", "Both ZFS versions are free of defects that the plan would meet", "https://github.com/openzfs/zfs/releases", defects},
	}
}

// Send evaluates all checks.
func Send(in Input) []Finding {
	out := []Finding{}
	for _, c := range Checks() {
		for _, f := range c.find(&in) {
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

func command(argv ...string) string { return zfs.CommandLine(argv) }
