package main

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/restore"
)

// restoreOptions holds the flags of restore, which include those of send.
type restoreOptions struct {
	sendOptions
	at    string
	mount bool
	files filesOptions
}

func newRestore(a *app) *cobra.Command {
	o := &restoreOptions{sendOptions: sendOptions{now: a.now}}
	cmd := &cobra.Command{
		Use:   "restore [FLAGS] COPY[@SNAPSHOT] TARGET | --mount [-R] TARGET",
		Short: "Restore datasets or files from a copy",
		Long: `Restore a dataset from its copy, with all snapshots and its properties that
shape data or are harmless. Set mountpoint, sharing and quotas with -o. The
target remains read-only and unmounted until the end, and loses newer data only
with --rollback. With TARGET alone, --mount mounts it and follows no links.`,
		Annotations: map[string]string{argsTitle: `  COPY    [[user@]host:]DATASET[@SNAPSHOT] (default: the most recent snapshot)
  TARGET  [[user@]host:]DATASET, new or damaged; with --files a directory,
          [[user@]host:]/PATH or ./PATH`},
		Example: `  zxfer restore -n backup1:vault/home tank/home
      show what would be restored, set and mounted
  zxfer restore --rollback backup1:vault/home tank/home
      roll the damaged dataset back, destroying newer data
  zxfer restore --files alice/letters backup1:vault/home@monday ./found
      restore one directory as ./found/letters`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 && !(len(args) == 1 && o.mount) {
				return fault.Usagef(helpOf(cmd), "restore requires two arguments: COPY and TARGET (got %d)", len(args))
			}
			return nil
		},
		ValidArgsFunction: completeEnds(argKind{datasets: true, snapshots: true}, argKind{datasets: true}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return o.runMount(cmd, a, args[0])
			}
			if len(o.files.paths) > 0 {
				req, err := o.filesRequest(cmd, args[0], args[1])
				if err != nil {
					return err
				}
				return o.runFiles(cmd.Context(), a, req)
			}
			req, err := o.request(cmd, args[0], args[1])
			if err != nil {
				return err
			}
			j, err := o.start(a, a.stdout, device.Streams{})
			if err != nil {
				return err
			}
			r, err := restore.Run(cmd.Context(), req, j.at, j.recorder.Send(j.rep, ""))
			return j.finishSend(cmd.Context(), r, err)
		},
	}
	flagGroup(cmd, "Copy", func(f *pflag.FlagSet) {
		o.defineTree(f)
		f.StringVar(&o.at, "at", "", "restore the state at `TIME`, such as 'yesterday 18:00'")
		o.defineSnapshots(f)
		o.files.define(f)
	})
	flagGroup(cmd, "Target", func(f *pflag.FlagSet) {
		f.BoolVar(&o.mount, "mount", false, "mount restored datasets whose keys are loaded")
		o.defineProperties(f, "also restore property `NAME`; repeatable")
		o.defineArrival(f)
	})
	o.defineRun(cmd)
	advanced(cmd, "include-snaps", "exclude-snaps", "newest", "since", "latest-only", "decrypt", "key-file", "carry", "no-resume", "measure", "retries", "skip-check")
	return cmd
}

// runMount runs restore --mount without a copy.
func (o *restoreOptions) runMount(cmd *cobra.Command, a *app, target string) error {
	for _, name := range append(datasetFlags(), "files", "key-file", "overwrite", "at", "dry-run") {
		if !slices.Contains([]string{"recursive", "recurse", "mount"}, name) {
			if err := refuseIneffective(cmd.Flags(), "without COPY", name); err != nil {
				return err
			}
		}
	}
	req := restore.Request{Send: o.req}
	req.Send.Plan.Recursive = req.Send.Plan.Recursive || o.recurse
	if err := setTarget(&req.Send, target); err != nil {
		return err
	}
	if req.Send.Target.Path() {
		return fault.Usagef("name its dataset: zfs list", "%s is a path, not a dataset", req.Send.Target)
	}
	j, err := o.start(a, a.stdout, device.Streams{})
	if err != nil {
		return err
	}
	r, err := restore.RunMount(cmd.Context(), req, j.at, j.rep)
	return j.finishSend(cmd.Context(), r, err)
}

// request checks flags that depend on each other and returns the job's request.
func (o *restoreOptions) request(cmd *cobra.Command, from, target string) (restore.Request, error) {
	if err := refuseIneffective(cmd.Flags(), "without --files", "key-file", "overwrite"); err != nil {
		return restore.Request{}, err
	}
	send, err := o.sendOptions.request(cmd.Flags(), from, target)
	req := restore.Request{Send: send, Mount: o.mount}
	switch {
	case err != nil:
		return req, err
	case isDevice(req.Send.Source) || isDevice(req.Send.Target):
		return req, fault.Usagef("zxfer dev SRC TARGET", "restore does not accept devices")
	case o.at != "" && req.Send.Plan.Snapshot != "":
		return req, fault.Usagef("omit one of them", "--at selects the snapshot, but COPY names @%s", req.Send.Plan.Snapshot)
	case cmd.Flags().Changed("at"):
		req.At, err = timeOf(cmd.Context(), o.at)
	}
	return req, err
}
