package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/status"
)

// maxHostHints is the number of hosts whose hints HostsText shows.
const maxHostHints = 3

// HostsText writes the job status of many hosts for people: a line for each job, worst first, and
// totals. With short it omits jobs that are OK.
func HostsText(w io.Writer, f *fleet.Fleet, short bool) error {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, h := range f.Hosts {
		host := oneLine(h.Host)
		if h.State == status.Unreachable {
			fmt.Fprintf(tw, "%s\t-\t%s\t%s\n", host, capitals(h.State), joinLines(h.Error))
			continue
		}
		if len(h.Jobs) == 0 && !short {
			fmt.Fprintf(tw, "%s\t-\t%s\tno job\n", host, h.State)
		}
		for _, j := range h.Jobs {
			if !short || j.State != status.OK {
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", host, oneLine(j.Job), hostState(j), strings.Join(hostFacts(j), ", "))
			}
		}
	}
	_ = tw.Flush() // writes to a Builder cannot fail
	hints := 0
	for _, h := range f.Hosts {
		if h.Hint != "" && hints < maxHostHints {
			hints++
			writePrefixed(&b, "  hint: "+oneLine(h.Host)+": ", h.Hint)
		}
	}
	fmt.Fprintln(&b, hostsSum(f))
	for _, p := range f.NotAsked {
		fmt.Fprintf(&b, "not queried, because the job file does not name them: hosts like %s\n", oneLine(p))
	}
	return writeString(w, b.String())
}

// hostsSum counts hosts, jobs and copies, and the hosts in each bad state.
func hostsSum(f *fleet.Fleet) string {
	states, count := f.Counts()
	sum := f.Summary()
	var parts []string
	for _, s := range states {
		if s != status.OK {
			parts = append(parts, fmt.Sprintf("%d %s", count[s], oneLine(s)))
		}
	}
	if len(parts) == 0 {
		parts = []string{"all ok"}
	}
	return fmt.Sprintf("%s, %s, %d of %s ok: %s", english.Plural(len(f.Hosts), "host", ""),
		english.Plural(sum.Jobs, "job", ""), sum.Healthy, english.Plural(sum.Copies, "copy", "copies"), strings.Join(parts, ", "))
}

// hostState returns the state of a job, in capitals if it needs attention.
func hostState(j *fleet.Job) string {
	state := oneLine(j.State)
	if j.State != status.OK && j.State != status.Unknown {
		state = capitals(state)
	}
	return state
}

// hostFacts describes a job, its problems first.
func hostFacts(j *fleet.Job) (facts []string) {
	facts = append(firstProblem(j.JobStatus), InProgress(j.JobStatus)...)
	facts = append(facts, Pauses(j.JobStatus, stamp)...)
	if j.Late && j.Lag > 0 {
		facts = append(facts, "late by "+Seconds(j.Lag))
	}
	if j.Copies > 0 {
		facts = append(facts, fmt.Sprintf("%d of %s ok", j.Well, english.Plural(j.Copies, "copy", "copies")))
	}
	if n := len(UnknownPools(j.JobStatus, stamp)); n > 0 {
		facts = append(facts, "data errors of "+english.Plural(n, "pool", "")+" unknown")
	}
	facts = append(facts, KeptCopies(fleet.Summarize(j))...)
	if !j.LastRun.IsZero() {
		facts = append(facts, "last run "+stamp(j.LastRun))
	}
	return facts
}

// KeptCopies counts the diverged copies, the orphans, and the copies without properties of their source.
func KeptCopies(s *status.Summary) (facts []string) {
	if n := s.Diverged; n > 0 {
		facts = append(facts, fmt.Sprintf("%d renamed", n))
	}
	if n := s.Orphans; n > 0 {
		facts = append(facts, fmt.Sprintf("%d deleted on the source", n))
	}
	if n := s.Lacking; n > 0 {
		facts = append(facts, fmt.Sprintf("%d without properties of the source", n))
	}
	return facts
}
