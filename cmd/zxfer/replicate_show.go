package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/report"
	"zxfer/pkg/size"
)

func writeJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// runLine says in one line what came of a run.
func runLine(r *record.Run) string {
	line := fmt.Sprintf("%s: %s in %s", r.Job, r.Outcome, report.Seconds(r.Ended.Sub(r.Started).Seconds()))
	if r.Snapshots > 0 {
		line += fmt.Sprintf(", %s taken", english.Plural(r.Snapshots, "snapshot", ""))
	}
	if r.Pruned > 0 {
		line += fmt.Sprintf(", %d removed on the source, bookmarks included", r.Pruned)
	}
	return line
}

// writeRun shows what came of a run.
func writeRun(w io.Writer, r *record.Run) {
	fmt.Fprintln(w, runLine(r))
	for _, t := range r.Targets {
		if t.Outcome == "" {
			continue // the run ended before
		}
		fmt.Fprintf(w, "  %s (%s): %s: %d sent (%s), %d unchanged, %d failed, %d removed\n",
			t.Target, t.To, t.Outcome, t.Sent, size.Text(t.Bytes), t.Unchanged, t.Failed, t.Pruned)
	}
}

func newReplicateStatus(a *app) *cobra.Command {
	o := &replicateOptions{}
	var short bool
	cmd := &cobra.Command{
		Use:   "status [FLAGS] [JOB ...]",
		Short: "Show how every dataset stands",
		Long: `status shows, for each dataset and target, when it last arrived, how far it is
behind the schedule, what the last run moved and why it failed, and when the job
runs next. Of a job without a target it shows when the last snapshot was taken,
or was found not to be needed. It reads the records only and reaches no host.

A dataset is late when the run after its last success was due longer ago than
the job's grace (15 minutes unless the file says otherwise) and jitter. Exit
code 1 says that a job is late; a scheduled job that never ran is.`,
		RunE: func(_ *cobra.Command, args []string) error {
			_, jobs, err := o.jobs(args)
			if err != nil {
				return err
			}
			s, err := runner.StatusOf(jobs, o.stateDir, a.now())
			if err != nil {
				return err
			}
			if short {
				s.Shorten()
			}
			if o.json {
				err = writeJSON(a.stdout, s)
			} else {
				err = writeStatus(a.stdout, s, o.flags())
			}
			if err == nil && s.Late {
				return &shown{fault.Failf("", "a job is late")}
			}
			return err
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&short, "short", false, "only what is late or failed")
	})
	return cmd
}

func newReplicateMetrics(a *app) *cobra.Command {
	o := &replicateOptions{}
	var show bool
	cmd := &cobra.Command{
		Use:   "metrics [FLAGS]",
		Short: "Write the metrics of all jobs",
		Long: `metrics writes what the last runs of all jobs left to the file that [metrics]
textfile names, for node_exporter's textfile collector, as every run does. A job
that runs as another user than root may not: the unit that install writes for it
runs this as root when the job has ended; with cron, run it as root.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := o.load()
			if err != nil {
				return err
			}
			if show {
				text, err := runner.Metrics(f, o.stateDir)
				if err == nil {
					_, err = a.stdout.Write(text)
				}
				return err
			}
			if f.Metrics.Textfile == "" {
				return fault.Usagef("add [metrics] textfile = \"….prom\", or give --stdout", "%s names no file for metrics", o.file)
			}
			return runner.WriteMetrics(cmd.Context(), f, o.stateDir)
		},
	}
	o.define(cmd, true, false)
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&show, "stdout", false, "print them instead")
	})
	return cmd
}

func writeStatus(w io.Writer, s *runner.Status, flags string) error {
	for _, j := range s.Jobs {
		state := "never ran"
		if !j.LastRun.IsZero() {
			state = fmt.Sprintf("last run %s, %s in %s", stamp(j.LastRun), j.Outcome, report.Seconds(j.Seconds))
		}
		fmt.Fprintf(w, "%s: %s, %s", j.Job, j.Source, state)
		if j.Next.IsZero() {
			fmt.Fprint(w, ", no schedule")
		} else {
			fmt.Fprintf(w, ", next %s", stamp(j.Next))
		}
		if j.Late {
			fmt.Fprint(w, ", LATE")
		}
		fmt.Fprintln(w)
		if j.Error != "" {
			fmt.Fprintf(w, "  error: %s\n", oneLine(j.Error))
			writeHints(w, "  ", j.Hint)
		}
		if j.Doubted > 0 {
			fmt.Fprintf(w, "  retention does not believe the dates of %s\n", english.Plural(j.Doubted, "snapshot", ""))
			writeHints(w, "  ", "look who sends them: zxfer replicate prune -n "+j.Job+flags)
		}
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, d := range j.Datasets {
			last := "never"
			if !d.Success.IsZero() {
				last = stamp(d.Success)
			}
			lag := "on time"
			switch {
			case d.Late && d.Lag == 0:
				lag = "LATE"
			case d.Late:
				lag = "LATE by " + report.Seconds(d.Lag)
			case d.Lag > 0:
				lag = "due for " + report.Seconds(d.Lag)
			case j.Schedule == "":
				lag = "-"
			}
			if d.To == "" { // a job without a target
				fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", d.Source, last, lag, newest(d.Snapshot))
				continue
			}
			fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s in %s\n", d.Source, d.To, last, lag, size.Text(d.Bytes), report.Seconds(d.Seconds))
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		for _, d := range j.Datasets {
			if d.Error != "" && d.Error != j.Error {
				to := ""
				if d.To != "" {
					to = " to " + d.To
				}
				fmt.Fprintf(w, "  %s%s: %s\n", d.Source, to, oneLine(d.Error))
				writeHints(w, "    ", d.Hint)
			}
		}
	}
	return nil
}

func newest(snapshot string) string {
	if snapshot == "" {
		return "no snapshot"
	}
	return "@" + snapshot
}

func stamp(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

func oneLine(s string) string {
	return report.Line(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

func writeHints(w io.Writer, indent, hint string) {
	for l := range strings.Lines(hint) {
		fmt.Fprintf(w, "%shint: %s\n", indent, report.Line(l))
	}
}

func newReplicateLog(a *app) *cobra.Command {
	o := &replicateOptions{}
	n := 20
	cmd := &cobra.Command{
		Use:   "log [FLAGS] JOB",
		Short: "Show the records of past runs",
		Long: `log shows the newest runs of a job, the newest last. With --json each run is one
line, with every dataset that had something to send. The job need not be in the
file any more.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fault.Usagef(helpOf(cmd), "log takes the name of one job, not %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] == "" || strings.ContainsAny(args[0], "/.") {
				return fault.Usagef("", "%q is not the name of a job", args[0])
			}
			runs, err := record.Peek(o.stateDir, args[0]).Runs(n)
			if err != nil {
				return err
			}
			if len(runs) == 0 {
				return fault.Failf("--state-dir names another directory", "job %q has no records in %s", args[0], o.stateDir)
			}
			for _, r := range runs {
				if o.json {
					err = writeJSON(a.stdout, r)
				} else {
					writeLog(a.stdout, r)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	o.define(cmd, true, true)
	cmd.Flags().Lookup("config").Usage = "the job `FILE` of the other verbs; the records alone are read"
	cmd.Flags().Lookup("json").Usage = "one JSON object a run on stdout, each on a line"
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.VarP(option.Count(&n, 1, 1_000_000), "lines", "n", "runs to show")
	})
	return cmd
}

func writeLog(w io.Writer, r *record.Run) {
	fmt.Fprintf(w, "%s ", stamp(r.Started))
	writeRun(w, r)
	if r.Error != "" {
		fmt.Fprintf(w, "  error: %s\n", oneLine(r.Error))
	}
	for _, f := range r.Failures() {
		of := f.Target
		if f.Source != "" {
			of += ": " + f.Source
		}
		fmt.Fprintf(w, "  %s: %s\n", of, oneLine(f.Error))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "  note: %s\n", oneLine(n))
	}
}
