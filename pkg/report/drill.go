package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/size"
)

// DrillText writes the result of a drill for people.
func DrillText(w io.Writer, d *statedir.Drill) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: drill %s in %s, seed %d\n", oneLine(d.Job), oneLine(d.Outcome), Seconds(d.Ended.Sub(d.Started).Seconds()), d.Seed)
	errorText(&b, "  error: ", d.Error, d.Hint)
	for _, c := range d.Copies {
		fmt.Fprintf(&b, "  %s: %s@%s: %s: %s\n", oneLine(c.To), oneLine(c.Target), oneLine(c.Snapshot), c.DisplayOutcome(), strings.Join(drillFacts(c), ", "))
		errorText(&b, "    ", c.Error, c.Hint)
		for _, path := range c.Differ {
			fmt.Fprintf(&b, "      %s\n", oneLine(path))
		}
		if c.Command == "failed" && c.Output != "" {
			writePrefixed(&b, "    output: ", c.Output)
		}
	}
	for _, n := range d.Notes {
		fmt.Fprintf(&b, "  note: %s\n", joinLines(n))
	}
	return writeString(w, b.String())
}

// DrillLogText writes the record of a past drill for people.
func DrillLogText(w io.Writer, d *statedir.Drill) error {
	if err := writeString(w, stamp(d.Started)+" "); err != nil {
		return err
	}
	return DrillText(w, d)
}

// drillFacts returns how a copy was tested.
func drillFacts(c *statedir.DrillResult) (facts []string) {
	switch c.Read {
	case "files":
		facts = append(facts, fmt.Sprintf("%s read (%s)", english.Plural(int(min(c.Files, 1<<31)), "file", ""), size.Text(c.Bytes)))
		if c.Sample < 1 {
			facts = append(facts, "a sample of "+humanize.Ftoa(c.Sample*100)+" %")
		}
	case "stream":
		facts = append(facts, size.Text(c.Bytes)+" read as a stream")
	default:
		facts = append(facts, "nothing was read")
	}
	switch {
	case c.Compared:
		facts = append(facts, "compared with the source")
	case c.Note != "":
		facts = append(facts, joinLines(c.Note))
	}
	if c.Command != "" {
		facts = append(facts, "command "+oneLine(c.Command))
	}
	return append(facts, "in "+Seconds(c.Seconds))
}

func drillPreviewText(b *strings.Builder, d *runner.DrillPreview, verbose bool) {
	if d == nil {
		return
	}
	when := "manual only"
	if !d.Next.IsZero() {
		when = "next " + stamp(d.Next)
	}
	fmt.Fprintf(b, "  drill of the copies: %s\n", when)
	if len(d.Locked) > 0 {
		fmt.Fprintf(b, "    it cannot verify %s without its key: %s\n", english.Plural(len(d.Locked), "copy", "copies"), firstOrAll(d.Locked, "      ", verbose))
		writePrefixed(b, "    hint: ", "set drill.key_file to a key file on the copy's host")
	}
}
