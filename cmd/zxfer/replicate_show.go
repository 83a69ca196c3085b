package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/unit"
	"zxfer/pkg/report"
	"zxfer/pkg/report/html"
)

func writeJSON(w io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

func newReplicateStatus(a *app) *cobra.Command {
	o := &replicateOptions{}
	of := &hostsOptions{replicateOptions: o}
	var short, nagios bool
	var htmlFile string
	cmd := &cobra.Command{
		Use:   "status [FLAGS] [JOB ...]",
		Short: "Show how every dataset stands",
		Long: `status shows, for each dataset and target, when it last arrived, how far it is
behind the schedule, what the last run moved and why it failed, and when the job
runs next. Of a job without a target it shows when the last snapshot was taken,
or was found not to be needed. It reads the records only and reaches no host.

A dataset is late when the run after its last success was due longer ago than
the job's grace (15 minutes unless the file says otherwise) and jitter. Exit
code 1 says that a job is late, or that its last run failed, was refused or was
interrupted, in any part, or found data errors of a pool; a scheduled job that never
ran is late.

With --nagios it is a monitoring plugin, whose exit codes are 0 OK; 1 WARNING, a
job is late, a pool of it has data errors, or its last run was interrupted; 2 CRITICAL, its last run failed or
was refused, in any part, or it is late by a second run; 3 UNKNOWN, it has no
schedule and never ran, or its records cannot be read.

With --html it writes a page with the age of every copy instead, for a web server,
a mail or a colleague; the exit code is the same.

With --hosts it asks other hosts, all that the job file names, or only those that
are named here as hosts, as groups or as [user@]host: each by ssh, for its own
zxfer replicate status --json, so many at once. What is not well comes first. A host
that does not answer is one line; exit code 1 says so, too, and --nagios UNKNOWN where
nothing is worse. No password is asked for. To let a key show its host's
status and nothing else: zxfer replicate authorize --allow status.`,
		Example: `  zxfer replicate status                       this host
  zxfer replicate status --short home          what is not well with one job
  zxfer replicate status --hosts               all hosts of the job file
  zxfer replicate status --hosts web db1       a group of hosts, and one more
  zxfer replicate status --hosts --html /srv/www/backups.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("nagios") {
				return o.nagios(cmd.Context(), a, cmd.Flags(), args, of)
			}
			if htmlFile != "" {
				if err := ineffective(cmd.Flags(), "with --html", "json", "short"); err != nil {
					return err
				}
			}
			if err := of.check(cmd.Flags()); err != nil {
				return err
			}
			if of.hosts {
				return of.status(cmd.Context(), a, args, short, htmlFile)
			}
			s, err := o.status(a, args)
			if err != nil {
				return err
			}
			if short {
				s.Shorten()
			}
			switch {
			case htmlFile != "":
				err = writeHTML(a, htmlFile, func() ([]byte, error) { return html.Status(about(a), s) })
			case o.json:
				err = writeJSON(a.stdout, s)
			default:
				err = report.StatusText(a.stdout, s, o.flags())
			}
			if err == nil && (s.Late || s.Failed) {
				return &shown{fault.Failf("", "a job is late, or failed")}
			}
			return err
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&short, "short", false, "only what is late or failed")
		f.BoolVar(&nagios, "nagios", false, "as a monitoring plugin, with its exit codes")
		f.StringVar(&htmlFile, "html", "", "write a page that shows this to `FILE`, or to standard output with -")
	})
	of.define(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if nagios {
			return unknown(a, err)
		}
		return cmd.Parent().FlagErrorFunc()(cmd, err)
	})
	return cmd
}

// status is how this host's jobs of those names stand; all where there are no names.
func (o *replicateOptions) status(a *app, names []string) (*runner.Status, error) {
	_, jobs, err := o.jobs(names)
	if err != nil {
		return nil, err
	}
	s := runner.StatusOf(jobs, o.stateDir, a.now(), o.scheduledSince)
	s.Host = replicate.ShortName(o.hostName())
	return s, nil
}

// scheduledSince returns when the schedule of a job began to apply: when its timer was
// written or, without one, the job file. It returns the zero time if neither is found.
func (o *replicateOptions) scheduledSince(job string) time.Time {
	for _, name := range []string{filepath.Join(unitDir, unit.Name(job)+".timer"), o.file} {
		if info, err := os.Stat(name); err == nil {
			return info.ModTime()
		}
	}
	return time.Time{}
}

// writeHTML shows how jobs stand as a page.
func writeHTML(a *app, name string, draw func() ([]byte, error)) error {
	htmlFile, err := draw()
	if err != nil {
		return err
	}
	if name == "-" {
		_, err = a.stdout.Write(htmlFile)
		return err
	}
	if err := writable("--html", name); err != nil {
		return err
	}
	return statedir.Put(name, htmlFile)
}

// nagios shows how jobs stand as a monitoring plugin does. A rule of sudo that lets an
// agent run it may allow more flags: none of them writes a file, nor takes this one back.
func (o *replicateOptions) nagios(ctx context.Context, a *app, flags *pflag.FlagSet, args []string, of *hostsOptions) error {
	if on, err := flags.GetBool("nagios"); err != nil || !on {
		return unknown(a, fault.Usagef("leave it out", "--nagios=false: it cannot be taken back"))
	}
	if err := ineffective(flags, "with --nagios", "json", "short", "html"); err != nil {
		return unknown(a, err)
	}
	if err := of.check(flags); err != nil {
		return unknown(a, err)
	}
	if of.hosts {
		return of.nagios(ctx, a, args)
	}
	s, err := o.status(a, args)
	if err != nil {
		return unknown(a, err)
	}
	level, err := report.Nagios(a.stdout, s)
	if err != nil || level == report.LevelOK {
		return err
	}
	return plugin(level)
}

// unknown is how a plugin ends that is not used as it should be, or has no job file.
func unknown(a *app, err error) error {
	return errors.Join(report.NagiosUnknown(a.stdout, err), plugin(report.LevelUnknown))
}

// plugin ends zxfer with the exit code of a level, which is of no class of ours.
func plugin(l report.Level) error {
	return &shown{&fault.Error{Class: fault.Class(l), Err: errors.New(l.String())}}
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
				text, err := runner.Metrics(f, o.stateDir, a.now())
				if err == nil {
					_, err = a.stdout.Write(text)
				}
				return err
			}
			if f.Metrics.Textfile == "" {
				return fault.Usagef("add [metrics] textfile = \"….prom\", or give --stdout", "%s names no file for metrics", o.file)
			}
			return runner.WriteMetrics(cmd.Context(), f, o.stateDir, a.now())
		},
	}
	o.define(cmd, true, false)
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&show, "stdout", false, "print them instead")
	})
	return cmd
}

func newReplicateLog(a *app) *cobra.Command {
	o := &replicateOptions{}
	n := 20
	drills := false
	cmd := &cobra.Command{
		Use:   "log [FLAGS] JOB",
		Short: "Show the records of past runs",
		Long: `log shows the newest runs of a job, the newest last. With --json each run is one
line, with every dataset that had something to send; with --drills each drill is,
with every copy. The job need not be in the file any more.`,
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
			log := statedir.Peek(o.stateDir, args[0])
			if drills {
				all, err := log.DrillLog(n)
				return cmp.Or(err, showLog(a, o, args[0], all, report.DrillLogText))
			}
			all, err := log.Runs(n)
			return cmp.Or(err, showLog(a, o, args[0], all, report.LogText))
		},
	}
	o.define(cmd, true, true)
	cmd.Flags().Lookup("config").Usage = "the job `FILE` of the other verbs; the records alone are read"
	cmd.Flags().Lookup("host").Usage = "the `NAME` of this host in the job file of the other verbs"
	cmd.Flags().Lookup("json").Usage = "one JSON object a run on stdout, each on a line"
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.VarP(option.Count(&n, 1, 1_000_000), "lines", "n", "runs to show")
		f.BoolVar(&drills, "drills", false, "show drills, not runs")
	})
	return cmd
}

// showLog shows records, the newest last.
func showLog[R any](a *app, o *replicateOptions, job string, all []R, text func(io.Writer, R) error) (err error) {
	if len(all) == 0 {
		return fault.Failf("--state-dir names another directory", "job %q has no records in %s", job, o.stateDir)
	}
	for _, r := range all {
		if o.json {
			err = writeJSON(a.stdout, r)
		} else {
			err = text(a.stdout, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
