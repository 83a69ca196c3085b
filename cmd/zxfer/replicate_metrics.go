package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/report"
)

func newReplicateMetrics(a *app) *cobra.Command {
	o := &replicateOptions{}
	var show bool
	cmd := &cobra.Command{
		Use:   "metrics [FLAGS]",
		Short: "Write the metrics of all jobs",
		Long: `Write the metrics of all jobs to the file that [metrics] textfile names, for
the textfile collector of node_exporter. Each run does the same. If a job runs
as another user than root, run metrics as root after it.`,
		Example: `  zxfer replicate metrics
  zxfer replicate metrics --stdout`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := o.load()
			if err != nil {
				return err
			}
			if show {
				text, err := status.Metrics(f, o.stateDir, a.now())
				if err == nil {
					_, err = a.stdout.Write(text)
				}
				return err
			}
			if f.Metrics.Textfile == "" {
				return fault.Usagef("add [metrics] textfile = \"/….prom\" to the job file, or use --stdout", "%s has no metrics.textfile", o.file)
			}
			return status.WriteMetrics(cmd.Context(), f, o.stateDir, a.now())
		},
	}
	o.define(cmd, true, false)
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		f.BoolVar(&show, "stdout", false, "print the metrics, and write no file")
	})
	return cmd
}

// writeMetrics writes the metrics of all jobs, if the job file names a file for them.
func (o *replicateOptions) writeMetrics(ctx context.Context, a *app, f *replicate.File) error {
	if f.Metrics.Textfile == "" {
		return nil
	}
	err := status.WriteMetrics(context.WithoutCancel(ctx), f, o.stateDir, a.now())
	if errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
		fmt.Fprintf(a.stderr, "zxfer: %s: only root writes it: zxfer replicate metrics, which the installed units run\n", report.Line(err.Error()))
		return nil
	}
	return err
}
