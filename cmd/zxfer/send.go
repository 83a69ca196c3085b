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
	"zxfer/pkg/job"
	"zxfer/pkg/option"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/report/history"
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
		Short: "Send a dataset to another host or pool",
		Long: `send brings a dataset's snapshots to a target: everything the first time,
afterwards only what is new since the latest common snapshot or bookmark.

SRC is [[user@]host:]DATASET[@SNAPSHOT]; without a snapshot the newest one is
sent. TARGET is [[user@]host:]POOL, which receives the source's path below its
pool (tank/a/b arrives as POOL/a/b), or the exact dataset; NAME/ receives the
path below NAME. Either end, both or none may be on another host.

Before anything is changed, both sides are surveyed, a plan is made and
checked; -n stops there and shows it. Encrypted datasets are sent raw, so
neither side needs the key. Nothing on the target is rolled back, destroyed or
mounted unless a flag says so. A transfer that was cut off is resumed, by
itself or by running the same command again.`,
		Example: `  zxfer send -n tank/ds backup1:vault
      show the plan: steps, sizes, wire, the same by hand; change nothing
  zxfer send tank/ds@daily backup1:vault
      send everything up to @daily to vault/ds on backup1
  zxfer send -R --snapshot= tank/home backup1:vault/home
      snapshot tank/home and all below it, send them; as often as you like, as
      each snapshot is named by the time
  zxfer send backup1:vault/ds tank/restored
      fetch a dataset from another host
  zxfer send a:tank/ds b:vault
      from one other host to another; the data does not pass this one
  zxfer send tank/ds@a pool2
      from pool to pool on this host, without a network`,
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
			j, err := o.start(a, a.stdout, device.Streams{})
			if err != nil {
				return err
			}
			r, err := job.RunSend(cmd.Context(), req, j.at, j.recorder.Send(j.rep, ""))
			return j.finishSend(cmd.Context(), r, err, req.RSH)
		},
	}
	o.define(cmd)
	return cmd
}

// finishSend finishes a send or restore.
func (j *jobRun) finishSend(ctx context.Context, r *job.Report, err error, shell string) error {
	return j.finish(ctx, r, err, jobEnd{shell: shell, done: "the transfer is complete, but its report could not be written: ",
		page: func(about html.About, course history.Course) ([]byte, error) { return html.Send(about, r, course) }})
}

// define declares the flags.
func (o *sendOptions) define(cmd *cobra.Command) {
	req := &o.req
	flagGroup(cmd, "What to send", func(f *pflag.FlagSet) {
		o.defineTree(f)
		f.StringVar(&req.TakeSnapshot, "snapshot", "", "take a snapshot of this `NAME`, which none may have yet, first and send it; --snapshot= names it by the time, as in zxfer-2026-11-22T16:48:03Z (UTC)")
		o.defineSnapshots(f)
		f.Var(firstFlag(&req.Plan.First), "first", "how a dataset begins that the target does not have: with all history (the default), with the newest snapshot, or not at all")
	})
	flagGroup(cmd, "What arrives", func(f *pflag.FlagSet) {
		f.BoolVarP(&req.Plan.CarryProperties, "props", "p", false, "carry all harmless properties set on the source, not only those that shape data")
		o.defineProperties(f, "also carry the property `NAME`, such as org.example:note; implies -p; may be repeated")
		f.StringVar(&req.Hold, "hold", "", "hold the arrived snapshots on both ends with this `TAG`")
		f.BoolVar(&req.Bookmark, "bookmark", false, "bookmark the sent snapshots on the source: a base that outlives them")
		o.defineArrival(f)
		f.BoolVar(&o.rotate, "rotate", false, "where a target diverged, or has nothing in common with the source, keep it as TARGET.zxfer-TIME, with all below it, and send in full; -n shows it")
	})
	o.defineRun(cmd)
	completeWords(cmd, "first", plan.FirstWays()...)
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
	f.BoolVarP(&o.req.Plan.Recursive, "recursive", "R", false, "all datasets below it too, each by its own streams, parents first")
	f.BoolVarP(&o.recurse, "recurse", "r", false, "the same as --recursive")
	f.Lookup("recurse").Hidden = true
}

func (o *sendOptions) defineSnapshots(f *pflag.FlagSet) {
	req := &o.req
	f.StringArrayVar(&req.Plan.IncludeSnapshots, "include-snaps", nil, "only snapshots whose name matches `PATTERN`, such as 'daily-*', or as a regular expression 're:^(daily|weekly)'; may be repeated")
	f.StringArrayVar(&req.Plan.ExcludeSnapshots, "exclude-snaps", nil, "leave out snapshots whose name matches `PATTERN`; may be repeated")
	f.Var(option.Count(&req.Plan.Newest, 1, maxNewest), "newest", "only the newest N of each dataset, of those that other flags leave")
	f.Var(&o.since, "since", "only snapshots that were taken no longer ago than `SPAN`, such as 3d or 36h, counted back from this host's clock; the newest is sent in any case")
	f.BoolVar(&req.Plan.LatestOnly, "latest-only", false, "leave out all snapshots between the common one and the last")
	f.BoolVar(&req.Plan.Decrypt, "decrypt", false, "send encrypted datasets decrypted; their keys must be loaded")
}

func (o *sendOptions) defineProperties(f *pflag.FlagSet, carry string) {
	f.StringArrayVar(&o.req.Plan.CarryNamed, "carry", nil, carry)
	f.StringArrayVarP(&o.set, "set", "o", nil, "set a property on the target, `NAME=VALUE`; may be repeated")
	f.StringArrayVarP(&o.req.Plan.Exclude, "exclude", "x", nil, "do not carry the property `NAME`; may be repeated")
}

func (o *sendOptions) defineArrival(f *pflag.FlagSet) {
	req := &o.req
	f.BoolVar(&req.Verify, "verify", false, "read back what was sent, on both sides, and compare content digests, beside the GUIDs")
	f.BoolVar(&req.Plan.Rollback, "rollback", false, "let the target lose what is newer than the common snapshot; -n lists it")
	f.BoolVar(&req.Plan.NoResume, "no-resume", false, "drop what an interrupted receive left on the target and start over")
}

func (o *sendOptions) defineRun(cmd *cobra.Command) {
	req := &o.req
	req.Parallel, req.Retries = 1, transport.Retries
	flagGroup(cmd, "The way there", func(f *pflag.FlagSet) { transportFlags(f, &req.Settings, transport.Send) })
	flagGroup(cmd, "How to run", func(f *pflag.FlagSet) {
		f.BoolVarP(&req.DryRun, "dry-run", "n", false, "show the whole plan and change no dataset")
		f.BoolVar(&req.Measure, "measure", false, "first measure the link, the source and the target, and tell the rate to expect and what limits it")
		f.Var(option.Count(&req.Parallel, 1, transport.MaxParallel), "parallel", "datasets at once")
		f.Var(option.Count(&req.Retries, 0, transport.MaxRetries), "retries", "tries after a cut, for each dataset, before giving up with exit code 4")
		f.StringArrayVar(&req.SkipChecks, "skip-check", nil, "pass over the preflight check `ID` that a refusal named; may be repeated")
		o.output.define(f, "show the plan first and each stream's stages afterwards")
	})
	completeTransport(cmd, transport.Send)
	completeChecks(cmd)
}

// sendDevice copies a device for zxfer send, as zxfer dev does. It refuses flags that apply only
// to datasets.
func sendDevice(ctx context.Context, a *app, o *sendOptions, req job.Send, flags *pflag.FlagSet) error {
	named := req.Source
	if !isDevice(named) {
		named = req.Target
	}
	if !req.Source.Path() || !req.Target.Path() {
		return fault.Usagef("zxfer dev copies a device to a device or image file; zxfer send a dataset to a dataset",
			"%s is a device, and the other end is not", named)
	}
	ours := newSet()
	transportFlags(ours, &transport.Settings{}, transport.Dev)
	(&devOptions{}).defineRun(ours)
	var err error
	flags.Visit(func(f *pflag.Flag) {
		if err == nil && ours.Lookup(f.Name) == nil {
			err = fault.Usagef("zxfer help dev lists the flags for devices", "--%s is for datasets, %s is a device", f.Name, named)
		}
	})
	if err != nil {
		return err
	}
	d := &devOptions{output: o.output,
		note: fmt.Sprintf("%s is a device: it is copied as zxfer dev does", named)}
	return runDev(ctx, a, d, job.Dev{
		Source: req.Source, Target: req.Target, DryRun: req.DryRun, Measure: req.Measure, SkipChecks: req.SkipChecks,
		Settings: req.Settings,
		Retries:  req.Retries,
	})
}
