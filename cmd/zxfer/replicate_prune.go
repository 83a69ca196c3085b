package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/report"
)

func newReplicatePrune(a *app) *cobra.Command {
	o := &replicateOptions{}
	var all, dryRun, beyond bool
	cmd := &cobra.Command{
		Use:   "prune [FLAGS] JOB ...",
		Short: "Apply the retention policy without a transfer",
		Long: `Destroy the snapshots that a job's retention policy does not keep, on the
source and all targets. On mirrors, also destroy what was deleted on the
source. Each run does the same at its end.`,
		Example: `  zxfer replicate prune -n home
      list what would be destroyed
  zxfer replicate prune home
      prune the source and the targets of one job
  zxfer replicate prune --all
      prune all jobs`,
		Annotations: map[string]string{exitTitle: `  3  a side would exceed prune_limit or mirror.limit, and was not pruned`},
		Args:        requireJobs(&all),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, jobs, err := o.jobs(args)
			if err != nil {
				return err
			}
			r, text := o.runner(a)
			defer startLive(text)()
			var errs []error
			byJob := map[string][]*decision.Pruning{}
			for _, j := range jobs {
				sides, err := r.Prune(cmd.Context(), j, dryRun, beyond)
				text.EndJob()
				errs = append(errs, err)
				byJob[j.Name] = sides
				for _, s := range sides {
					if !o.json {
						errs = append(errs, report.PruningText(a.stdout, j.Name, s, dryRun))
					}
				}
			}
			errs = append(errs, r.Env.Close())
			if o.json {
				errs = append(errs, writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.prune/v1", "dry_run": dryRun, "jobs": byJob}))
			}
			return outcome.Join(errs...)
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Run", func(fs *pflag.FlagSet) {
		fs.BoolVar(&all, "all", false, allHelp)
		fs.BoolVarP(&dryRun, "dry-run", "n", false, dryRunHelp)
		fs.BoolVar(&beyond, "beyond-limit", false, "exceed prune_limit and mirror.limit this time")
	})
	return cmd
}
