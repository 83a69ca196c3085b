package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/report"
)

func newReplicateCheck(a *app) *cobra.Command {
	o := &replicateOptions{}
	var offline, everywhere, verbose bool
	cmd := &cobra.Command{
		Use:   "check [FLAGS] [JOB ...]",
		Short: "Validate the job file and preview the next run",
		Long: `Validate the job file, connect to every host, and show what the next run of
each job would do. check changes nothing. If hosts share the file, it covers
the jobs of this host.`,
		Example: `  zxfer replicate check
      preview all jobs of this host
  zxfer replicate check -v home
      list each stream and snapshot of one job
  zxfer replicate check --all-hosts
      validate the jobs of all hosts that share the file`,
		Annotations: map[string]string{argsTitle: `  JOB  a job of the job file (default: all)`},
		RunE: func(cmd *cobra.Command, args []string) error {
			if everywhere {
				return o.checkAll(a, cmd.Flags(), args)
			}
			if offline {
				if err := refuseIneffective(cmd.Flags(), "with --offline, whose result is the exit code", "json", "verbose", "state-dir"); err != nil {
					return err
				}
			}
			f, jobs, err := o.jobs(args)
			if err != nil {
				return err
			}
			o.warnReadable(a, f)
			if offline {
				_, err := fmt.Fprintf(a.stdout, "%s: %s%s, no errors\n", o.file, english.Plural(len(f.Jobs), "job", ""), hostSuffix(f))
				return err
			}
			r, text := o.runner(a)
			defer startLive(text)()
			var errs []error
			var all []*runner.Preview
			_, systemd := os.Stat("/run/systemd/system")
			for _, j := range jobs {
				if systemd != nil {
					warnStateDir(a, j, o.stateDir)
				}
				p, err := r.Preview(cmd.Context(), j)
				text.EndJob()
				if err != nil {
					errs = append(errs, err)
					break
				}
				all = append(all, p)
				if !o.json {
					errs = append(errs, report.PreviewText(a.stdout, p, verbose))
				}
				errs = append(errs, p.Err())
			}
			errs = append(errs, r.Env.Close())
			if o.json {
				errs = append(errs, writeJSON(a.stdout, map[string]any{"schema": "zxfer.replicate.check/v1", "jobs": all}))
			}
			return errors.Join(errs...)
		},
	}
	o.define(cmd, true, true)
	flagGroup(cmd, "Output", func(fs *pflag.FlagSet) {
		fs.BoolVar(&offline, "offline", false, "validate the job file without connecting to hosts")
		fs.BoolVar(&everywhere, "all-hosts", false, "validate the jobs of all hosts without connecting")
		fs.BoolVarP(&verbose, "verbose", "v", false, "list each stream and snapshot, and why it is kept")
	})
	return cmd
}

// warnReadable warns if other users can read a ping URL in the job file, which is secret.
func (o *replicateOptions) warnReadable(a *app, f *replicate.File) {
	secret := slices.ContainsFunc(f.Jobs, func(j replicate.Job) bool { return j.Notify != nil && j.Notify.Ping != "" })
	if info, err := os.Stat(o.file); secret && err == nil && info.Mode().Perm()&0o004 != 0 {
		fmt.Fprintf(a.stderr, "warning: all users can read %s with its secret notify.ping; write ping_file instead, or: chmod o= %s\n", o.file, o.file)
	}
}

// maxParts is the number of hosts whose errors are shown, since these are often the same.
const maxParts = 5

// checkAll checks the parts of all hosts of a file.
func (o *replicateOptions) checkAll(a *app, flags *pflag.FlagSet, args []string) error {
	if err := refuseIneffective(flags, "with --all-hosts, which only reads the file", "json", "verbose", "state-dir", "host"); err != nil {
		return err
	}
	if len(args) > 0 {
		return fault.Usagef("omit the names", "--all-hosts checks all jobs")
	}
	inv, err := o.inventory()
	if err != nil {
		return err
	}
	parts := inv.Parts()
	if len(parts) == 0 {
		return fault.Usagef("omit --all-hosts", "%s has no [[host]]", o.file)
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
		errs = append(errs[:maxParts], fault.Usagef("", "and errors in the parts of %s", english.Plural(more, "more host", "more hosts")))
	}
	return errors.Join(errs...)
}
