package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/report"
	"zxfer/pkg/zfs"
)

func newReplicateHolds(a *app) *cobra.Command {
	o := &replicateOptions{}
	var gc bool
	cmd := &cobra.Command{
		Use:   "holds [FLAGS]",
		Short: "List holds of jobs, and release stale ones",
		Long: `List the holds and drill clones of jobs, and whether they are stale. A hold is
stale if its job or target was removed, or if it is not on the most recent
common snapshot, for example on a dataset that switch --rotate renamed. zxfer
never touches other holds and clones.`,
		Example: `  zxfer replicate holds
      list all holds and drill clones
  zxfer replicate holds --gc
      release stale holds and destroy stale clones`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := o.load()
			if err != nil {
				return err
			}
			r, text := o.runner(a)
			defer startLive(text)()
			held, err := holds.List(cmd.Context(), r.Env, f, gc)
			text.EndJob()
			errs := []error{err, r.Env.Close()}
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
					if h.Job == zfs.ReadCloneMark {
						by = "clone of " + h.Snapshot + ", to read its files"
					}
				}
				if _, err := fmt.Fprintf(a.stdout, "%s\t%s:%s\t%s\n", state, cmp.Or(h.Host, "local"), report.Line(what), report.Line(by)); err != nil {
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Run", func(fs *pflag.FlagSet) {
		fs.BoolVar(&gc, "gc", false, "release stale holds, and destroy stale clones")
	})
	return cmd
}
