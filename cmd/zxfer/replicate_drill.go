package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/drill"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/report"
)

// drillOptions holds the flags of replicate drill.
type drillOptions struct {
	replicateOptions
	sample, seed string
	service      bool
}

func newReplicateDrill(a *app) *cobra.Command {
	o := &drillOptions{}
	cmd := &cobra.Command{
		Use:   "drill [FLAGS] [JOB ...]",
		Short: "Test whether copies can be restored",
		Long: `Test whether the copies of a job can be restored. drill clones the most recent
snapshot of each copy, reads its files, compares them with the source, and runs
the command of the job file. Then it destroys the clone.`,
		Annotations: map[string]string{argsTitle: `  JOB  a job of the job file (default: every job with [job.drill])`, exitTitle: `  1  a copy is bad, or could not be tested`},
		Example: `  zxfer replicate drill home
      test the copies of one job
  zxfer replicate drill --sample 5% home
      read only a random sample of the files
  zxfer replicate drill --sample 5% --seed 7421 home
      read the same sample as an earlier drill`,
		RunE: func(cmd *cobra.Command, args []string) error { return o.drill(cmd.Context(), a, args) },
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Test", func(fs *pflag.FlagSet) {
		fs.StringVar(&o.sample, "sample", "", "read only `SHARE` of the files, such as 5% (default: job file)")
		fs.StringVar(&o.seed, "seed", "", "choose the sample by seed `NUMBER` (default random)")
		fs.BoolVar(&o.service, "service", false, "skip paused jobs, as a scheduled drill")
	})
	advanced(cmd, "service")
	return cmd
}

func (o *drillOptions) drill(ctx context.Context, a *app, names []string) error {
	how, err := o.options()
	if err != nil {
		return err
	}
	f, jobs, err := o.drillJobs(names)
	if err != nil {
		return err
	}
	r, text := o.runner(a)
	defer startLive(text)()
	how.Scheduled = o.service
	records, errs := forEachJob(ctx, &o.replicateOptions, jobs, func(j *replicate.Job) (*statedir.Drill, error) { return drill.Run(ctx, r.Env, j, how) }, func(rec *statedir.Drill) error {
		return report.DrillText(a.stdout, rec)
	}, text.EndJob)
	errs = append(errs, r.Env.Close(), o.writeMetrics(ctx, a, f))
	if o.json {
		errs = append(errs, writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.drill/v1", "drills": append([]*statedir.Drill{}, records...)}))
	}
	return outcome.Join(errs...)
}

// options parses the flags.
func (o *drillOptions) options() (d drill.Options, err error) {
	if o.sample != "" {
		if err := d.Sample.UnmarshalText([]byte(o.sample)); err != nil {
			return d, fault.Usagef("", "--sample: %w", err)
		}
	}
	if o.seed != "" {
		if d.Seed, err = strconv.ParseUint(o.seed, 10, 64); err != nil || d.Seed == 0 {
			return d, fault.Usagef("zxfer replicate log --drills --json JOB", "--seed %q: must be a whole number of at least 1", o.seed)
		}
	}
	return d, nil
}

// drillJobs returns the named jobs, or all jobs with drills if names is empty.
func (o *drillOptions) drillJobs(names []string) (*replicate.File, []*replicate.Job, error) {
	f, jobs, err := o.jobs(names)
	if err != nil || len(names) > 0 {
		return f, jobs, err
	}
	var some []*replicate.Job
	for _, j := range jobs {
		if j.HasDrills() {
			some = append(some, j)
		}
	}
	if len(some) == 0 {
		return nil, nil, fault.Usagef("zxfer replicate drill JOB", "no job of %s has a [job.drill] table", o.file)
	}
	return f, some, nil
}
