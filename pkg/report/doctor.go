package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/job"
	"zxfer/pkg/probe"
	"zxfer/pkg/size"
)

// DoctorOptions say how a doctor's report is shown.
type DoctorOptions struct {
	Verbose bool // also what is well, and all ceilings
	Color   bool // severities in color
	Columns int  // to break lines at, but for commands; 0 = nowhere
}

// DoctorJSON writes a doctor's report as one object.
func DoctorJSON(w io.Writer, r *job.DoctorReport) error {
	c := *r
	notNil(&c.Findings)
	notNil(&c.Ceilings)
	return Object(w, c)
}

// DoctorAllow writes the zfs allow lines only.
func DoctorAllow(w io.Writer, r *job.DoctorReport) error {
	var b strings.Builder
	for _, l := range r.Allow {
		b.WriteString(oneLine(l) + "\n")
	}
	return writeString(w, b.String())
}

// DoctorText writes a doctor's report for a person: the answer, what is not well,
// what a restricted key lets it see, and the rates that the answer comes from.
func DoctorText(w io.Writer, r *job.DoctorReport, o DoctorOptions) error {
	found, notes, well := sift(r, o.Verbose)
	ceilings := withoutUnseen(r)
	return writeString(w, strings.Join(present([]string{
		answerText(r), diagnosisText(found, o), grantsText(r.Grants, o.Columns), ceilingsText(ceilings, r.Expected), leftText(notes, well),
	}), "\n"))
}

// sift returns the findings to be shown, and counts those that are left out: what
// is merely worth knowing, and what is well. What a key does not let a doctor see
// is told at once.
func sift(r *job.DoctorReport, all bool) (shown []finding.Finding, notes, well int) {
	for _, f := range r.Findings {
		switch {
		case unseen(r, f.ID, f.Host):
		case all || f.Severity.Compare(finding.Warn) >= 0:
			shown = append(shown, f)
		case f.Severity == finding.Note:
			notes++
		default:
			well++
		}
	}
	return shown, notes, well
}

// withoutUnseen are the ceilings to be shown, of which a key hides no part of the
// way without a word.
func withoutUnseen(r *job.DoctorReport) (shown []probe.Ceiling) {
	for _, c := range r.Ceilings {
		if unseen(r, c.ID, c.Host) || unseen(r, c.ID, c.Peer) {
			if job.PartOf(c) == "" {
				continue
			}
			c.Skipped = "not for this key"
		}
		shown = append(shown, c)
	}
	return shown
}

// unseen tells what a restricted key does not let a doctor see.
func unseen(r *job.DoctorReport, id, host string) bool {
	return slices.ContainsFunc(r.Grants, func(g job.Grant) bool { return g.Host == host && slices.Contains(g.Unseen, id) })
}

func leftText(notes, well int) string {
	var parts []string
	if notes > 0 {
		parts = append(parts, english.Plural(notes, "note", ""))
	}
	if well > 0 {
		parts = append(parts, english.Plural(well, "check", "")+" without fault")
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, " and ") + ": zxfer doctor -v shows them, and further rates\n"
}

// answerText is the answer: the rate, its limit, what to change.
func answerText(r *job.DoctorReport) string {
	var rate string
	switch e := r.Expected; {
	case e != nil:
		rate = rateText(e)
	case len(r.Ceilings) > 0:
		rate = "unknown: no part of the way was measured"
	default:
		rate = "unknown: nothing was measured"
	}
	if n := len(finding.Failed(r.Findings)); n > 0 {
		fails := english.Plural(n, "check", "") + " failed"
		if r.Expected != nil {
			fails += "; then " + rate
		}
		rate = "a refusal: " + fails
	}
	text := "expect  " + rate + "\n"
	if r.Expected != nil {
		text += "limit   " + LimitText(r.Ceilings, r.Expected) + "\n"
	}
	if r.Advice != nil {
		text += "change  " + Advice(r.Advice) + "\n"
	}
	return text
}

// rateText says what to expect, and what was not measured of it.
func rateText(e *job.Expected) string {
	if e.Brief() {
		return size.Text(e.Bytes) + " in less than a second"
	}
	text := rate(e.BytesPerSecond)
	if len(e.Unmeasured) == 0 {
		if e.Bytes > 0 {
			text += fmt.Sprintf(": %s in about %s", size.Text(e.Bytes), Seconds(e.Seconds))
		}
		return text
	}
	if e.Seconds >= 1 {
		text += fmt.Sprintf(": %s in %s or more", size.Text(e.Bytes), Seconds(e.Seconds))
	}
	return "at most " + text + "; not measured: " + strings.Join(e.Unmeasured, ", ")
}

// LimitText names the limit, as the ceiling does that the arrow is at.
func LimitText(ceilings []probe.Ceiling, e *job.Expected) string {
	if e.Brief() {
		return "none that matters"
	}
	c := limitOf(ceilings, e)
	text := oneLine(c.Title)
	if c.Host != "" && c.Peer == "" {
		text += " on " + oneLine(c.Host)
	}
	if e.LimitedBy == e.Ceiling { // no meter has a name for it
		return text
	}
	return oneLine(e.LimitedBy) + ": " + text
}

// limitOf is the ceiling that is the limit: one that was measured, or what all
// parts share.
func limitOf(ceilings []probe.Ceiling, e *job.Expected) probe.Ceiling {
	for _, c := range ceilings {
		if e.Names(c) {
			return c
		}
	}
	c := probe.Ceiling{Host: e.Host, Title: "processors for all parts", BytesPerSecond: e.BytesPerSecond}
	if e.Host == "" {
		c.Title = "what was asked for"
	}
	return c
}

// Advice says what to change, and by which finding below.
func Advice(a *job.Advice) string {
	if a.Remedy == "" {
		return "nothing: " + Line(a.Why)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(a.Remedy), "\n") // what else helps is below
	text := Line(first)
	if a.Host != "" && a.Host != "local" && !strings.Contains(text, "on "+a.Host+":") {
		text = "on " + oneLine(a.Host) + ": " + text
	}
	if a.ID != "" {
		return fmt.Sprintf("%s (%s, below)", text, a.ID)
	}
	return text + " (" + Line(a.Why) + ")"
}

// grantsText tells what restricted keys let a doctor see.
func grantsText(grants []job.Grant, columns int) string {
	var b strings.Builder
	for _, g := range grants {
		fmt.Fprintf(&b, "%s: this key is restricted\n", oneLine(g.Host))
		b.WriteString(hanging("  it may    ", oneLine(g.May), columns))
		b.WriteString(hanging("  seen      ", oneLine(strings.Join(append([]string{"versions, user, what it may receive and send"}, g.Seen...), ", ")), columns))
		b.WriteString(hanging("  not seen  ", oneLine(strings.Join(g.Unseen, ", ")), columns))
	}
	return b.String()
}
