package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/compare"
	"zxfer/pkg/report"
	"zxfer/pkg/transport"
)

// compareOptions holds the flags of compare.
type compareOptions struct {
	output
	req compare.Request
}

func newCompare(a *app) *cobra.Command {
	o := &compareOptions{}
	cmd := &cobra.Command{
		Use:   "compare [FLAGS] A B",
		Short: "Compare the snapshots of two dataset trees",
		Long: `Compare the snapshots of two dataset trees by GUID, without changing anything.
For each dataset, compare shows the most recent common snapshot, the snapshots
that only one side has, and whether both sides diverged.`,
		Annotations: map[string]string{argsTitle: `  A  [[user@]host:]DATASET
  B  [[user@]host:]DATASET, POOL or NAME/, as the target of zxfer send`, exitTitle: `  0  both sides have the same snapshots
  1  the snapshots differ, or a dataset could not be listed
  3  A or B does not exist`},
		Example: `  zxfer compare tank/home backup1:vault/home
      list what the copy lacks, and what only the copy has
  zxfer compare --newest -q tank/home backup1:vault || echo behind
      test in a script whether the most recent snapshots exist on the copy
  zxfer compare -v backup1:vault/home backup2:vault/home
      compare two copies, and list each snapshot that one lacks`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fault.Usagef(helpOf(cmd), "compare requires two arguments: A and B (got %d)", len(args))
			}
			return nil
		},
		ValidArgsFunction: completeEnds(argKind{datasets: true}, argKind{datasets: true}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.request(args); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	flagGroup(cmd, "Compare", func(f *pflag.FlagSet) {
		f.BoolVarP(&o.req.Recursive, "recursive", "R", true, recursiveHelp)
		f.BoolVar(&o.req.Newest, "newest", false, "ignore older snapshots that only one side has")
	})
	flagGroup(cmd, "Connection", func(f *pflag.FlagSet) { transportFlags(f, &o.req.Settings, transport.Query) })
	flagGroup(cmd, "Output", func(f *pflag.FlagSet) {
		o.define(f, "")
		f.BoolVarP(&o.verbose, "verbose", "v", false, "list each snapshot that only one side has")
	})
	return cmd
}

// request fills in the job's request.
func (o *compareOptions) request(args []string) error {
	for i, into := range []*endpoint.Endpoint{&o.req.A, &o.req.B} {
		e, err := parseEndpoint(args[i])
		if err != nil {
			return err
		}
		if strings.ContainsAny(e.Name, "@#") && !e.Path() || i == 1 && e.Path() {
			return fault.Usagef("write [[user@]host:]DATASET", "%q does not name a dataset", e)
		}
		*into = e
	}
	return checkTransport(&o.req.Settings, transport.Query, o.req.A, o.req.B)
}

func (o *compareOptions) run(ctx context.Context, a *app) error {
	j, err := o.start(a, a.stdout, device.Streams{})
	if err != nil {
		return err
	}
	r, err := compare.Run(ctx, o.req, j.at, j.rep)
	if err = j.finish(ctx, r, err, jobEnd{text: report.CompareResult(r, o.verbose)}); err == nil && r.Outcome == compare.Differ {
		return &reportedError{fault.Failf("", "%s and %s differ", r.A, r.B)}
	}
	return err
}
