package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/size"
)

// FailoverText writes the plan or the result of a change of roles for people.
func FailoverText(w io.Writer, f *failover.Result) error {
	var b strings.Builder
	done := 0
	for _, s := range f.Steps {
		if s.Done {
			done++
		}
	}
	switch {
	case f.Error != "" && done == 0: // the error message follows
	case len(f.Steps) == 0:
		fmt.Fprintf(&b, "%s: nothing to do: %s is the source\n", oneLine(f.Job), oneLine(f.Copy))
	case f.Outcome == outcome.Planned:
		fmt.Fprintf(&b, "%s: would make %s the source in %s\n", oneLine(f.Job), oneLine(f.Copy), english.Plural(len(f.Steps), "step", ""))
		for i, s := range f.Steps {
			fmt.Fprintf(&b, "  %d. %s\n", i+1, oneLine(s.Line()))
		}
	default:
		fmt.Fprintf(&b, "%s: %s to %s: %s, %d of %s done, %s sent\n", oneLine(f.Job), oneLine(f.Source), oneLine(f.Copy), oneLine(f.Outcome), done, english.Plural(len(f.Steps), "step", ""), size.Text(f.Bytes))
	}
	for _, n := range f.Notes {
		fmt.Fprintf(&b, "  note: %s\n", joinLines(n))
	}
	if f.Error == "" {
		for _, c := range f.Next {
			fmt.Fprintf(&b, "  next: %s\n", oneLine(c))
		}
	}
	return writeString(w, b.String())
}
