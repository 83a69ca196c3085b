package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/option"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/report/history"
	"zxfer/pkg/report/html"
	"zxfer/pkg/size"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// devOptions holds the flags of dev that need more than parsing.
type devOptions struct {
	output
	req     job.Dev
	block   size.Size
	mapFile string
	note    string // printed first
}

func newDev(a *app) *cobra.Command {
	o := &devOptions{}
	cmd := &cobra.Command{
		Use:   "dev [FLAGS] SRC TARGET",
		Short: "Copy a raw device or image file",
		Long: `dev copies a block device, partition, logical volume, zvol or image file to
another one, block by block, on this host or across the network.

SRC and TARGET are [[user@]host:]/PATH, or ./PATH on this host. Either end, both
or none may be on another host. "-" is standard input as SRC and standard output as TARGET; such a
copy cannot be resumed, and a file that was made for one that failed is removed.
Blocks that are all zeros are neither sent nor stored as data; what was written
is synced, read back past the page cache and compared, by xxh3, which finds
what disks, memory and cables do wrong; --digest blake3 also tells the digest
that b3sum prints of the whole device. A copy that was cut off is resumed, by
itself or by running the same command again: only blocks that had not been
stored, or have changed since, are sent. A longer image file is cut to the size
of the source.

A target that is in use, too small, or has anything recognisable on it is
refused before a byte is written; -n shows both devices and what stands in the
way.`,
		Example: `  zxfer dev -n /dev/sda backup1:/dev/sdb
      show both devices and the plan; change nothing
  zxfer dev /dev/vg/db backup1:/var/images/db.img
      copy a volume into an image file on backup1
  zxfer dev --delta --overwrite --confirm 107374182400 \
      /dev/vg/db backup1:/var/images/db.img
      once more onto the same file: send only the blocks that differ
  zxfer dev backup1:/var/images/db.img /dev/vg/restored
      fetch it back
  xz -dc debian.img.xz | zxfer dev - host1:/var/images/debian.img
      store what another program writes
  zxfer dev --verify-only /dev/vg/db backup1:/var/images/db.img
      compare two devices, copy nothing`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fault.Usagef("zxfer help dev", "dev takes 2 arguments, SRC and TARGET, not %d", len(args))
			}
			return nil
		},
		ValidArgsFunction: completeEnds(argKind{}, argKind{}),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := o.request(cmd.Flags(), args[0], args[1])
			if err != nil {
				return err
			}
			return runDev(cmd.Context(), a, o, req)
		},
	}
	o.define(cmd)
	return cmd
}

// runDev runs the job and reports it.
func runDev(ctx context.Context, a *app, o *devOptions, req job.Dev) error {
	if err := o.checkMap(); err != nil {
		return err
	}
	stdout := a.stdout
	if req.Target.Local() && req.Target.Name == device.Standard {
		stdout = a.stderr // standard output carries the copy
	}
	j, err := o.start(a, stdout, device.Streams{In: a.stdin, Out: a.stdout})
	if err != nil {
		return err
	}
	if o.note != "" {
		j.log(o.note)
	}
	r, err := job.RunDev(ctx, req, j.at, j.recorder.Device(j.rep))
	if mapErr := o.writeMap(r); mapErr != nil {
		err = errors.Join(err, fmt.Errorf("the map was not written: %w", mapErr))
	}
	return j.finish(ctx, r, err, jobEnd{shell: req.RSH, done: "the copy is complete, but its report could not be written: ",
		page: func(about html.About, course history.Course) ([]byte, error) { return html.Device(about, r, course) }})
}

// request checks flags that depend on each other and returns the job's request.
func (o *devOptions) request(flags *pflag.FlagSet, src, target string) (job.Dev, error) {
	req := o.req
	req.Options.Block = int(min(o.block, tcp.MaxRaw+1))
	var err error
	if req.Source, err = parseEndpoint(src); err != nil {
		return req, err
	}
	if req.Target, err = parseEndpoint(target); err != nil {
		return req, err
	}
	b := req.Options.Block
	switch {
	case b != 0 && (b < device.MinBlock || b > tcp.MaxRaw || bits.OnesCount(uint(b)) != 1):
		return req, fault.Usagef("", "--bs must be a power of two from 64KiB to 16MiB")
	case req.Allow.Confirm != "" && !req.Allow.Overwrite:
		return req, fault.Usagef("add --overwrite, or leave --confirm out", "--confirm has no effect without --overwrite")
	case req.Digest != "" && req.Options.NoVerify:
		return req, fault.Usagef("leave --digest out", "--digest has no effect with --no-verify")
	case req.Digest == device.XXH3 && req.Options.Delta:
		return req, fault.Usagef("leave --digest out", "--delta takes blocks for equal by blake3")
	case o.mapFile != "" && !req.SkipErrors:
		return req, fault.Usagef("add --skip-errors, or leave --map out", "--map has no effect without --skip-errors")
	}
	if err := checkSkipped(req.SkipChecks); err != nil {
		return req, err
	}
	if req.Compare {
		const because = "with --verify-only, which copies nothing"
		if err := cmp.Or(refuseIneffective(flags, because, copyFlags()...), req.RefuseIneffective(transport.NothingMoved, because)); err != nil {
			return req, err
		}
	}
	return req, checkTransport(&req.Settings, transport.Dev, req.Source, req.Target)
}

// copyFlags returns the flags that have no effect on a comparison.
func copyFlags() []string {
	return []string{"delta", "no-verify", "no-resume", "skip-errors", "lvm-snapshot", "map", "sparse", "overwrite", "confirm", "measure", "skip-check", "retries"}
}

// define declares the flags.
func (o *devOptions) define(cmd *cobra.Command) {
	req := &o.req
	flagGroup(cmd, "What to copy", func(f *pflag.FlagSet) {
		f.BoolVar(&req.Options.Delta, "delta", false, "hash both sides and send only what differs")
		f.BoolVar(&req.Compare, "verify-only", false, "hash both sides and compare them; copy nothing")
		f.Var(option.Word(&req.Digest, device.XXH3, device.BLAKE3), "digest", "how blocks are compared: blake3 tells what b3sum prints, too, and --delta takes it; a copy that is resumed goes on with its own")
		f.BoolVar(&req.Options.NoVerify, "no-verify", false, "do not read back what was written, and tell no digest")
		f.BoolVar(&req.NoResume, "no-resume", false, "do not use what an interrupted copy has stored")
		f.BoolVar(&req.SkipErrors, "skip-errors", false, "pass over what cannot be read, as zeros; list it and exit with 1")
		f.StringVar(&req.LVMSnapshot, "lvm-snapshot", "", "copy an LVM snapshot of SRC, a mounted logical volume, with room of `SIZE` for what is written meanwhile, such as 5G; it is removed afterwards")
		f.StringVar(&o.mapFile, "map", "", "with --skip-errors, write what could not be read to `FILE`, as a map for ddrescue")
		f.BoolVar(&req.Sparse, "sparse", false, "leave holes in an image file where the source has zeros, instead of allocating all of it (default if the source is a file with holes)")
	})
	flagGroup(cmd, "Safety", func(f *pflag.FlagSet) {
		f.BoolVar(&req.Allow.Overwrite, "overwrite", false, "overwrite a target that holds something; needs --confirm")
		f.StringVar(&req.Allow.Confirm, "confirm", "", "the target's serial number or WWN, or its size in bytes where it has neither, as `ID`")
	})
	flagGroup(cmd, "The way there", func(f *pflag.FlagSet) {
		transportFlags(f, &req.Settings, transport.Dev)
		f.Var(option.Size(&o.block, size.Max), "bs", "block size, a power of two from 64KiB to 16MiB (default chosen from the devices)")
	})
	flagGroup(cmd, "How to run", o.defineRun)
	completeTransport(cmd, transport.Dev)
	completeWords(cmd, "digest", device.XXH3, device.BLAKE3)
	completeChecks(cmd)
}

// defineRun declares the flags of the group "How to run".
func (o *devOptions) defineRun(f *pflag.FlagSet) {
	req := &o.req
	f.BoolVarP(&req.DryRun, "dry-run", "n", false, "show both devices and the plan, and write neither")
	f.BoolVar(&req.Measure, "measure", false, "first measure the link, the source and an image file's disk, and tell the rate to expect and what limits it")
	f.StringArrayVar(&req.SkipChecks, "skip-check", nil, "pass over the preflight check `ID` that a refusal named; may be repeated")
	req.Retries = transport.Retries
	f.Var(option.Count(&req.Retries, 0, transport.MaxRetries), "retries", "tries after a cut before giving up with exit code 4")
	o.output.define(f, "show the plan first and the copy's stages afterwards")
}

// checkMap refuses a file that could not be written after hours of copying.
func (o *devOptions) checkMap() error {
	if o.mapFile == "" {
		return nil
	}
	return checkWritable("--map", o.mapFile)
}

// writeMap writes the map of unreadable ranges.
func (o *devOptions) writeMap(r *job.DevReport) error {
	if o.mapFile == "" || r == nil || len(r.Results) == 0 {
		return nil
	}
	var text bytes.Buffer
	if err := device.WriteMapfile(&text, int64(r.Size), r.Results[len(r.Results)-1].BadRanges); err != nil {
		return err
	}
	return statedir.Put(o.mapFile, text.Bytes())
}
