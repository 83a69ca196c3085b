package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/job/send"
	"zxfer/pkg/size"
	"zxfer/pkg/transfer"
)

// resultText describes the result of one stream.
func resultText(name string, r *send.StepResult, verbose bool) string {
	moved := size.Text(r.Bytes) + " in " + Seconds(r.Seconds)
	if r.Error != "" {
		return fmt.Sprintf("%s: stopped after %s: %s\n", name, moved, Line(r.Error))
	}
	parts := []string{moved + inParens(rate(r.Rate))}
	if r.Resumed {
		parts = append(parts, "resumed")
	}
	if r.Tries > 1 {
		parts = append(parts, fmt.Sprintf("try %d", r.Tries))
	}
	if r.Wire != "" {
		parts = append(parts, "wire "+r.Wire)
	}
	if r.LimitedBy != "" {
		parts = append(parts, "limited by "+oneLine(r.LimitedBy))
	}
	text := name + ": done, " + strings.Join(parts, ", ") + "\n"
	if verbose {
		text += stagesText(r.Stages) + networkText(r.Network)
	}
	return text
}

func inParens(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// stagesText shows how long each stage was busy. The stage that waits least is the bottleneck.
func stagesText(stages []transfer.Stage) string {
	var b strings.Builder
	for _, s := range stages {
		all := s.Busy + s.WaitIn + s.WaitOut
		fmt.Fprintf(&b, "  %-10s  busy %3d %%  waits for input %3d %%  for output %3d %%\n",
			oneLine(s.Name), share(s.Busy, all), share(s.WaitIn, all), share(s.WaitOut, all))
	}
	return b.String()
}

func share(part, all time.Duration) int {
	if all <= 0 {
		return 0
	}
	return int(100 * float64(part) / float64(all))
}

func networkText(n *transfer.Network) string {
	if n == nil {
		return ""
	}
	parts := []string{english.Plural(n.Streams, "connection", ""), "rtt " + n.RTT.Round(10*time.Microsecond).String(),
		english.Plural(int(min(n.Retransmits, 1<<31)), "retransmit", "")}
	if n.SendBuffer > 0 {
		parts = append(parts, "send buffer "+size.Text(uint64(n.SendBuffer)))
	}
	if n.ReceiveBuffer > 0 {
		parts = append(parts, "receive buffer "+size.Text(uint64(n.ReceiveBuffer)))
	}
	if n.Congestion != "" {
		parts = append(parts, oneLine(n.Congestion))
	}
	return "  network     " + strings.Join(parts, ", ") + "\n"
}

// SendResult returns the text of a send or restore.
func SendResult(r *send.Report) ResultText {
	return func(err error) (stdout, stderr string) {
		switch {
		case r.DryRun && r.Plan != nil:
			return planText(r) + dryRunText(err), ""
		case err != nil:
			return "", failureText(r)
		}
		return summary(r) + nextText(r.Next) + rollbackText(r.Diverged), ""
	}
}

// summary summarizes a successful job.
func summary(r *send.Report) string {
	if r.Source == "" { // restore --mount DATASET
		if len(r.Mounted) == 0 {
			return fmt.Sprintf("%s: nothing was left to mount\n", oneLine(r.Target))
		}
		return fmt.Sprintf("%s: mounted %s\n", oneLine(r.Target), english.Plural(len(r.Mounted), "filesystem", ""))
	}
	if r.Outcome == "done" && len(r.Results) == 0 && r.Plan != nil && r.Plan.RollsBack() {
		return rolledBackText(r)
	}
	if r.Outcome == "done" && len(r.Results) == 0 {
		return fmt.Sprintf("%s -> %s: no data was left to send; the remaining steps are done\n", oneLine(r.Source), oneLine(r.Target))
	}
	if r.Outcome == "up-to-date" || len(r.Results) == 0 {
		return fmt.Sprintf("%s is up to date on %s%s\n", oneLine(r.Source), oneLine(r.Target), upToDateAt(r))
	}
	streams, datasets, resumed := 0, map[string]bool{}, 0
	for _, s := range r.Results {
		if s.Error != "" {
			continue // an interrupted attempt; a later one succeeded
		}
		streams++
		datasets[s.Source] = true
		if s.Resumed {
			resumed++
		}
	}
	parts := []string{
		fmt.Sprintf("%s -> %s: %s in %s%s", oneLine(r.Source), oneLine(r.Target), size.Text(r.Bytes), Seconds(r.Seconds), inParens(meanRate(r))),
		english.Plural(len(datasets), "dataset", ""), english.Plural(streams, "stream", ""),
	}
	if resumed > 0 {
		parts = append(parts, fmt.Sprintf("%d resumed", resumed))
	}
	if r.LimitedBy != "" {
		parts = append(parts, "limited by "+oneLine(r.LimitedBy))
	}
	if v := Verified(r.Results); v != "" {
		parts = append(parts, "verified by "+v)
	}
	return strings.Join(parts, ", ") + "\n"
}

// rolledBackText summarizes a restore that only rolled datasets back.
func rolledBackText(r *send.Report) string {
	n, to := 0, ""
	for _, d := range r.Plan.Datasets {
		if d.RollsBack() {
			n++
			to = d.Restore.Rollback.Snapshot()
		}
	}
	what := "rolled back to " + to
	if n > 1 {
		what = fmt.Sprintf("rolled back %d datasets", n)
	}
	return fmt.Sprintf("%s -> %s: %s, nothing had to be sent\n", oneLine(r.Source), oneLine(r.Target), oneLine(what))
}

// rollbackText explains how to replicate to the copy again.
func rollbackText(command string) string {
	if command == "" {
		return ""
	}
	return "the copy now has newer snapshots than its original, so that jobs refuse it; to roll it back (preview with a dry run):\n" + indented([]string{command})
}

// nextText lists the commands that a restore leaves to the user.
func nextText(commands []string) string {
	if len(commands) == 0 {
		return ""
	}
	return "to use it, run there:\n" + indented(commands)
}

func meanRate(r *send.Report) string {
	if !(r.Seconds > 0) {
		return ""
	}
	return rate(uint64(float64(r.Bytes) / r.Seconds))
}

func upToDateAt(r *send.Report) string {
	if r.Plan == nil || len(r.Plan.Datasets) != 1 {
		return ""
	}
	return " (" + oneLine(r.Plan.Datasets[0].Final.Short()) + ")"
}

// Verified returns the weakest verification of all streams that arrived, or "" if one was not
// verified.
func Verified(results []*send.StepResult) string {
	weakest := ""
	for _, r := range results {
		switch {
		case r.Error != "":
		case r.Verified == "":
			return ""
		case weakest == "" || r.Verified == "guid":
			weakest = r.Verified
		}
	}
	return oneLine(weakest)
}

// failureText returns what the error of a failed job does not say: conflict evidence and what
// arrived.
func failureText(r *send.Report) string {
	text := ""
	if r.Plan != nil {
		text = conflictsText(r.Plan.Conflicts, false)
	}
	arrived := 0
	for _, s := range r.Results {
		if s.Error == "" {
			arrived++
		}
	}
	if len(r.Results) > 0 && r.Plan != nil && !r.Interrupted {
		text += fmt.Sprintf("completed before the failure: %d of %s, %s sent\n", arrived, english.Plural(r.Plan.Steps(), "stream", ""), size.Text(r.Bytes))
	}
	if len(r.Next) > 0 {
		text += "no longer mounted; to mount its present state, run there:\n" + indented(r.Next)
	}
	return text
}
