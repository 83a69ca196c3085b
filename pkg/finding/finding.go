// Package finding is what is found out before a job, and stands in its way or
// is worth knowing: of a plan, of the hosts and the link, of devices. All that
// judge give it, all that show take it.
//
// It is pure, and judges nothing by itself.
package finding

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/fault"
)

// Severity says how serious a finding is.
type Severity string

// The severities, in order. Fail stops a job before anything was changed.
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

// Finding is one thing that was found.
type Finding struct {
	ID       string   `json:"id"`   // of the check, or of the kind of conflict
	Host     string   `json:"host"` // that it is about, "" where Summary names all
	Severity Severity `json:"severity"`
	Source   string   `json:"source,omitempty"` // the datasets that it is about
	Target   string   `json:"dataset,omitempty"`
	Summary  string   `json:"summary"`
	Evidence string   `json:"evidence,omitempty"` // what was read, and where
	Remedy   string   `json:"remedy,omitempty"`   // a command where there is one
	// Consent is that the user may permit it, with the flags that Remedy names.
	Consent bool `json:"consent,omitempty"`
	// The newest versions of Source and Target, newest first, as evidence.
	SourceVersions []string `json:"source_versions,omitempty"`
	TargetVersions []string `json:"target_versions,omitempty"`
}

// Text is the finding in one line: what, and on which host.
func (f Finding) Text() string {
	if f.Host == "" {
		return f.Summary
	}
	return f.Host + ": " + f.Summary
}

// Err is the refusal of what the finding forbids.
func (f Finding) Err() error { return fault.Refusef(f.Remedy, "%s", f.Text()) }

// Refusal is the error of what forbids a job, nil where that is nothing.
func Refusal(forbid []Finding) error {
	var errs []error
	for _, f := range forbid {
		errs = append(errs, f.Err())
	}
	return errors.Join(errs...)
}

// Failed are the findings at fail level.
func Failed(all []Finding) []Finding {
	var out []Finding
	for _, f := range all {
		if f.Severity == Fail {
			out = append(out, f)
		}
	}
	return out
}

// Some joins the first of a list for a message, and says how many it leaves out.
func Some(list []string, most int) string {
	if more := len(list) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), more)
	}
	return strings.Join(list, ", ")
}
