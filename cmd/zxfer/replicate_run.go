package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/report"
	"zxfer/pkg/report/html"
)

func newReplicateRun(a *app) *cobra.Command {
	o := &replicateOptions{}
	var all, service bool
	var how runFlags
	var show pageFile
	var first plan.First
	cmd := &cobra.Command{
		Use:   "run [FLAGS] JOB ...",
		Short: "Run jobs once",
		Long: `Run jobs once, in sequence: take snapshots, send them to all targets, and apply
the retention policy. A failed dataset does not stop the others. The next run
resumes interrupted transfers.`,
		Annotations: map[string]string{exitTitle: `  3  a job is already running or is paused, or a check refused it`},
		Example: `  zxfer replicate run home
      run one job
  zxfer replicate run --all
      run every job of this host
  zxfer replicate run --report /tmp/home.html home
      write a page with rates, bottlenecks and errors`,
		Args: requireJobs(&all),
		RunE: func(cmd *cobra.Command, args []string) error {
			if service {
				ignoreSecondTerm()
			}
			f, jobs, err := o.jobs(args)
			if err != nil {
				return err
			}
			for _, j := range jobs {
				j.OverrideFirst(first)
			}
			how.scheduled = service
			err = o.run(cmd.Context(), a, f, jobs, how, &show)
			if service && exitClass(cmd.Context(), err) == fault.Interrupted && errors.Is(context.Cause(cmd.Context()), errSignal) {
				_, err = fmt.Fprintln(a.stderr, "stopped; the next run resumes")
			}
			return err
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Run", func(fs *pflag.FlagSet) {
		fs.BoolVar(&all, "all", false, allHelp)
		fs.Var(firstFlag(&first), "first", firstHelp)
		fs.BoolVar(&how.wait, "wait", false, "wait if a job is already running")
		fs.BoolVar(&how.ignorePause, "ignore-pause", false, "ignore pauses and bandwidth windows of 0")
		fs.BoolVar(&service, "service", false, "exit with 0 if paused or stopped, as systemd expects")
		fs.BoolVar(&how.noMail, "no-mail", false, "send no mail; zxfer replicate notify --due does")
		show.define(fs)
	})
	completeWords(cmd, "first", plan.FirstValues()...)
	advanced(cmd, "first", "no-mail", "service")
	return cmd
}

// runFlags holds flags of replicate run.
type runFlags struct{ wait, scheduled, ignorePause, noMail bool }

func (o *replicateOptions) run(ctx context.Context, a *app, f *replicate.File, jobs []*replicate.Job, how runFlags, show *pageFile) error {
	if err := show.check(); err != nil {
		return err
	}
	r, text := o.runner(a)
	defer startLive(text)()
	r.Scheduled, r.IgnorePause, r.NoMail = how.scheduled, how.ignorePause, how.noMail
	course := show.recorder(a)
	recordRuns(r, course, len(jobs) > 1)
	records, errs := forEachJob(ctx, o, jobs, func(j *replicate.Job) (*statedir.Run, error) { return r.Run(ctx, j, how.wait) }, func(rec *statedir.Run) error {
		return report.RunText(a.stdout, rec)
	}, text.EndJob)
	errs = append(errs, r.Env.Close(), o.writeMetrics(ctx, a, f))
	if o.json {
		errs = append(errs, writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.run/v1", "runs": records}))
	}
	return show.write(a, outcome.Join(errs...), func(about html.About) ([]byte, error) {
		return html.Run(about, records, status.Of(jobs, o.stateDir, a.now(), o.scheduledSince(jobs)), course.Recording(), errs)
	})
}

// forEachJob calls do for jobs in turn until interrupted, and shows each record. It calls over after
// each job.
func forEachJob[R any](ctx context.Context, o *replicateOptions, jobs []*replicate.Job, do func(*replicate.Job) (*R, error), show func(*R) error, over func()) (records []*R, errs []error) {
	for _, j := range jobs {
		rec, err := do(j)
		errs = append(errs, err)
		over()
		if rec != nil {
			records = append(records, rec)
			if !o.json {
				errs = append(errs, show(rec))
			}
		}
		if ctx.Err() != nil {
			break
		}
	}
	return records, errs
}
