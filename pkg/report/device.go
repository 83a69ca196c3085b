package report

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"zxfer/pkg/device"
	"zxfer/pkg/finding"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/size"
)

// DevicePlanned shows the plan with Verbose, otherwise a headline. A dry run shows its plan in
// Done.
func (t *Text) DevicePlanned(r *dev.Report) {
	switch {
	case t.quiet || r.DryRun:
	case t.opts.Verbose:
		t.write(devicePlanText(r))
	default:
		t.write(deviceHeadline(r) + warningsText(deviceFindings(r)) + expectedText(r.Expected))
	}
}

// DeviceStarted shows the start of a copy.
func (t *Text) DeviceStarted(r *dev.Report, done uint64) {
	t.begin(r.Source, r.Target, r.Total(), done)
}

// begin shows the start of a command's only stream.
func (t *Text) begin(source, target string, size, done uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.streams.startDevice(source, target, size, done, t.opts.now())
	if t.screen != nil && !t.quiet {
		t.paint("")
	}
}

// DeviceFinished shows the result of an attempt.
func (t *Text) DeviceFinished(r *dev.Report, res *dev.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.streams.finish(streamID{id: deviceID}, uint64(res.Data), res.Error != "")
	if st == nil || t.quiet {
		return
	}
	text := ""
	if res.Error != "" && !r.Compare {
		text = fmt.Sprintf("%s: stopped at %s after %s: %s\n", st.name, gaugeOf(st.last).amount(), Seconds(res.Seconds), Line(res.Error))
	}
	if t.opts.Verbose {
		text += stagesText(res.Stages) + networkText(res.Network)
	}
	t.paint(text)
}

// DeviceResult returns the text of a device copy or comparison.
func DeviceResult(r *dev.Report) ResultText {
	return func(err error) (stdout, stderr string) {
		switch {
		case r.DryRun && r.From != nil:
			return devicePlanText(r) + dryRunText(err), ""
		case err != nil:
			if n := len(r.Results); n > 0 && len(r.Results[n-1].BadRanges) > 0 && r.Results[n-1].Error == "" {
				stdout = deviceSummary(r) // complete except for unreadable ranges
			}
			return stdout, deviceFailureText(r)
		}
		return deviceSummary(r), ""
	}
}

// deviceHeadline summarizes the job on one line.
func deviceHeadline(r *dev.Report) string {
	verb := "->"
	parts := []string{size.Text(r.Size)}
	if r.From != nil && r.From.Kind == "stream" {
		parts = []string{"until it ends"}
	}
	if v := r.Volume; v != nil {
		if !r.Compare {
			parts = []string{volumeAmount(v, r.Size)}
		}
		if v.Continues {
			parts = append(parts, "completes an interrupted copy")
		}
	}
	switch {
	case r.Compare:
		verb = "=?"
	case r.Wire.Mode != "" && r.Wire.Mode != "local":
		parts = append(parts, "wire "+r.Wire.Mode)
	}
	if r.Delta {
		parts = append(parts, "only differences")
	}
	if r.Resumable > 0 {
		parts = append(parts, "resumes at "+size.Text(r.Resumable))
	}
	if r.Unusable != "" {
		parts = append(parts, "an interrupted copy cannot be resumed: "+Line(r.Unusable))
	}
	return fmt.Sprintf("%s %s %s: %s\n", oneLine(r.Source), verb, oneLine(r.Target), strings.Join(parts, ", "))
}

// volumeAmount describes what a copy of a volume's snapshot transfers.
func volumeAmount(v *dev.VolumeReport, total uint64) string {
	switch {
	case v.UpToDate:
		return "up to date"
	case v.Base != "":
		return fmt.Sprintf("changes since %s, about %s", oneLine(v.Base), size.Text(v.Estimate))
	}
	return fmt.Sprintf("full copy of %s, about %s of data", size.Text(total), size.Text(v.Estimate))
}

// devicePlanText shows both devices, the transport and the findings.
func devicePlanText(r *dev.Report) string {
	var b strings.Builder
	b.WriteString(deviceHeadline(r))
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if r.From != nil {
		deviceText(w, "source", r.Source, r.From)
	}
	if r.To != nil {
		deviceText(w, "target", r.Target, r.To)
	}
	fmt.Fprintf(w, "blocks\t%s\n", size.Text(uint64(r.Block)))
	if r.Digest != "" {
		fmt.Fprintf(w, "digest\t%s\n", r.Digest)
	}
	if r.Wire.Mode != "" && r.Wire.Why != "" {
		fmt.Fprintf(w, "wire\t%s: %s\n", r.Wire.Mode, Line(r.Wire.Why))
	}
	_ = w.Flush() // writes to a Builder cannot fail
	return trimRight(b.String()) + findingsText(deviceFindings(r)) + measuredText(r.Ceilings, r.Expected)
}

// deviceFindings returns the problems and findings to show. It clears the IDs of problems, because
// no --skip-check skips them.
func deviceFindings(r *dev.Report) []finding.Finding {
	problems := slices.Clone(r.Problems)
	for i := range problems {
		problems[i].ID = ""
	}
	return append(problems, r.Findings...)
}

// deviceText writes one device as table rows.
func deviceText(w *tabwriter.Writer, role, name string, f *device.Facts) {
	row := func(key, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", key, oneLine(value))
		}
	}
	row(role, name)
	row("  kind", f.Kind)
	if f.Volume != nil {
		row("  copy of", f.Volume.String())
	}
	if f.Kind != device.KindMissing && f.Kind != "stream" {
		row("  size", fmt.Sprintf("%s (%d bytes)", size.Text(uint64(f.Size)), f.Size))
	}
	row("  model", f.Model)
	row("  serial", f.Serial)
	row("  wwn", f.WWN)
	row("  partitions", f.PartitionTable)
	for _, s := range f.Signatures {
		row("  holds", strings.TrimSpace(s.Type+" "+s.Label)+" on "+s.Device)
	}
	for _, m := range f.Mounts {
		row("  mounted", m.Device+" on "+m.Point)
	}
}

// volumeSummary summarizes a successful copy of a volume's snapshot.
func volumeSummary(r *dev.Report) string {
	name := fmt.Sprintf("%s -> %s: ", oneLine(r.Source), oneLine(r.Target))
	switch n := len(r.Results); {
	case n == 0:
		name += "up to date"
	case r.Results[n-1].Error != "": // the answer of a successful try was lost
		name += "complete"
	default:
		last, took := r.Results[len(r.Results)-1], 0.0
		for _, res := range r.Results {
			took += res.Seconds
		}
		what := "full copy"
		if r.Volume.Base != "" {
			what = "changes since " + oneLine(r.Volume.Base)
		}
		parts := []string{fmt.Sprintf("%s, %s written in %s%s", what, size.Text(uint64(last.Data)), Seconds(took), inParens(rate(last.Rate)))}
		if last.Zeros > 0 {
			parts = append(parts, size.Text(uint64(last.Zeros))+" zeros")
		}
		if last.Tries > 1 {
			parts = append(parts, fmt.Sprintf("try %d", last.Tries))
		}
		if last.LimitedBy != "" {
			parts = append(parts, "limited by "+oneLine(last.LimitedBy))
		}
		if last.Verified == 0 {
			parts = append(parts, "not read back")
		} else {
			parts = append(parts, "read back and verified")
		}
		name += strings.Join(parts, ", ")
	}
	if r.Equal != nil && *r.Equal {
		name += ", equal to the snapshot by " + strings.ToUpper(r.Digest)
	}
	return name + "\n"
}

// deviceSummary summarizes a successful job.
func deviceSummary(r *dev.Report) string {
	if r.Volume != nil && !r.Compare {
		return volumeSummary(r)
	}
	if len(r.Results) == 0 {
		return ""
	}
	last := r.Results[len(r.Results)-1]
	if r.Compare {
		text := fmt.Sprintf("%s and %s are equal: %s", oneLine(r.Source), oneLine(r.Target), size.Text(r.Size))
		if r.Digest == device.XXH3 {
			return text + ", by XXH3\n"
		}
		return text + ", BLAKE3 " + last.SourceDigest + "\n"
	}
	unreadable, took := int64(0), 0.0 // took excludes the pauses between attempts, as the rate does
	for _, res := range r.Results {
		took += res.Seconds
	}
	parts := []string{fmt.Sprintf("%s -> %s: %s in %s%s", oneLine(r.Source), oneLine(r.Target), size.Text(r.Size), Seconds(took), inParens(rate(last.Rate)))}
	for _, b := range last.BadRanges {
		unreadable += b.Length
	}
	amount := func(n int64, what string) {
		if n > 0 {
			parts = append(parts, size.Text(uint64(n))+what)
		}
	}
	amount(unreadable, " unreadable")
	amount(last.Zeros, " zeros")
	amount(last.Present, " already present")
	if last.Wire != "local" {
		parts = append(parts, size.Text(uint64(last.WireBytes))+" over the wire")
	}
	if last.Tries > 1 {
		parts = append(parts, fmt.Sprintf("try %d", last.Tries))
	}
	if last.LimitedBy != "" {
		parts = append(parts, "limited by "+oneLine(last.LimitedBy))
	}
	switch {
	case last.TargetDigest == "":
		parts = append(parts, "not read back")
	case r.Digest == device.XXH3:
		parts = append(parts, "read back and verified by XXH3")
	default:
		parts = append(parts, "read back and verified")
	}
	text := strings.Join(parts, ", ") + "\n"
	if last.SourceDigest != "" && r.Digest == device.BLAKE3 {
		text += "BLAKE3 " + last.SourceDigest + "\n"
	}
	return text
}

// deviceFailureText returns the ranges that differ or are unreadable. The error itself is printed
// elsewhere.
func deviceFailureText(r *dev.Report) string {
	differ := slices.Clone(r.Differ)
	for i, d := range differ {
		differ[i].Length = min(d.Length, int64(r.Size)-d.Start)
	}
	text := rangesText("differs: within bytes", differ)
	if n := len(r.Results); n > 0 {
		text += rangesText("unreadable: bytes", r.Results[n-1].BadRanges)
	}
	return text
}

func rangesText(what string, ranges []device.Range) string {
	var b strings.Builder
	for _, r := range ranges[:min(len(ranges), maxRanges)] {
		fmt.Fprintf(&b, "%s %d to %d\n", what, r.Start, r.Start+r.Length)
	}
	if more := len(ranges) - maxRanges; more > 0 {
		fmt.Fprintf(&b, "and %d more ranges\n", more)
	}
	return b.String()
}

// maxRanges is the number of ranges that are listed.
const maxRanges = 20

// DevicePlanned writes the planned event.
func (j *JSON) DevicePlanned(r *dev.Report) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.event(Event{Event: "planned", Source: r.Source, Target: r.Target, Wire: r.Wire.Mode, Total: r.Total()})
}

// DeviceStarted writes the started event of an attempt.
func (j *JSON) DeviceStarted(r *dev.Report, done uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.streams.startDevice(r.Source, r.Target, r.Total(), done, j.opts.now())
	j.event(Event{Event: "started", ID: deviceID, Source: r.Source, Target: r.Target, Total: r.Total(), Bytes: done})
}

// DeviceFinished writes the finished event of an attempt.
func (j *JSON) DeviceFinished(_ *dev.Report, res *dev.Result) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.streams.finish(streamID{id: deviceID}, uint64(res.Data), res.Error != "") != nil {
		j.event(Event{Event: "finished", ID: deviceID, Device: res})
	}
}
