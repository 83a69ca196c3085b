package report

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/files"
	"zxfer/pkg/job/restore"
	"zxfer/pkg/outcome"
	"zxfer/pkg/size"
)

// FilesPlanned shows the plan with Verbose, otherwise a headline.
func (t *Text) FilesPlanned(r *restore.FilesReport) {
	switch {
	case t.quiet || r.DryRun:
	case t.opts.Verbose:
		t.write(filesPlanText(r))
	default:
		t.write(filesHeadline(r) + warningsText(r.Findings))
	}
}

// FilesStarted shows the start of the transfer of files.
func (t *Text) FilesStarted(r *restore.FilesReport, bytes uint64) {
	t.begin(r.Source, r.Target, bytes, 0)
}

// FilesFinished shows the result of an attempt.
func (t *Text) FilesFinished(_ *restore.FilesReport, bytes uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.streams.finish(streamID{id: deviceID}, bytes, err != nil)
	if st == nil || t.quiet {
		return
	}
	text := ""
	if err != nil {
		text = fmt.Sprintf("%s: stopped after %s: %s\n", st.name, size.Text(bytes), Line(err.Error()))
	}
	t.paint(text)
}

// FilesResult returns the text of a restore of files.
func FilesResult(r *restore.FilesReport) ResultText {
	return func(err error) (stdout, stderr string) {
		switch {
		case r.DryRun && r.Snapshot != "":
			return filesPlanText(r) + dryRunText(err), ""
		case r.Outcome == outcome.UpToDate:
			return fmt.Sprintf("%s: up to date, %s already present with equal size and time\n", oneLine(r.Target), fileCount(r.Plan.Same, "is", "are")), ""
		case r.Result == nil:
			return "", ""
		}
		if err == nil || r.Outcome == outcome.Failed {
			stdout = filesSummary(r)
		}
		return stdout, problemsText(r.Result.Failures)
	}
}

// fileCount returns the number of files with a verb.
func fileCount(n uint64, one, many string) string {
	return english.Plural(int(n), "file", "") + " " + english.PluralWord(int(n), one, many)
}

// filesHeadline summarizes the plan on one line.
func filesHeadline(r *restore.FilesReport) string {
	p := &r.Plan
	parts := []string{english.Plural(int(p.New+p.Replaced), "file", "files and directories") + ", " + size.Text(p.Bytes)}
	if p.Replaced > 0 {
		parts = append(parts, fmt.Sprintf("%d replaced", p.Replaced))
	}
	if p.Same > 0 {
		parts = append(parts, fileCount(p.Same, "is", "are")+" already present with equal size and time")
	}
	if r.Wire.Mode != "" && r.Wire.Mode != "local" {
		parts = append(parts, "wire "+r.Wire.Mode)
	}
	text := fmt.Sprintf("%s of %s -> %s: %s\n", "files", oneLine(r.Snapshot), oneLine(r.Target), strings.Join(parts, ", "))
	for _, n := range r.Notes {
		text += Line(n) + "\n"
	}
	return text
}

// shownFiles is the number of names that a plan shows.
const shownFiles = 10

// filesPlanText shows the files to restore, and conflicts.
func filesPlanText(r *restore.FilesReport) string {
	var b strings.Builder
	b.WriteString(filesHeadline(r))
	names := func(what string, all []string, of uint64) {
		if len(all) == 0 {
			return
		}
		b.WriteString(what + "\n")
		for _, n := range all[:min(len(all), shownFiles)] {
			b.WriteString("  " + oneLine(n) + "\n")
		}
		if more := int(of) - shownFiles; more > 0 {
			fmt.Fprintf(&b, "  and %d more\n", more)
		}
	}
	p := &r.Plan
	names("to restore:", p.Names, p.New+p.Replaced)
	names("exists and differs:", p.Differ, p.Replaced)
	names("file in place of a directory, or directory in place of a file:", p.Blocked, uint64(len(p.Blocked)))
	b.WriteString(leftOutText(p) + problemsText(p.Failures))
	if r.Wire.Mode != "" && r.Wire.Why != "" {
		fmt.Fprintf(&b, "wire %s: %s\n", r.Wire.Mode, Line(r.Wire.Why))
	}
	return b.String() + findingsText(r.Findings)
}

// leftOutText reports files that are not restored as they were, and files with privileges.
func leftOutText(a *files.Account) string {
	text := ""
	if a.Special > 0 {
		text += "skipped: " + english.Plural(int(a.Special), "device, pipe or socket", "devices, pipes or sockets") + "\n"
	}
	if a.Privileged > 0 {
		text += fileCount(a.Privileged, "has", "have") + " setuid, setgid or capabilities, as in the snapshot\n"
	}
	if a.OwnersNotKept {
		text += "owners were not restored: only root can set them\n"
	}
	if a.HiddenACLs != "" {
		text += "access control lists were not restored: " + oneLine(a.HiddenACLs) + "\n"
	}
	return text
}

// problemsText lists files that could not be read or restored.
func problemsText(f files.Failures) string {
	text, shown := "", f.Problems[:min(len(f.Problems), maxRanges)]
	for _, p := range shown {
		text += fmt.Sprintf("%s: %s\n", oneLine(p.Path), oneLine(p.Why))
	}
	if more := int(f.Failed) - len(shown); more > 0 {
		text += fmt.Sprintf("and %d more\n", more)
	}
	return text
}

// filesSummary summarizes the result.
func filesSummary(r *restore.FilesReport) string {
	a := r.Result
	parts := []string{fmt.Sprintf("%s -> %s: %s, %s in %s", oneLine(r.Snapshot), oneLine(r.Target),
		english.Plural(int(a.New+a.Replaced), "file", "files and directories"), size.Text(a.Bytes), Seconds(r.Seconds))}
	if a.Replaced > 0 {
		parts = append(parts, fmt.Sprintf("%d replaced", a.Replaced))
	}
	if a.Same > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped (equal size and time)", a.Same))
	}
	if a.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d not restored correctly", a.Failed))
	}
	if r.LimitedBy != "" {
		parts = append(parts, "limited by "+oneLine(r.LimitedBy))
	}
	return strings.Join(parts, ", ") + "\n" + leftOutText(a)
}

// FilesPlanned writes the planned event.
func (j *JSON) FilesPlanned(r *restore.FilesReport) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.event(Event{Event: "planned", Source: r.Source, Target: r.Target, Wire: r.Wire.Mode, Total: r.Plan.Bytes})
}

// FilesStarted writes the started event of an attempt.
func (j *JSON) FilesStarted(r *restore.FilesReport, bytes uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.streams.startDevice(r.Source, r.Target, bytes, 0, j.opts.now())
	j.event(Event{Event: "started", ID: deviceID, Source: r.Source, Target: r.Target, Total: bytes})
}

// FilesFinished writes the finished event of an attempt.
func (j *JSON) FilesFinished(r *restore.FilesReport, bytes uint64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.streams.finish(streamID{id: deviceID}, bytes, err != nil) != nil {
		j.event(Event{Event: "finished", ID: deviceID, Source: r.Source, Target: r.Target, Bytes: bytes})
	}
}
