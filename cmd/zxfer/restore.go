package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/job"
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
		Use:   "restore [FLAGS] COPY[@SNAPSHOT] TARGET",
		Short: "Bring a dataset back from its copy",
		Long: `restore brings a dataset back from its copy, with all snapshots that the copy
has, and gives back what the copy had changed for its own safety: it can be
written to, and mounts where the target's place says.

COPY is [[user@]host:]DATASET[@SNAPSHOT]; without a snapshot the newest one is
restored. TARGET is as of zxfer send: a new dataset, beside what is still there,
or the damaged one itself, which then gets what it lacks. Nothing that is newer
there is lost without --rollback; without it the refusal names what would be.
With it, a target that has the snapshot itself is rolled back to it.

While it arrives it is read-only and not mounted. What is encrypted comes back
as it is, and its key never crosses: the last lines say which key to load, and
what to mount. A tree (-R) that was one encryption root is one again, where that
is proved. Interrupted at whatever moment, the same command goes on.

With --files single files and folders come back, out of one snapshot, into the
directory TARGET, [[user@]host:]/PATH or ./PATH. The copy is not mounted where
anybody sees it, and is received into as ever meanwhile. What is there already
with the same size and time is passed over; what differs is refused, and
replaced with --overwrite.`,
		Example: `  zxfer restore -n backup1:vault/home tank/home
      show what would come back, what would be set and what mounts where
  zxfer restore backup1:vault/home tank/home-back
      beside what is still there
  zxfer restore -R --mount backup1:vault/home tank/home
      a tree, and mount it
  zxfer restore --at 'yesterday 18:00' backup1:vault/home tank/home-back
      as it was then
  zxfer restore --rollback backup1:vault/home tank/home
      back over the damaged dataset, which loses what is newer
  zxfer restore --files alice/letters backup1:vault/home@monday ./found
      the folder "letters" of alice, as ./found/letters`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fault.Usagef(helpOf(cmd), "restore takes 2 arguments, COPY and TARGET, not %d", len(args))
			}
			return nil
		},
		ValidArgsFunction: completeEnds(argKind{datasets: true, snapshots: true}, argKind{datasets: true}),
		RunE: func(cmd *cobra.Command, args []string) error {
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
			r, err := job.RunRestore(cmd.Context(), req, j.at, j.recorder.Send(j.rep, ""))
			return j.finishSend(cmd.Context(), r, err, req.RSH)
		},
	}
	flagGroup(cmd, "What to restore", func(f *pflag.FlagSet) {
		o.defineTree(f)
		f.StringVar(&o.at, "at", "", "the newest snapshot of that `TIME` or before, of each dataset: 'yesterday 18:00', '2026-11-21 09:30', whatever date --date takes")
		o.defineSnapshots(f)
		o.files.define(f)
	})
	flagGroup(cmd, "What arrives", func(f *pflag.FlagSet) {
		f.BoolVar(&o.mount, "mount", false, "mount it afterwards, where its key is loaded")
		o.defineProperties(f, "also bring back the property `NAME`, such as org.example:note; may be repeated")
		o.defineArrival(f)
	})
	o.defineRun(cmd)
	return cmd
}

// request checks flags that depend on each other and returns the job's request.
func (o *restoreOptions) request(cmd *cobra.Command, from, target string) (job.Restore, error) {
	if err := refuseIneffective(cmd.Flags(), "without --files", "key-file", "overwrite"); err != nil {
		return job.Restore{}, err
	}
	send, err := o.sendOptions.request(cmd.Flags(), from, target)
	req := job.Restore{Send: send, Mount: o.mount}
	switch {
	case err != nil:
		return req, err
	case isDevice(req.Source) || isDevice(req.Target):
		return req, fault.Usagef("zxfer dev brings a device back", "restore takes datasets, not devices")
	case o.at != "" && req.Plan.Snapshot != "":
		return req, fault.Usagef("leave out one of them", "--at chooses the snapshot, but COPY names @%s", req.Plan.Snapshot)
	case cmd.Flags().Changed("at"):
		req.At, err = timeOf(cmd.Context(), o.at)
	}
	return req, err
}
