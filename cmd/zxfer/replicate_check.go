package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/size"
)

func newReplicateCheck(a *app) *cobra.Command {
	o := &replicateOptions{}
	var offline, verbose bool
	cmd := &cobra.Command{
		Use:   "check [FLAGS] [JOB ...]",
		Short: "Check the job file and show what the next run would do",
		Long: `check reads the job file, reaches every host, and shows what the next run of
each job would do: the snapshots it would take, what it would send where, what
stands in the way, and what retention would remove. It changes nothing.`,
		RunE: func(cmd *cobra.Command, args []string) error {
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
				_, err := fmt.Fprintf(a.stdout, "%s: %s, no fault\n", o.file, english.Plural(len(f.Jobs), "job", ""))
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
					writePreview(a.stdout, p, verbose)
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
		fs.BoolVarP(&verbose, "verbose", "v", false, "list every stream and every snapshot, and why it stays")
	})
	return cmd
}

func writePreview(w io.Writer, p *runner.Preview, verbose bool) {
	alone := ""
	if p.Alone {
		alone = ", no target: nothing is sent"
	}
	fmt.Fprintf(w, "%s: %s, %s%s\n", p.Job, p.Source, english.Plural(p.Datasets, "dataset", ""), alone)
	if p.Error != "" {
		fmt.Fprintf(w, "  error: %s\n", oneLine(p.Error))
		writeHints(w, "  ", p.Hint)
	}
	if len(p.Snapshots) > 0 {
		shown := strings.Join(p.Snapshots, "\n    ")
		if !verbose && len(p.Snapshots) > 1 {
			shown = p.Snapshots[0] + " ..."
		}
		fmt.Fprintf(w, "  would take %s: %s\n", english.Plural(len(p.Snapshots), "snapshot", ""), shown)
	}
	for _, t := range p.Targets {
		fmt.Fprintf(w, "  %s (%s): ", t.Target, t.To)
		if t.Error != "" {
			fmt.Fprintf(w, "%s\n", oneLine(t.Error))
			writeHints(w, "    ", t.Hint)
			continue
		}
		writePlan(w, t, verbose)
	}
	for _, s := range p.Prunings {
		fmt.Fprintf(w, "  retention on %s: would remove %s and keep %s\n", s.Side, english.Plural(len(s.Remove), "snapshot", ""), humanize.Comma(int64(s.Kept)))
		for i := 0; verbose && i < len(s.Remove); i++ {
			fmt.Fprintf(w, "    %s\n", s.Remove[i])
		}
		for _, name := range slices.Sorted(maps.Keys(s.Stays)) {
			if verbose {
				fmt.Fprintf(w, "    %s stays: %s\n", name, s.Stays[name])
			}
		}
		writeDoubted(w, "    ", s, verbose)
		if s.Error != "" {
			fmt.Fprintf(w, "    error: %s\n", oneLine(s.Error))
			writeHints(w, "    ", s.Hint)
		}
	}
	for _, d := range p.Delegations {
		fmt.Fprintf(w, "  %s is not root on %s and needs, once, from root there: %s\n", d.User, cmp.Or(d.Host, "this host"), d.Command)
	}
}

// writeDoubted tells of dates that retention does not believe.
func writeDoubted(w io.Writer, indent string, p *replicate.Pruning, all bool) {
	if len(p.Doubted) == 0 {
		return
	}
	shown := p.Doubted[0] + " ..."
	if all || len(p.Doubted) == 1 {
		shown = strings.Join(p.Doubted, "\n  "+indent)
	}
	fmt.Fprintf(w, "%s%s with dates that are not believed count for no other: %s\n", indent, english.Plural(len(p.Doubted), "snapshot", ""), shown)
}

func writePlan(w io.Writer, t *runner.TargetPreview, verbose bool) {
	var bytes uint64
	unchanged, full := 0, 0
	for _, d := range t.Plan.Datasets {
		if len(d.Steps) == 0 {
			unchanged++
		}
		for _, s := range d.Steps {
			bytes += s.Bytes
			if s.Kind == plan.Full {
				full++
			}
		}
	}
	fmt.Fprintf(w, "%s to send in %s (%d of them in full), %d up to date, %d refused, wire %s",
		english.Plural(len(t.Plan.Datasets)-unchanged, "dataset", ""), english.Plural(t.Plan.Steps(), "stream", ""), full, unchanged, len(t.Refused), t.Wire.Mode)
	if bytes > 0 {
		fmt.Fprintf(w, ", about %s", size.Text(bytes))
	}
	fmt.Fprintln(w)
	if verbose {
		for _, d := range t.Plan.Datasets {
			for _, s := range d.Steps {
				fmt.Fprintf(w, "    %s to %s: %s to @%s: %s\n", d.Source, d.Target, s.Kind, s.Send.To, s.Why)
			}
		}
		for _, n := range t.Plan.Notes {
			fmt.Fprintf(w, "    %s\n", n)
		}
	}
	for _, d := range t.Refused {
		fmt.Fprintf(w, "    %s: %s\n", d.Source, oneLine(d.Error))
		writeHints(w, "      ", d.Hint)
	}
}

func newReplicatePrune(a *app) *cobra.Command {
	o := &replicateOptions{}
	var all, dryRun, beyond bool
	cmd := &cobra.Command{
		Use:   "prune [FLAGS] JOB ...",
		Short: "Apply retention now, without a transfer",
		Long: `prune removes the snapshots that a job's retention does not keep, on the source
and on every target that it reaches. Each run does the same at its end.

Never removed are the newest snapshot of a dataset, the newest common one of any
target, what an interrupted receive needs, what is held or has clones, and every
snapshot that the job neither made nor adopted. A snapshot whose date is in the
future, or before that of an earlier one, does not make any other go.

Of what earlier runs kept, one run removes what time and newer snapshots have
overtaken, and of each dataset at most prune_limit (100) others, as after a change
of the job file. Where it is more nothing is removed (exit code 3); with
--beyond-limit it is.`,
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
						writePruning(a.stdout, j.Name, s, dryRun)
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
		fs.BoolVar(&beyond, "beyond-limit", false, "remove, this once, more than prune_limit")
	})
	return cmd
}

func writePruning(w io.Writer, job string, p *replicate.Pruning, dryRun bool) {
	verb := "removed"
	if dryRun || p.Refused {
		verb = "would remove"
	}
	fmt.Fprintf(w, "%s on %s: %s %s, %s kept, %s of them only because they are held or have clones\n", job, p.Side, verb, english.Plural(len(p.Remove), "snapshot", ""),
		humanize.Comma(int64(p.Kept)), humanize.Comma(int64(len(p.Held))))
	if dryRun {
		for _, n := range p.Remove {
			fmt.Fprintf(w, "  %s\n", n)
		}
	}
	writeDoubted(w, "  ", p, dryRun)
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
common snapshot; --gc releases those. Holds of others are never touched.`,
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
				if _, err := fmt.Fprintf(a.stdout, "%s\t%s:%s\t%s\n", state, cmp.Or(h.Host, "local"), h.Snapshot, h.Tag); err != nil {
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
