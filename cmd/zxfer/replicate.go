package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/report"
	"zxfer/pkg/report/html"
	"zxfer/pkg/zfs"
)

// Where replicate finds its job file and keeps its records.
const (
	defaultJobFile  = "/etc/zxfer/replicate.toml"
	defaultStateDir = "/var/lib/zxfer"
)

// replicateOptions are the flags that all verbs of replicate have.
type replicateOptions struct {
	file, stateDir string
	host           string // whose part of the file is meant, "" = this one
	json           bool
}

func newReplicate(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replicate",
		Short: "Replicate datasets on a schedule",
		Long: `replicate keeps copies of datasets up to date, from a job file: it takes
snapshots, sends what is new to one or more targets, holds and bookmarks what
the next increment needs, and removes what retention does not keep. A job
without a target only takes and removes snapshots.

It has no daemon: systemd timers (replicate install) or cron start one run after
the other. Every step that was interrupted is resumed by the next run. Nothing
on a target is rolled back or destroyed but snapshots that the job itself
brought there and retention does not keep or, where the job file says so (mirror),
what the source no longer has.`,
		Example: `  zxfer replicate init                 ask a few questions, write the job file
  zxfer replicate check                show what the next runs would do
  zxfer replicate install              write and start the systemd timers
  zxfer replicate run home             run a job now
  zxfer replicate status               how every dataset stands
  zxfer replicate drill home           prove that its copies can be restored`,
		Args:                       noVerbOfThatName,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return a.noVerb(cmd) },
		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newReplicateCheck(a), newReplicateRun(a), newReplicateStatus(a), newReplicateDrill(a), newReplicateLog(a), newReplicateMetrics(a), newReplicatePrune(a),
		newReplicateHolds(a), newReplicateInit(a), newReplicateImport(a), newReplicateInstall(a), newReplicateUninstall(a), newReplicateAuthorize(a))
	return cmd
}

// configFlag is what names a job file that is not the default one on a command
// line, "" for the default.
func configFlag(file string) string {
	if file == "" || file == defaultJobFile {
		return ""
	}
	return " " + zfs.CommandLine([]string{"--config", file})
}

// flags are what names the job file, the state directory and the host on a command
// line, where they are not the default ones.
func (o *replicateOptions) flags() string {
	flags := configFlag(o.file)
	if o.stateDir != "" && o.stateDir != defaultStateDir {
		flags += " " + zfs.CommandLine([]string{"--state-dir", o.stateDir})
	}
	if o.host != "" {
		flags += " " + zfs.CommandLine([]string{"--host", o.host})
	}
	return flags
}

// define declares the flags that all verbs have.
func (o *replicateOptions) define(cmd *cobra.Command, withState, withJSON bool) {
	if strings.Contains(cmd.Use, "JOB") {
		cmd.ValidArgsFunction = o.completeJobs
	}
	flagGroup(cmd, "Where", func(f *pflag.FlagSet) {
		f.StringVarP(&o.file, "config", "c", defaultJobFile, "the job `FILE`")
		if withState {
			f.StringVar(&o.stateDir, "state-dir", defaultStateDir, "`DIRECTORY` of records and locks")
			f.StringVar(&o.host, "host", "", "the `NAME` of this host in the job file (default its own, without domain)")
		}
	})
	if withState {
		// The flag was declared: registering cannot fail.
		_ = cmd.RegisterFlagCompletionFunc("host", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return o.completeHosts(false, nil)
		})
	}
	if withJSON {
		flagGroup(cmd, "Output", func(f *pflag.FlagSet) { f.BoolVar(&o.json, "json", false, "one JSON object on stdout") })
	}
}

// load reads this host's part of the job file.
func (o *replicateOptions) load() (*replicate.File, error) {
	inv, err := o.inventory()
	if err != nil {
		return nil, err
	}
	return inv.For(o.hostName())
}

// inventory reads the job file.
func (o *replicateOptions) inventory() (*replicate.Inventory, error) {
	text, err := os.ReadFile(o.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.Usagef("zxfer replicate init writes one; --config names another", "there is no job file %s", o.file)
	}
	if err != nil {
		return nil, err
	}
	return replicate.Read(o.file, text)
}

// hostName is whose part of a job file this is, "" where that is not known.
func (o *replicateOptions) hostName() string {
	if o.host != "" {
		return o.host
	}
	own, err := os.Hostname()
	if err != nil { // it matters only where the file asks for it
		return ""
	}
	return own
}

// jobs reads the job file and returns its jobs of those names, each once; all
// where there are no names.
func (o *replicateOptions) jobs(names []string) (*replicate.File, []*replicate.Job, error) {
	f, err := o.load()
	if err != nil {
		return nil, nil, err
	}
	if len(f.Jobs) == 0 && (f.Host == "" || len(names) > 0) {
		return nil, nil, fault.Usagef("", "%s has no job%s", o.file, forHost(f))
	}
	var out []*replicate.Job
	var all []string
	for i := range f.Jobs {
		all = append(all, f.Jobs[i].Name)
		if len(names) == 0 {
			out = append(out, &f.Jobs[i])
		}
	}
	for _, n := range names {
		j := f.Find(n)
		if j == nil {
			return nil, nil, fault.Usagef("the file has: "+strings.Join(all, ", "), "there is no job %q%s", n, forHost(f))
		}
		if !slices.Contains(out, j) {
			out = append(out, j)
		}
	}
	return f, out, nil
}

// forHost is said of what a part of a job file has not.
func forHost(f *replicate.File) string {
	if f.Host == "" {
		return ""
	}
	return " for host " + f.Host
}

// namesOr takes names of jobs, or none with --all.
func namesOr(all *bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *all == (len(args) > 0) {
			return fault.Usagef("zxfer help "+strings.TrimPrefix(cmd.CommandPath(), "zxfer "), "name jobs, or give --all")
		}
		return nil
	}
}

// runner makes a Runner that reaches hosts as zxfer send does, and what shows its
// work while it lasts, by the names of targets. Before anything else is written that
// is to be Over.
func (o *replicateOptions) runner(a *app) (*runner.Runner, *report.Text) {
	text := report.NewText(report.Options{Stdout: a.stdout, Stderr: a.stderr, Often: true, Size: terminalSize(a.stderr)})
	at := &opener{doing: text.ActivityState}
	r := runner.New(o.stateDir, at, a.now, text.Log)
	at.log = func(message string) { r.Log(message) } // who watches r hears of hosts, too
	r.Flags = o.flags()
	r.Reporter = func(_, target string) job.Reporter { return text.Part(target) }
	return r, text
}

func newReplicateRun(a *app) *cobra.Command {
	o := &replicateOptions{}
	var all, wait, service bool
	var show pageFile
	var first plan.First
	cmd := &cobra.Command{
		Use:   "run [FLAGS] JOB ...",
		Short: "Run jobs once, now",
		Long: `run runs jobs once, one after the other: snapshots, transfers to all targets,
holds and bookmarks, retention. Datasets that fail do not stop the others. A job
that runs already is left alone (exit code 3), or waited for with --wait.

Exit code 1 says that something failed, 4 that the next run resumes what was
interrupted.`,
		Example: "  zxfer replicate run home\n  zxfer replicate run --all",
		Args:    namesOr(&all),
		RunE: func(cmd *cobra.Command, args []string) error {
			if service {
				obeyOnce()
			}
			f, jobs, err := o.jobs(args)
			if err != nil {
				return err
			}
			for _, j := range jobs {
				j.Begin(first)
			}
			err = o.run(cmd.Context(), a, f, jobs, wait, &show)
			if service && exitClass(cmd.Context(), err) == fault.Interrupted && errors.Is(context.Cause(cmd.Context()), errSignal) {
				_, err = fmt.Fprintln(a.stderr, "stopped; the next run resumes")
			}
			return err
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "How to run", func(fs *pflag.FlagSet) {
		fs.BoolVar(&all, "all", false, "run every job of the file")
		fs.Var(firstWay(&first), "first", "how a dataset begins that a target does not have, in this run, whatever the job says: with all history, the newest snapshot, or not at all")
		fs.BoolVar(&wait, "wait", false, "wait for the end of a job that runs already")
		fs.BoolVar(&service, "service", false, "end with exit code 0 when told to stop, as a service should: the next run resumes")
		show.define(fs)
	})
	completeWords(cmd, "first", plan.FirstWays()...)
	return cmd
}

func (o *replicateOptions) run(ctx context.Context, a *app, f *replicate.File, jobs []*replicate.Job, wait bool, show *pageFile) error {
	if err := show.check(); err != nil {
		return err
	}
	r, text := o.runner(a)
	defer live(text)()
	course := show.recorder(a)
	watch(r, course, len(jobs) > 1)
	records, errs := each(ctx, o, jobs, func(j *replicate.Job) (*statedir.Run, error) { return r.Run(ctx, j, wait) }, func(rec *statedir.Run) error {
		return report.RunText(a.stdout, rec)
	}, text.Over)
	errs = append(errs, r.Close(), o.writeMetrics(ctx, a, f))
	if o.json {
		errs = append(errs, writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.run/v1", "runs": records}))
	}
	return show.write(a, outcome.Join(errs...), func(about html.About) ([]byte, error) {
		return html.Run(about, records, runner.StatusOf(jobs, o.stateDir, a.now(), o.scheduledSince), course.Course(), errs)
	})
}

// each does something with jobs, one after the other, until it is interrupted, and shows
// the record of each; over is called when one has ended.
func each[R any](ctx context.Context, o *replicateOptions, jobs []*replicate.Job, do func(*replicate.Job) (*R, error), show func(*R) error, over func()) (records []*R, errs []error) {
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
