package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/report"
)

func newReplicateCheck(a *app) *cobra.Command {
	o := &replicateOptions{}
	var offline, everywhere, verbose bool
	cmd := &cobra.Command{
		Use:   "check [FLAGS] [JOB ...]",
		Short: "Check the job file and show what the next run would do",
		Long: `check reads the job file, reaches every host, and shows what the next run of
each job would do: the snapshots it would take, what it would send where, what
stands in the way, and what retention or a mirror would remove once that has
arrived. It
changes nothing.

Of a file that hosts share it checks this host's part, with --all-hosts that of
every host, as far as that can be told from here: it reads the file only.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if everywhere {
				return o.checkAll(a, cmd.Flags(), args)
			}
			if offline {
				if err := ineffective(cmd.Flags(), "with --offline: the exit code tells", "json", "verbose", "state-dir"); err != nil {
					return err
				}
			}
			f, jobs, err := o.jobs(args)
			if err != nil {
				return err
			}
			if offline {
				_, err := fmt.Fprintf(a.stdout, "%s: %s%s, no fault\n", o.file, english.Plural(len(f.Jobs), "job", ""), forHost(f))
				return err
			}
			r, text := o.runner(a)
			defer live(text)()
			var errs []error
			var all []*runner.Preview
			for _, j := range jobs {
				p, err := r.Preview(cmd.Context(), j)
				text.Over()
				if err != nil {
					errs = append(errs, err)
					break
				}
				all = append(all, p)
				if !o.json {
					errs = append(errs, report.PreviewText(a.stdout, p, verbose))
				}
				errs = append(errs, p.Wrong())
			}
			errs = append(errs, r.Close())
			if o.json {
				errs = append(errs, writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.check/v1", "jobs": all}))
			}
			return errors.Join(errs...)
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Output", func(fs *pflag.FlagSet) {
		fs.BoolVar(&offline, "offline", false, "only read the file, reach no host")
		fs.BoolVar(&everywhere, "all-hosts", false, "check the parts of all hosts of the file, reach none")
		fs.BoolVarP(&verbose, "verbose", "v", false, "list every stream and every snapshot, and why it stays")
	})
	return cmd
}

// maxParts is of how many hosts the faults are shown: they are often the same.
const maxParts = 5

// checkAll checks the parts of all hosts of a file.
func (o *replicateOptions) checkAll(a *app, flags *pflag.FlagSet, args []string) error {
	if err := ineffective(flags, "with --all-hosts, which reads the file only", "json", "verbose", "state-dir", "host"); err != nil {
		return err
	}
	if len(args) > 0 {
		return fault.Usagef("leave the names out", "with --all-hosts all jobs are checked")
	}
	inv, err := o.inventory()
	if err != nil {
		return err
	}
	parts := inv.Parts()
	if len(parts) == 0 {
		return fault.Usagef("leave --all-hosts out", "%s has no [[host]]", o.file)
	}
	var errs []error
	for _, p := range parts {
		if p.Err != nil {
			errs = append(errs, p.Err)
			continue
		}
		names := "no job"
		for i := range p.File.Jobs {
			if i == 0 {
				names = p.File.Jobs[i].Name
				continue
			}
			names += ", " + p.File.Jobs[i].Name
		}
		if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", p.Host, names); err != nil {
			return err
		}
	}
	if more := len(errs) - maxParts; more > 0 {
		errs = append(errs[:maxParts], fault.Usagef("", "and faults in the parts of %s", english.Plural(more, "more host", "more hosts")))
	}
	return errors.Join(errs...)
}

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
		Args: namesOr(&all),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, jobs, err := o.jobs(args)
			if err != nil {
				return err
			}
			r, text := o.runner(a)
			defer live(text)()
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
			defer live(text)()
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
