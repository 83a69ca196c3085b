package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/size"
)

// RunText writes for a person what came of a job's run.
func RunText(w io.Writer, r *statedir.Run) error {
	var b strings.Builder
	runText(&b, r)
	return writeString(w, b.String())
}

// RunLine says in one line what came of it.
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
			continue // the run ended before
		}
		fmt.Fprintf(b, "  %s (%s): %s: %d sent (%s), %d unchanged, %d failed, %d removed\n",
			oneLine(t.Target), oneLine(t.To), oneLine(t.Outcome), t.Sent, size.Text(t.Bytes), t.Unchanged, t.Failed, t.Pruned)
	}
}

// LogText writes for a person the record of a past run.
func LogText(w io.Writer, r *statedir.Run) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", stamp(r.Started))
	runText(&b, r)
	if r.Error != "" {
		fmt.Fprintf(&b, "  error: %s\n", sentence(r.Error))
	}
	for _, f := range r.Failures() {
		of := f.Target
		if f.Source != "" {
			of += ": " + f.Source
		}
		fmt.Fprintf(&b, "  %s: %s\n", oneLine(of), sentence(f.Error))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note: %s\n", sentence(n))
	}
	return writeString(w, b.String())
}
