package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/report"
)

func newReplicateLog(a *app) *cobra.Command {
	o := &replicateOptions{}
	n := 20
	drills := false
	cmd := &cobra.Command{
		Use:   "log [FLAGS] JOB",
		Short: "Show records of past runs",
		Long: `Show the records of a job's last runs, the most recent last. The job may be
missing from the job file.`,
		Example: `  zxfer replicate log home
      show the last 20 runs
  zxfer replicate log --json -n 1 home
      print the last run with all its datasets
  zxfer replicate log --drills home
      show the last restore tests`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fault.Usagef(helpOf(cmd), "log requires one argument: JOB (got %d)", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] == "" || strings.ContainsAny(args[0], "/.") {
				return fault.Usagef("zxfer replicate log JOB", "%q is not the name of a job", args[0])
			}
			log := statedir.Peek(o.stateDir, args[0])
			if drills {
				all, err := log.DrillLog(n)
				if err != nil {
					return err
				}
				return showLog(a, o, args[0], all, report.DrillLogText)
			}
			all, err := log.Runs(n)
			if err != nil {
				return err
			}
			return showLog(a, o, args[0], all, report.LogText)
		},
	}
	o.define(cmd, true, true)
	cmd.Flags().Lookup("config").Usage = "ignore job file `FILE`; log reads only records"
	cmd.Flags().Lookup("host").Usage = "ignore host `NAME`; log reads only records"
	cmd.Flags().Lookup("json").Usage = "print one JSON object per line"
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.VarP(option.Count(&n, 1, 1_000_000), "lines", "n", "show the last `N` records")
		f.BoolVar(&drills, "drills", false, "show drills instead of runs")
	})
	return cmd
}

// showLog prints records, the most recent last.
func showLog[R any](a *app, o *replicateOptions, job string, all []R, text func(io.Writer, R) error) (err error) {
	if len(all) == 0 {
		return fault.Failf("if the job has another state directory, name it: --state-dir DIRECTORY", "job %q has no records in %s", job, o.stateDir)
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
