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
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
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
		Short: "Show when each dataset was last replicated",
		Long: `Show when each dataset last arrived at each target, whether it is late, and
when its job runs next. A dataset is late if a run is overdue by more than the
job's grace and jitter. status only reads records, and with --hosts records of
other hosts.`,
		Annotations: map[string]string{argsTitle: `  JOB  a job of the job file (default: all); with --hosts a host or group`, exitTitle: `  1  a job is late, failed, was refused or interrupted, or found data errors
With --nagios:
  0  OK
  1  WARNING: a job is late or was interrupted, or a copy is not proved, not
     consistent, or lacks properties of its source
  2  CRITICAL: a run failed or was refused, a copy is not good, a pool has data
     errors, or a job is late by two runs
  3  UNKNOWN: no run and no schedule, or records or hosts cannot be read`},
		Example: `  zxfer replicate status
      show the jobs of this host
  zxfer replicate status --hosts web db1
      show the jobs of a group of hosts, and of one more
  zxfer replicate status --hosts --html /srv/www/backups.html
      write a page about all hosts of the job file`,
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
				return &reportedError{fault.Failf("", "a job is late or failed")}
			}
			return err
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&short, "short", false, "show only late and failed datasets")
		f.BoolVar(&nagios, "nagios", false, "run as a Nagios plugin")
		f.StringVar(&htmlFile, "html", "", "write an HTML page to `FILE` (- for standard output)")
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
func (o *replicateOptions) status(a *app, names []string) (*status.Status, error) {
	_, jobs, err := o.jobs(names)
	if err != nil {
		return nil, err
	}
	s := status.Of(jobs, o.stateDir, a.now(), o.scheduledSince(jobs))
	s.Host = jobfile.ShortName(o.hostName())
	return s, nil
}

// scheduledSince returns when the schedule of each job took effect: the time of its timer file or,
// without one, of the job file when a status first saw the schedule. Later changes of the job file do
// not count. If this account cannot record the time, the time of the job file counts.
func (o *replicateOptions) scheduledSince(jobs []*replicate.Job) func(job string) time.Time {
	starts, added := statedir.ScheduleStarts(o.stateDir), false
	if info, err := os.Stat(o.file); err == nil {
		for _, j := range jobs {
			if j.Schedule != "" && starts[j.Name].Schedule != j.Schedule {
				starts[j.Name], added = statedir.ScheduleStart{Schedule: j.Schedule, Since: info.ModTime()}, true
			}
		}
	}
	if added {
		_ = statedir.SaveScheduleStarts(o.stateDir, starts) // may lack permission
	}
	return func(job string) time.Time {
		if info, err := os.Stat(filepath.Join(unitDir, unit.Name(job)+".timer")); err == nil {
			return info.ModTime()
		}
		return starts[job].Since
	}
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
	return statedir.ReplaceKeepingMode(name, htmlFile)
}

// nagios prints the status as a monitoring plugin does. A sudo rule for it may permit additional
// flags, so none of them writes a file or disables --nagios.
func (o *replicateOptions) nagios(ctx context.Context, a *app, flags *pflag.FlagSet, args []string, of *hostsOptions) error {
	if on, err := flags.GetBool("nagios"); err != nil || !on {
		return nagiosUnknown(a, fault.Usagef("omit it", "--nagios=false is not allowed"))
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
	return pluginExit(report.Nagios(a.stdout, s))
}

// nagiosUnknown reports state UNKNOWN for a usage error or missing job file.
func nagiosUnknown(a *app, err error) error {
	return pluginExit(status.SeverityUnknown, report.NagiosUnknown(a.stdout, err))
}

// pluginExit returns an error with the exit code of a severity, which is not a fault.Class. err is the error of printing.
func pluginExit(s status.Severity, err error) error {
	if err != nil || s == status.SeverityOK {
		return err
	}
	return &reportedError{&fault.Error{Class: fault.Class(s), Err: errors.New(s.String())}}
}
