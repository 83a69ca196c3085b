package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/option"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/report/html"
	"zxfer/pkg/transport"
)

// sendOptions holds the flags of send that need more than parsing. The other flags set req
// directly.
type sendOptions struct {
	output
	req     job.Send
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
          the path of SRC without its pool`},
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
				hint = fmt.Sprintf("--snapshot took %q for the name of the snapshot; --snapshot= names it by the time\n%s", name, hint)
			}
			return fault.Usagef(hint, "send takes 2 arguments, SRC and TARGET, not %d", len(args))
		},
		ValidArgsFunction: completeEnds(argKind{datasets: true, snapshots: true}, argKind{datasets: true}),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := o.request(cmd.Flags(), args[0], args[1])
			if err != nil {
				return err
			}
			if isDevice(req.Source) || isDevice(req.Target) {
				return sendDevice(cmd.Context(), a, o, req, cmd.Flags())
			}
			return o.run(cmd.Context(), a, req.RSH, func(ctx context.Context, at *hosts.Set, rep job.Reporter) (*job.Report, error) {
				return job.RunSend(ctx, req, at, rep)
			})
		},
	}
	o.define(cmd)
	return cmd
}

// run runs a job that sends and reports it.
func (o *sendOptions) run(ctx context.Context, a *app, shell string, run func(context.Context, *hosts.Set, job.Reporter) (*job.Report, error)) error {
	if err := o.check(); err != nil {
		return err
	}
	rep := o.reporter(a, a.stdout)
	defer startLive(rep)()
	course := o.page.recorder(a)
	told := course.Send(rep, "")
	at := hosts.New(&opener{log: told.Log, activity: rep.ActivityState})
	r, err := run(ctx, at, told)
	_ = at.Close() // the results are complete; agents end with their stdin
	if err = suggestHost(ctx, err, shell); err != nil {
		r.Hint = fault.HintOf(err)
	}

	err = o.page.write(a, err, func(about html.About) ([]byte, error) { return html.Send(about, r, course.Course()) })
	return o.finish(err, rep.Done(r, err), "the transfer is complete, but its report could not be written: ")
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
	completeWords(cmd, "first", plan.FirstWays()...)
	advanced(cmd, "newest", "since", "first", "carry", "hold", "bookmark", "no-resume", "measure", "retries", "skip-check")
}

// maxNewest is the maximum of --newest.
const maxNewest = 1_000_000

// durationFlag is a flag for a duration before now; 0 means no limit.
type durationFlag struct{ replicate.Duration }

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
	ways := plan.FirstWays()
	return option.Of(strings.Join(ways, "|"), func() string { return string(*first) }, func(s string) error {
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

// isDevice reports whether a device is named instead of a dataset.
func isDevice(e endpoint.Endpoint) bool { return strings.HasPrefix(e.Name, "/dev/") }

// sendDevice copies a device for zxfer send, as zxfer dev does. It refuses flags that apply only
// to datasets.
func sendDevice(ctx context.Context, a *app, o *sendOptions, req job.Send, flags *pflag.FlagSet) error {
	device := req.Source
	if !isDevice(device) {
		device = req.Target
	}
	if !req.Source.Path() || !req.Target.Path() {
		return fault.Usagef("zxfer dev copies a device to a device or image file; zxfer send a dataset to a dataset",
			"%s is a device, and the other end is not", device)
	}
	ours := newSet()
	transportFlags(ours, &transport.Settings{}, transport.Dev)
	(&devOptions{}).defineRun(ours)
	var err error
	flags.Visit(func(f *pflag.Flag) {
		if err == nil && ours.Lookup(f.Name) == nil {
			err = fault.Usagef("zxfer help dev lists the flags for devices", "--%s is for datasets, %s is a device", f.Name, device)
		}
	})
	if err != nil {
		return err
	}
	d := &devOptions{output: o.output,
		note: fmt.Sprintf("%s is a device: it is copied as zxfer dev does", device)}
	return runDev(ctx, a, d, job.Dev{
		Source: req.Source, Target: req.Target, DryRun: req.DryRun, Measure: req.Measure, SkipChecks: req.SkipChecks,
		Settings: req.Settings,
		Retries:  req.Retries,
	})
}
