// Package finding defines the results of checks before a job starts.
//
// Nouns:
//   - finding: a fact about a plan, host, link or device that the user should know
//   - severity: its seriousness; a finding at fail level blocks the job
//   - remedy: a command or action that resolves the finding
//   - refusal: the error that blocking findings cause
//
// It is pure. Packages plan, preflight and device create findings; report shows them.
package finding

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/fault"
)

// Severity is the seriousness of a finding.
type Severity string

// The severities in ascending order. Fail stops a job before any change.
const (
	OK   Severity = "ok"
	Note Severity = "note"
	Warn Severity = "warn"
	Fail Severity = "fail"
)

// Compare orders severities ascending. Unknown values come first.
func (s Severity) Compare(t Severity) int {
	all := []Severity{OK, Note, Warn, Fail}
	return cmp.Compare(slices.Index(all, s), slices.Index(all, t))
}

// Finding is one result of a check or of the planner.
type Finding struct {
	ID       string   `json:"id"`   // of the check or the kind of conflict
	Host     string   `json:"host"` // host concerned, "" if Summary names the hosts
	Severity Severity `json:"severity"`
	Source   string   `json:"source,omitempty"` // datasets concerned
	Target   string   `json:"dataset,omitempty"`
	Summary  string   `json:"summary"`
	Evidence string   `json:"evidence,omitempty"` // the value read, and its source
	Remedy   string   `json:"remedy,omitempty"`   // a command if there is one
	// Consent means that the user may permit it with the flags in Remedy.
	Consent bool `json:"consent,omitempty"`
	// Unchecked means that the host's policy forbids the check.
	Unchecked bool `json:"-"`
	// The most recent versions of Source and Target, newest first, as evidence.
	SourceVersions []string `json:"source_versions,omitempty"`
	TargetVersions []string `json:"target_versions,omitempty"`
}

// Text returns the finding in one line, with its host.
func (f Finding) Text() string {
	if f.Host == "" {
		return f.Summary
	}
	return f.Host + ": " + f.Summary
}

// Err returns the finding as a refusal.
func (f Finding) Err() error { return fault.Refusef(f.Remedy, "%s", f.Text()) }

// Refusal joins blocking findings into one error, nil if there are none.
func Refusal(forbid []Finding) error {
	var errs []error
	for _, f := range forbid {
		errs = append(errs, f.Err())
	}
	return errors.Join(errs...)
}

// Failed returns the findings at fail level.
func Failed(all []Finding) []Finding {
	var out []Finding
	for _, f := range all {
		if f.Severity == Fail {
			out = append(out, f)
		}
	}
	return out
}

// JoinFirst joins the first most items of a list and counts the others.
func JoinFirst(list []string, most int) string {
	if more := len(list) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), more)
	}
	return strings.Join(list, ", ")
}
