package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/transport"
)

// compareOptions holds the flags of compare.
type compareOptions struct {
	output
	req job.Compare
}

func newCompare(a *app) *cobra.Command {
	o := &compareOptions{}
	cmd := &cobra.Command{
		Use:   "compare [FLAGS] A B",
		Short: "Tell how two trees differ",
		Long: `compare lists two trees side by side and tells, for each dataset, the newest
snapshot that both have, how many only one has, what they would take to be sent,
whether both went on since (diverged), and whether a receive that was cut off can
be resumed. It changes nothing.

A and B are [[user@]host:]DATASET; B may also be a pool or NAME/, as the target
of zxfer send. Snapshots are told by their GUIDs: a dataset that was renamed on
one side is found, and two snapshots of one name are not taken for one.

It exits 0 where both have the same snapshots, 1 where they differ, or one of them
cannot be looked at, and 3 where A or B is not there. What was written since the
newest snapshot is shown, and is no difference; nor is a copy that was set aside
(send --rotate). With --newest older snapshots are none, either: a copy may keep
them for longer than its source.`,
		Example: `  zxfer compare tank/home backup1:vault/home
      what the copy lacks, and what only the copy has
  zxfer compare --newest -q tank/home backup1:vault || echo behind
      in a script: is the newest snapshot of each dataset there?
  zxfer compare -v backup1:vault/home backup2:vault/home
      two copies on other hosts, each snapshot that one lacks`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fault.Usagef(helpOf(cmd), "compare takes 2 arguments, A and B, not %d", len(args))
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
	flagGroup(cmd, "What to compare", func(f *pflag.FlagSet) {
		f.BoolVarP(&o.req.Recursive, "recursive", "R", true, "all datasets below both, too; --recursive=false compares A and B alone")
		f.BoolVar(&o.req.Newest, "newest", false, "older snapshots that only one side has are no difference")
	})
	flagGroup(cmd, "The way there", func(f *pflag.FlagSet) { transportFlags(f, &o.req.Settings, transport.Query) })
	flagGroup(cmd, "What to show", func(f *pflag.FlagSet) {
		o.define(f, "")
		f.BoolVarP(&o.verbose, "verbose", "v", false, "name each snapshot that only one side has")
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
			return fault.Usagef("write [[user@]host:]DATASET", "%s names no dataset", e)
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
	r, err := job.RunCompare(ctx, o.req, j.at, j.rep)
	if err = j.finish(ctx, r, err, jobEnd{shell: o.req.RSH}); err == nil && r.Outcome == job.Differ {
		return &reportedError{fault.Failf("", "%s and %s differ", r.A, r.B)}
	}
	return err
}
