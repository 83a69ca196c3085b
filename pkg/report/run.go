package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/size"
)

// RunText writes the result of a run for people.
func RunText(w io.Writer, r *statedir.Run) error {
	var b strings.Builder
	runText(&b, r)
	return writeString(w, b.String())
}

// RunLine summarizes a run on one line.
func RunLine(r *statedir.Run) string {
	line := fmt.Sprintf("%s: %s in %s", oneLine(r.Job), oneLine(r.Outcome), Seconds(r.Ended.Sub(r.Started).Seconds()))
	if r.Snapshots > 0 {
		line += fmt.Sprintf(", %s taken", english.Plural(r.Snapshots, "snapshot", ""))
	}
	if r.Pruned > 0 {
		line += fmt.Sprintf(", %d removed on the source, bookmarks included", r.Pruned)
	}
	return line
}

func runText(b *strings.Builder, r *statedir.Run) {
	b.WriteString(RunLine(r) + "\n")
	for _, t := range r.Targets {
		if t.Outcome == "" {
			continue // the run ended before it reached this target
		}
		fmt.Fprintf(b, "  %s (%s): %s: %d sent (%s), %d unchanged, %d failed, %d removed\n",
			oneLine(t.Target), oneLine(t.To), oneLine(t.Outcome), t.Sent, size.Text(t.Bytes), t.Unchanged, t.Failed, t.Pruned)
	}
}

// LogText writes the record of a past run for people.
func LogText(w io.Writer, r *statedir.Run) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", stamp(r.Started))
	runText(&b, r)
	if r.Error != "" {
		fmt.Fprintf(&b, "  error: %s\n", joinLines(r.Error))
	}
	for _, f := range r.Failures() {
		of := f.Target
		if f.Source != "" {
			of += ": " + f.Source
		}
		fmt.Fprintf(&b, "  %s: %s\n", oneLine(of), joinLines(f.Error))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note: %s\n", joinLines(n))
	}
	return writeString(w, b.String())
}
