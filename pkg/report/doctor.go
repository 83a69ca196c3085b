package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/probe"
	"zxfer/pkg/size"
)

// DoctorOptions configures DoctorText.
type DoctorOptions struct {
	Verbose bool // also show passed checks, notes and all ceilings
	Color   bool // color severities
	Columns int  // width for line breaks outside of commands; 0 = no breaks
}

// DoctorJSON writes a doctor report as one object.
func DoctorJSON(w io.Writer, r *doctor.Report) error {
	c := *r
	notNil(&c.Findings)
	notNil(&c.Ceilings)
	return Object(w, c)
}

// DoctorAllow writes only the zfs allow commands, or a comment of the shell if there is nothing to send.
func DoctorAllow(w io.Writer, r *doctor.Report) error {
	var b strings.Builder
	for _, l := range r.Allow {
		b.WriteString(oneLine(l) + "\n")
	}
	if len(r.Allow) == 0 {
		b.WriteString("# nothing to send: no permission is needed; for a job: zxfer replicate check\n")
	}
	return writeString(w, b.String())
}

// DoctorText writes a doctor report for people: the expected rate, findings, the limits of
// restricted keys, and the ceilings.
func DoctorText(w io.Writer, r *doctor.Report, o DoctorOptions) error {
	found, notes, well := selectFindings(r, o.Verbose)
	ceilings := visibleCeilings(r)
	return writeString(w, strings.Join(nonEmpty([]string{
		answerText(r), diagnosisText(found, o), grantsText(r.Grants, o.Columns), ceilingsText(ceilings, r.Expected), hiddenText(notes, well),
	}), "\n"))
}

// selectFindings returns the findings to show, and counts the hidden notes and passed checks. grantsText
// summarizes what a restricted key hides.
func selectFindings(r *doctor.Report, all bool) (shown []finding.Finding, notes, well int) {
	for _, f := range r.Findings {
		switch {
		case hiddenByKey(r, f.ID, f.Host):
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

// visibleCeilings returns the ceilings to show. A part of the network path that a restricted key
// hides is marked as skipped.
func visibleCeilings(r *doctor.Report) (shown []probe.Ceiling) {
	for _, c := range r.Ceilings {
		if hiddenByKey(r, c.ID, c.Host) || hiddenByKey(r, c.ID, c.Peer) {
			if forecast.PartOf(c) == "" {
				continue
			}
			c.Skipped = "not for this key"
		}
		shown = append(shown, c)
	}
	return shown
}

// hiddenByKey reports whether a restricted key hides the check id on host.
func hiddenByKey(r *doctor.Report, id, host string) bool {
	return slices.ContainsFunc(r.Grants, func(g doctor.Grant) bool { return g.Host == host && slices.Contains(g.Forbidden, id) })
}

func hiddenText(notes, well int) string {
	var parts []string
	if notes > 0 {
		parts = append(parts, english.Plural(notes, "note", ""))
	}
	if well > 0 {
		parts = append(parts, english.Plural(well, "check", "")+" passed")
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, " and ") + "; to show them and more rates: zxfer doctor -v\n"
}

// answerText returns the expected rate, its bottleneck and the recommended change.
func answerText(r *doctor.Report) string {
	var rate string
	switch e := r.Expected; {
	case e != nil:
		rate = rateText(e)
	case len(r.Ceilings) > 0:
		rate = "unknown: no part of the path was measured"
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

// rateText returns the expected rate and lists what was not measured.
func rateText(e *forecast.Expected) string {
	if e.TooShort() {
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

// LimitText names the bottleneck, with the title of its ceiling.
func LimitText(ceilings []probe.Ceiling, e *forecast.Expected) string {
	if e.TooShort() {
		return "none"
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

// limitOf returns the ceiling that is the bottleneck: a measured one, or one for the limit that
// all parts share.
func limitOf(ceilings []probe.Ceiling, e *forecast.Expected) probe.Ceiling {
	for _, c := range ceilings {
		if e.IsLimit(c) {
			return c
		}
	}
	c := probe.Ceiling{Host: e.Host, Title: "processors shared by all parts", BytesPerSecond: e.BytesPerSecond}
	if e.Host == "" {
		c.Title = "the requested limit"
	}
	return c
}

// Advice returns the recommended change and the finding it comes from.
func Advice(a *forecast.Advice) string {
	if a.Remedy == "" {
		return "nothing: " + Line(a.Why)
	}
	first, _, _ := strings.Cut(strings.TrimSpace(a.Remedy), "\n") // the finding shows the other remedies
	text := Line(first)
	if a.Host != "" && a.Host != "local" && !strings.Contains(text, "on "+a.Host+":") {
		text = "on " + oneLine(a.Host) + ": " + text
	}
	if a.ID != "" {
		return fmt.Sprintf("%s (%s, below)", text, a.ID)
	}
	return text + " (" + Line(a.Why) + ")"
}

// grantsText shows what restricted keys permit and hide.
func grantsText(grants []doctor.Grant, columns int) string {
	var b strings.Builder
	for _, g := range grants {
		fmt.Fprintf(&b, "%s: this key is restricted\n", oneLine(g.Host))
		b.WriteString(hangingIndent("  permits   ", oneLine(g.Permissions), columns))
		b.WriteString(hangingIndent("  seen      ", oneLine(strings.Join(append([]string{"versions, user, permitted datasets"}, g.Permitted...), ", ")), columns))
		b.WriteString(hangingIndent("  hides     ", oneLine(strings.Join(g.Forbidden, ", ")), columns))
	}
	return b.String()
}
