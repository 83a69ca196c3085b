package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/send"
	"zxfer/pkg/option"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/report/html"
	"zxfer/pkg/transport"
)

// sendOptions holds the flags of send that need more than parsing. The other flags set req
// directly.
type sendOptions struct {
	output
	req     send.Request
	recurse bool
	rotate  bool
	set     []string
	since   durationFlag
	now     func() time.Time // for snapshot names
}

func newSend(a *app) *cobra.Command {
	o := &sendOptions{now: a.now}
	cmd := &cobra.Command{
		Use:   "send [FLAGS] SRC TARGET",
		Short: "Send datasets and their snapshots to a target",
		Long: `Send the snapshots of a dataset to a target: all of them the first time, later
only new ones. zxfer first surveys both sides, makes a plan and checks it. It
sends encrypted datasets raw, and resumes interrupted transfers.`,
		Annotations: map[string]string{argsTitle: `  SRC     [[user@]host:]DATASET[@SNAPSHOT] (default: the most recent snapshot)
  TARGET  [[user@]host:]DATASET, or a POOL or NAME/ below which zxfer creates
          the path of SRC without its pool; for a volume, also [HOST:]/PATH of
          a device or image file`},
		Example: `  zxfer send -n tank/home backup1:vault
      show plan, sizes and equivalent commands; change nothing
  zxfer send -R --snapshot= tank/home backup1:vault/home
      snapshot tank/home and its descendants, and send them
  zxfer send backup1:vault/home tank/restored
      pull a dataset from another host`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			hint := helpOf(cmd)
			if name := o.req.TakeSnapshot; len(args) == 1 && name != "" {
				hint = fmt.Sprintf("to name the snapshot after the time instead of %q, write --snapshot=\n%s", name, hint)
			}
			return fault.Usagef(hint, "send requires two arguments: SRC and TARGET (got %d)", len(args))
		},
		ValidArgsFunction: completeEnds(argKind{datasets: true, snapshots: true}, argKind{datasets: true}),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := o.request(cmd.Flags(), args[0], args[1])
			if err != nil {
				return err
			}
			ofVolume := (&dev.Request{Source: req.Source}).OfVolume() && req.Target.Path()
			if isDevice(req.Source) || isDevice(req.Target) || ofVolume {
				return sendDevice(cmd.Context(), a, o, req, cmd.Flags())
			}
			j, err := o.start(a, a.stdout, device.Streams{})
			if err != nil {
				return err
			}
			r, err := send.Run(cmd.Context(), req, j.at, j.recorder.Send(j.rep, ""))
			return j.finishSend(cmd.Context(), r, err)
		},
	}
	o.define(cmd)
	return cmd
}

// finishSend finishes a send or restore.
func (j *jobRun) finishSend(ctx context.Context, r *send.Report, err error) error {
	return j.finish(ctx, r, err, jobEnd{text: report.SendResult(r), done: "the transfer is complete, but its report could not be written: ",
		page: func(about html.About, course history.Recording) ([]byte, error) { return html.Send(about, r, course) }})
}

// define declares the flags.
func (o *sendOptions) define(cmd *cobra.Command) {
	req := &o.req
	flagGroup(cmd, "Source", func(f *pflag.FlagSet) {
		o.defineTree(f)
		f.StringVar(&req.TakeSnapshot, "snapshot", "", "first take snapshot `NAME` (--snapshot= names it)")
		o.defineSnapshots(f)
		f.Var(firstFlag(&req.Plan.First), "first", firstHelp)
	})
	flagGroup(cmd, "Target", func(f *pflag.FlagSet) {
		f.BoolVarP(&req.Plan.CarryProperties, "props", "p", false, "send every safe property (default: those shaping data)")
		o.defineProperties(f, "also send property `NAME`; implies -p; repeatable")
		f.StringVar(&req.Hold, "hold", "", "hold sent snapshots on both sides with `TAG`")
		f.BoolVar(&req.Bookmark, "bookmark", false, "bookmark sent snapshots on the source")
		o.defineArrival(f)
		f.BoolVar(&o.rotate, "rotate", false, "rename diverged target, send in full (preview: -n)")
	})
	o.defineRun(cmd)
	completeWords(cmd, "first", plan.FirstValues()...)
	advanced(cmd, "newest", "since", "first", "carry", "hold", "bookmark", "no-resume", "measure", "retries", "skip-check")
}

// maxNewest is the maximum of --newest.
const maxNewest = 1_000_000

// durationFlag is a flag for a duration before now; 0 means no limit.
type durationFlag struct{ calendar.Duration }

func (s *durationFlag) Set(text string) error { return s.UnmarshalText([]byte(text)) }

func (s *durationFlag) Type() string { return "SPAN" }

func (s *durationFlag) String() string {
	if s.Duration == 0 {
		return ""
	}
	return s.Duration.String()
}

// firstFlag returns the value of --first.
func firstFlag(first *plan.First) option.Value {
	ways := plan.FirstValues()
	return option.New(strings.Join(ways, "|"), func() string { return string(*first) }, func(s string) error {
		word := ways[0]
		err := option.Word(&word, ways...).Set(s)
		if err == nil {
			*first = plan.First(word)
		}
		return err
	})
}

// Flags that zxfer restore has too.

func (o *sendOptions) defineTree(f *pflag.FlagSet) {
	f.BoolVarP(&o.req.Plan.Recursive, "recursive", "R", false, recursiveHelp)
	f.BoolVarP(&o.recurse, "recurse", "r", false, recursiveHelp)
	f.Lookup("recurse").Hidden = true
}

func (o *sendOptions) defineSnapshots(f *pflag.FlagSet) {
	req := &o.req
	f.StringArrayVar(&req.Plan.IncludeSnapshots, "include-snaps", nil, "select by `PATTERN`: glob or re:REGEXP; repeatable")
	f.StringArrayVar(&req.Plan.ExcludeSnapshots, "exclude-snaps", nil, "skip by `PATTERN`: glob or re:REGEXP; repeatable")
	f.Var(option.Count(&req.Plan.Newest, 1, maxNewest), "newest", "select the `N` most recent snapshots per dataset")
	f.Var(&o.since, "since", "select snapshots younger than `SPAN`, such as 3d")
	f.BoolVar(&req.Plan.LatestOnly, "latest-only", false, "skip intermediate snapshots")
	f.BoolVar(&req.Plan.Decrypt, "decrypt", false, decryptHelp)
}

func (o *sendOptions) defineProperties(f *pflag.FlagSet, carry string) {
	f.StringArrayVar(&o.req.Plan.CarryNamed, "carry", nil, carry)
	f.StringArrayVarP(&o.set, "set", "o", nil, "set property `NAME=VALUE` on the target; repeatable")
	f.StringArrayVarP(&o.req.Plan.Exclude, "exclude", "x", nil, "do not transfer property `NAME`; repeatable")
}

func (o *sendOptions) defineArrival(f *pflag.FlagSet) {
	req := &o.req
	f.BoolVar(&req.Verify, "verify", false, "compare digests of contents, in addition to GUIDs")
	f.BoolVar(&req.Plan.Rollback, "rollback", false, "roll target back, destroying newer data (preview: -n)")
	f.BoolVar(&req.Plan.NoResume, "no-resume", false, "discard partially received state and start over")
}

func (o *sendOptions) defineRun(cmd *cobra.Command) {
	req := &o.req
	req.Parallel, req.Retries = 1, transport.Retries
	transportGroup(cmd, &req.Settings, transport.Send)
	flagGroup(cmd, "Run", func(f *pflag.FlagSet) {
		f.BoolVarP(&req.DryRun, "dry-run", "n", false, dryRunHelp)
		f.BoolVar(&req.Measure, "measure", false, measureHelp)
		f.Var(option.Count(&req.Parallel, 1, transport.MaxParallel), "parallel", "transfer `N` datasets concurrently")
		f.Var(option.Count(&req.Retries, 0, transport.MaxRetries), "retries", retriesHelp)
		f.StringArrayVar(&req.SkipChecks, "skip-check", nil, skipCheckHelp)
		o.output.define(f, "show the plan, and the stages of each stream")
	})
	completeChecks(cmd)
}

// sendDevice copies a device or volume to a device or image file for zxfer send, as zxfer dev does.
// It refuses flags that apply only to datasets.
func sendDevice(ctx context.Context, a *app, o *sendOptions, req send.Request, flags *pflag.FlagSet) error {
	d := &devOptions{output: o.output}
	block := dev.Request{
		Source: req.Source, Target: req.Target, DryRun: req.DryRun, Measure: req.Measure, SkipChecks: req.SkipChecks,
		Settings: req.Settings,
		Retries:  req.Retries,
	}
	named, ours := req.Target, newSet()
	(&devOptions{}).defineRun(ours)
	if block.OfVolume() {
		if err := refuseIneffective(flags, "with a device or image file as TARGET", "measure"); err != nil {
			return err
		}
		block.Verify, block.Decrypt = req.Verify, req.Plan.Decrypt
	} else {
		if isDevice(req.Source) {
			named = req.Source
		}
		if !req.Source.Path() || !req.Target.Path() {
			return fault.Usagef("use zxfer dev to copy a device, zxfer send to send a dataset",
				"%q is a device, but the other argument is not", named)
		}
		d.note = fmt.Sprintf("%q is a device: copying it like zxfer dev", named)
	}
	transportFlags(ours, &transport.Settings{}, transport.Dev)
	var err error
	flags.Visit(func(f *pflag.Flag) {
		if err == nil && ours.Lookup(f.Name) == nil && (!block.OfVolume() || f.Name != "verify" && f.Name != "decrypt") {
			err = fault.Usagef("zxfer dev --help", "--%s requires a dataset, but %q is a device", f.Name, named)
		}
	})
	if err != nil {
		return err
	}
	return runDev(ctx, a, d, block)
}
