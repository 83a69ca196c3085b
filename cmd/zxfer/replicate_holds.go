package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/report"
)

func newReplicateHolds(a *app) *cobra.Command {
	o := &replicateOptions{}
	var gc bool
	cmd := &cobra.Command{
		Use:   "holds [FLAGS]",
		Short: "Show the holds of jobs, release those that nothing needs",
		Long: `holds lists the holds that jobs placed (tag zxfer:JOB:TARGET), on the sources
and targets of the file and of jobs that have records but are gone from it. A
hold is stale when its job or target is gone, or when it is not on the newest
common snapshot; --gc releases those. Holds of others are never touched.

Clones that drills made (POOL/zxfer-drill-ID) are listed, too. Those of a job that
is not in the file are stale, and --gc destroys them; others the job's next drill
does. A clone without the mark of a drill is never touched.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := o.load()
			if err != nil {
				return err
			}
			r, text := o.runner(a)
			defer startLive(text)()
			held, err := r.Holds(cmd.Context(), f, gc)
			text.Over()
			errs := []error{err, r.Close()}
			if o.json {
				return errors.Join(append(errs, writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.holds/v1", "holds": held}))...)
			}
			for _, h := range held {
				state := "needed"
				switch {
				case h.Released:
					state = "released"
				case h.Stale:
					state = "stale"
				}
				what, by := h.Snapshot, h.Tag
				if h.Clone != "" {
					what, by = h.Clone, "clone of "+h.Snapshot+", drill of "+h.Job
				}
				if _, err := fmt.Fprintf(a.stdout, "%s\t%s:%s\t%s\n", state, cmp.Or(h.Host, "local"), report.Line(what), report.Line(by)); err != nil {
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "How to run", func(fs *pflag.FlagSet) {
		fs.BoolVar(&gc, "gc", false, "release the stale ones")
	})
	return cmd
}
