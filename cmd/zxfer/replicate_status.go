package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/unit"
	"zxfer/pkg/report"
	"zxfer/pkg/report/html"
)

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
				if err := refuseIneffective(cmd.Flags(), "with --html", "json", "short"); err != nil {
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
				return &reportedError{fault.Failf("", "a job is late, or failed")}
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
			return nagiosUnknown(a, err)
		}
		return cmd.Parent().FlagErrorFunc()(cmd, err)
	})
	return cmd
}

// status returns the status of the named local jobs, or of all jobs if names is empty.
func (o *replicateOptions) status(a *app, names []string) (*runner.Status, error) {
	_, jobs, err := o.jobs(names)
	if err != nil {
		return nil, err
	}
	s := runner.StatusOf(jobs, o.stateDir, a.now(), o.scheduledSince)
	s.Host = replicate.ShortName(o.hostName())
	return s, nil
}

// scheduledSince returns when the schedule of a job took effect: the time of its timer file or,
// without one, of the job file. It returns the zero time if neither exists.
func (o *replicateOptions) scheduledSince(job string) time.Time {
	for _, name := range []string{filepath.Join(unitDir, unit.Name(job)+".timer"), o.file} {
		if info, err := os.Stat(name); err == nil {
			return info.ModTime()
		}
	}
	return time.Time{}
}

// writeHTML writes a status page.
func writeHTML(a *app, name string, draw func() ([]byte, error)) error {
	htmlFile, err := draw()
	if err != nil {
		return err
	}
	if name == "-" {
		_, err = a.stdout.Write(htmlFile)
		return err
	}
	if err := checkWritable("--html", name); err != nil {
		return err
	}
	return statedir.Put(name, htmlFile)
}

// nagios prints the status as a monitoring plugin does. A sudo rule for it may permit additional
// flags, so none of them writes a file or disables --nagios.
func (o *replicateOptions) nagios(ctx context.Context, a *app, flags *pflag.FlagSet, args []string, of *hostsOptions) error {
	if on, err := flags.GetBool("nagios"); err != nil || !on {
		return nagiosUnknown(a, fault.Usagef("leave it out", "--nagios=false: it cannot be taken back"))
	}
	if err := refuseIneffective(flags, "with --nagios", "json", "short", "html"); err != nil {
		return nagiosUnknown(a, err)
	}
	if err := of.check(flags); err != nil {
		return nagiosUnknown(a, err)
	}
	if of.hosts {
		return of.nagios(ctx, a, args)
	}
	s, err := o.status(a, args)
	if err != nil {
		return nagiosUnknown(a, err)
	}
	level, err := report.Nagios(a.stdout, s)
	if err != nil || level == report.LevelOK {
		return err
	}
	return pluginExit(level)
}

// nagiosUnknown reports state UNKNOWN for a usage error or missing job file.
func nagiosUnknown(a *app, err error) error {
	return errors.Join(report.NagiosUnknown(a.stdout, err), pluginExit(report.LevelUnknown))
}

// pluginExit returns an error with the exit code of a level, which is not a fault.Class.
func pluginExit(l report.Level) error {
	return &reportedError{&fault.Error{Class: fault.Class(l), Err: errors.New(l.String())}}
}
