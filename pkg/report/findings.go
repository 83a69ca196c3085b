package report

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/finding"
)

// findingsText shows what was found with its evidence, but for what is well.
func findingsText(findings []finding.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		if f.Severity == finding.OK {
			continue
		}
		fmt.Fprintf(&b, "  %s: %s (%s)\n", f.Severity, Line(f.Text()), f.ID)
		prefixed(&b, "    ", f.Evidence)
		prefixed(&b, "    hint: ", f.Remedy)
	}
	if b.Len() == 0 {
		return ""
	}
	return "checks\n" + b.String()
}

// warningsText is what a user should know of before a job that goes on.
func warningsText(findings []finding.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		if f.Severity == finding.Warn {
			fmt.Fprintf(&b, "warning: %s (%s)\n", Line(f.Text()), f.ID)
			prefixed(&b, "hint: ", f.Remedy)
		}
	}
	return b.String()
}

// diagnosisText shows all that was found, by host.
func diagnosisText(findings []finding.Finding, color bool) string {
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
			fmt.Fprintf(&b, "  %s  %-*s  %s\n", severityText(f.Severity, color), width, f.ID, Line(f.Summary))
			if f.Severity != finding.OK {
				prefixed(&b, "        seen: ", Line(f.Evidence))
				prefixed(&b, "        do:   ", f.Remedy)
			}
		}
	}
	return b.String()
}

// severityText is a severity in a column of its own. The color says nothing that
// the word does not.
func severityText(s finding.Severity, color bool) string {
	code := map[finding.Severity]string{finding.OK: "32", finding.Note: "36", finding.Warn: "33", finding.Fail: "31"}[s]
	if !color || code == "" {
		return fmt.Sprintf("%-4s", s)
	}
	return "\x1b[" + code + "m" + string(s) + "\x1b[0m" + strings.Repeat(" ", 4-len(s))
}

// conflictsText shows the evidence of both sides; withMessage also what
// [Error] prints for a job that was refused.
func conflictsText(conflicts []finding.Finding, withMessage bool) string {
	var b strings.Builder
	for _, c := range conflicts {
		fmt.Fprintf(&b, "conflict (%s): %s -> %s\n", c.ID, oneLine(c.Source), oneLine(c.Target))
		if withMessage {
			prefixed(&b, "  ", Line(c.Summary))
		}
		fmt.Fprintf(&b, "  source has  %s\n", versions(c.SourceVersions))
		fmt.Fprintf(&b, "  target has  %s\n", versions(c.TargetVersions))
		if withMessage {
			prefixed(&b, "  hint: ", c.Remedy)
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

// prefixed writes the non-empty lines of a text, cleaned.
func prefixed(b *strings.Builder, prefix, text string) {
	for _, l := range lines(text) {
		b.WriteString(prefix + l + "\n")
	}
}
