package main

import (
	"cmp"
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

// showLog prints records, the most recent last.
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
