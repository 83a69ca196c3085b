package report

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/finding"
)

// findingsText shows all findings except passed checks, with evidence.
func findingsText(findings []finding.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		if f.Severity == finding.OK {
			continue
		}
		fmt.Fprintf(&b, "  %s: %s%s\n", f.Severity, Line(f.Text()), inParens(f.ID))
		writePrefixed(&b, "    ", f.Evidence)
		writePrefixed(&b, "    hint: ", f.Remedy)
	}
	if b.Len() == 0 {
		return ""
	}
	return "checks\n" + b.String()
}

// warningsText shows the warnings of a job that continues.
func warningsText(findings []finding.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		if f.Severity == finding.Warn {
			fmt.Fprintf(&b, "warning: %s%s\n", Line(f.Text()), inParens(f.ID))
			writePrefixed(&b, "hint: ", f.Remedy)
		}
	}
	return b.String()
}

// diagnosisText shows all findings by host.
func diagnosisText(findings []finding.Finding, o DoctorOptions) string {
	var b strings.Builder
	var hosts []string
	width := 0
	for _, f := range findings {
		width = max(width, len(f.ID))
		if !slices.Contains(hosts, f.Host) {
			hosts = append(hosts, f.Host)
		}
	}
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s\n", oneLine(h))
		for _, f := range findings {
			if f.Host != h {
				continue
			}
			line := hangingIndent(fmt.Sprintf("  %-4s  %-*s  ", f.Severity, width, f.ID), Line(f.Summary), o.Columns)
			if o.Color {
				line = strings.Replace(line, string(f.Severity), colored(f.Severity), 1)
			}
			b.WriteString(line)
			if f.Severity != finding.OK {
				for _, l := range lines(f.Evidence) {
					b.WriteString(hangingIndent("        seen: ", l, o.Columns))
				}
				writePrefixed(&b, "        do:   ", f.Remedy)
			}
		}
	}
	return b.String()
}

// colored returns a severity in its color. The word alone carries the meaning.
func colored(s finding.Severity) string {
	code := map[finding.Severity]string{finding.OK: "32", finding.Note: "36", finding.Warn: "33", finding.Fail: "31"}[s]
	return "\x1b[" + code + "m" + string(s) + "\x1b[0m"
}

// hangingIndent returns text after head, with continuation lines aligned to its first word. It breaks
// lines before columns, or not at all if columns is 0. It returns "" for empty text.
func hangingIndent(head, text string, columns int) string {
	var b strings.Builder
	at := len(head)
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			b.WriteString(head)
		case columns > 0 && at+1+len(word) >= columns:
			b.WriteString("\n" + strings.Repeat(" ", len(head)))
			at = len(head)
		default:
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	if b.Len() > 0 {
		b.WriteString("\n")
	}
	return b.String()
}

// conflictsText shows the snapshots of both sides. With withMessage it adds the message and hint,
// which [Error] otherwise prints.
func conflictsText(conflicts []finding.Finding, withMessage bool) string {
	var b strings.Builder
	for _, c := range conflicts {
		fmt.Fprintf(&b, "conflict (%s): %s -> %s\n", c.ID, oneLine(c.Source), oneLine(c.Target))
		if withMessage {
			writePrefixed(&b, "  ", Line(c.Summary))
		}
		fmt.Fprintf(&b, "  source has  %s\n", versions(c.SourceVersions))
		fmt.Fprintf(&b, "  target has  %s\n", versions(c.TargetVersions))
		if withMessage {
			writePrefixed(&b, "  hint: ", c.Remedy)
		}
	}
	return b.String()
}

func versions(names []string) string {
	if len(names) == 0 {
		return "no snapshots or bookmarks"
	}
	return oneLine(list(names, " ", 8))
}

// writePrefixed writes the non-empty lines of a text, cleaned.
func writePrefixed(b *strings.Builder, prefix, text string) {
	for _, l := range lines(text) {
		b.WriteString(prefix + l + "\n")
	}
}
