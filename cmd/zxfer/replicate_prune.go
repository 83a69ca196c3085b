package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/report"
)

func newReplicatePrune(a *app) *cobra.Command {
	o := &replicateOptions{}
	var all, dryRun, beyond bool
	cmd := &cobra.Command{
		Use:   "prune [FLAGS] JOB ...",
		Short: "Apply retention now, without a transfer",
		Long: `prune removes the snapshots that a job's retention does not keep, on the source
and on every target that it reaches, and from the targets that are a mirror what the
source no longer has. Each run does the same at its end.

Never removed are the newest snapshot of a dataset, the newest common one of any
target, what an interrupted receive needs, what is held or has clones, and every
snapshot that the job neither made nor adopted. A snapshot whose date is in the
future, or before that of an earlier one, does not make any other go.

Of what earlier runs kept, one run removes what time and newer snapshots have
overtaken, and of each dataset at most prune_limit (100) others, as after a change
of the job file; from a mirror, of each dataset at most mirror.limit (100). Where it
is more nothing is removed (exit code 3); with --beyond-limit it is.`,
		Args: requireJobs(&all),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, jobs, err := o.jobs(args)
			if err != nil {
				return err
			}
			r, text := o.runner(a)
			defer startLive(text)()
			var errs []error
			byJob := map[string][]*replicate.Pruning{}
			for _, j := range jobs {
				sides, err := r.Prune(cmd.Context(), j, dryRun, beyond)
				text.Over()
				errs = append(errs, err)
				byJob[j.Name] = sides
				for _, s := range sides {
					if !o.json {
						errs = append(errs, report.PruningText(a.stdout, j.Name, s, dryRun))
					}
				}
			}
			errs = append(errs, r.Close())
			if o.json {
				errs = append(errs, writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.prune/v1", "dry_run": dryRun, "jobs": byJob}))
			}
			return outcome.Join(errs...)
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "How to run", func(fs *pflag.FlagSet) {
		fs.BoolVar(&all, "all", false, "every job of the file")
		fs.BoolVarP(&dryRun, "dry-run", "n", false, "list what would be removed and change nothing")
		fs.BoolVar(&beyond, "beyond-limit", false, "remove, this once, more than prune_limit or mirror.limit")
	})
	return cmd
}
