package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/option"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/report/html"
	"zxfer/pkg/size"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// devOptions holds the flags of dev that need more than parsing.
type devOptions struct {
	output
	req     dev.Request
	block   size.Size
	mapFile string
	note    string // printed first
}

func newDev(a *app) *cobra.Command {
	o := &devOptions{}
	cmd := &cobra.Command{
		Use:   "dev [FLAGS] SRC TARGET",
		Short: "Copy a block device or image file",
		Long: `Copy a block device or image file to another one, on this host or over the
network. zxfer skips zeros, reads written blocks back and compares their
digests. It refuses a target that is in use, is too small, or contains data.
If SRC is a ZFS volume, zxfer copies a snapshot, and later only changes.`,
		Annotations: map[string]string{argsTitle: `  SRC     [[user@]host:]/PATH or ./PATH; - is standard input
          [[user@]host:]VOLUME[@SNAPSHOT] (default: the most recent snapshot)
  TARGET  [[user@]host:]/PATH or ./PATH; - is standard output`},
		Example: `  zxfer dev -n /dev/sda backup1:/dev/sdb
      show both devices and the plan; change nothing
  zxfer dev --delta --overwrite --confirm 107374182400 \
      /dev/vg/db backup1:/var/images/db.img
      update an image file: send only blocks that differ
  xz -dc debian.img.xz | zxfer dev - host1:/var/images/debian.img
      store the output of another program`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fault.Usagef("zxfer dev --help", "dev requires two arguments: SRC and TARGET (got %d)", len(args))
			}
			return nil
		},
		ValidArgsFunction: completeEnds(argKind{datasets: true, snapshots: true, files: true}, argKind{}),
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
func runDev(ctx context.Context, a *app, o *devOptions, req dev.Request) error {
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
	r, err := dev.Run(ctx, req, j.at, j.recorder.Device(j.rep))
	if mapErr := o.writeMap(r); mapErr != nil {
		err = errors.Join(err, fmt.Errorf("map was not written: %w", mapErr))
	}
	return j.finish(ctx, r, err, jobEnd{text: report.DeviceResult(r), done: "the copy is complete, but its report could not be written: ",
		page: func(about html.About, course history.Recording) ([]byte, error) { return html.Device(about, r, course) }})
}

// request checks flags that depend on each other and returns the job's request.
func (o *devOptions) request(flags *pflag.FlagSet, src, target string) (dev.Request, error) {
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
		return req, fault.Usagef("add --overwrite, or omit --confirm", "--confirm has no effect without --overwrite")
	case req.Digest != "" && req.Options.NoVerify:
		return req, fault.Usagef("omit --digest", "--digest has no effect with --no-verify")
	case req.Digest == device.XXH3 && req.Options.Delta:
		return req, fault.Usagef("omit --digest", "--delta compares blocks by blake3")
	case o.mapFile != "" && !req.SkipErrors:
		return req, fault.Usagef("add --skip-errors, or omit --map", "--map has no effect without --skip-errors")
	}
	if err := checkSkipped(req.SkipChecks); err != nil {
		return req, err
	}
	if err := checkVolumeFlags(flags, &req); err != nil {
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

// checkVolumeFlags refuses flags that have no effect on a copy of a volume, or only on that.
func checkVolumeFlags(flags *pflag.FlagSet, req *dev.Request) error {
	if !req.OfVolume() {
		return refuseIneffective(flags, "without a volume as SRC", "decrypt")
	}
	if _, err := os.Lstat(req.Source.Name); err == nil && req.Source.Local() {
		return dev.NotAPath(req.Source) // more likely a relative path
	}
	if !req.Compare {
		if err := refuseIneffective(flags, "with a volume, unless you add --verify-only", "digest"); err != nil {
			return err
		}
	}
	return refuseIneffective(flags, "with a volume, which zxfer copies as a stream",
		"delta", "no-resume", "skip-errors", "lvm-snapshot", "map", "sparse", "bs", "measure")
}

// copyFlags returns the flags that have no effect on a comparison.
func copyFlags() []string {
	return []string{"delta", "no-verify", "no-resume", "skip-errors", "lvm-snapshot", "map", "sparse", "overwrite", "confirm", "measure", "skip-check", "retries"}
}

// define declares the flags.
func (o *devOptions) define(cmd *cobra.Command) {
	req := &o.req
	flagGroup(cmd, "Copy", func(f *pflag.FlagSet) {
		f.BoolVar(&req.Options.Delta, "delta", false, "hash both sides and send only blocks that differ")
		f.BoolVar(&req.Compare, "verify-only", false, "compare both sides by digest, and copy nothing")
		f.Var(option.Word(&req.Digest, device.XXH3, device.BLAKE3), "digest", "use `ALGORITHM` xxh3, or blake3 (which b3sum prints); --delta always uses blake3")
		f.BoolVar(&req.Options.NoVerify, "no-verify", false, "do not read written blocks back")
		f.BoolVar(&req.NoResume, "no-resume", false, "ignore blocks that an interrupted copy stored")
		f.BoolVar(&req.SkipErrors, "skip-errors", false, "write zeros for unreadable blocks, and exit with 1")
		f.StringVar(&req.LVMSnapshot, "lvm-snapshot", "", "copy a temporary LVM snapshot of SRC with `SIZE` of space")
		f.StringVar(&o.mapFile, "map", "", "write a ddrescue map of unreadable blocks to `FILE`")
		f.BoolVar(&req.Decrypt, "decrypt", false, "copy an encrypted volume decrypted; needs its loaded key")
		f.BoolVar(&req.Sparse, "sparse", false, "do not allocate zeros in an image file (default: as source)")
	})
	flagGroup(cmd, "Safety", func(f *pflag.FlagSet) {
		f.BoolVar(&req.Allow.Overwrite, "overwrite", false, "overwrite a target that contains data; requires --confirm")
		f.StringVar(&req.Allow.Confirm, "confirm", "", "give `ID`: the target's serial number, WWN, or size in bytes")
	})
	transportGroup(cmd, &req.Settings, transport.Dev)
	flagGroup(cmd, "Run", func(f *pflag.FlagSet) {
		o.defineRun(f)
		f.Var(option.Size(&o.block, size.Max), "bs", "use blocks of `SIZE`, 64KiB to 16MiB (default automatic)")
	})
	advanced(cmd, "digest", "no-verify", "no-resume", "skip-errors", "map", "sparse", "decrypt", "lvm-snapshot", "bs", "measure", "retries", "skip-check")
	completeWords(cmd, "digest", device.XXH3, device.BLAKE3)
	completeChecks(cmd)
}

// defineRun declares the flags of the group "Run".
func (o *devOptions) defineRun(f *pflag.FlagSet) {
	req := &o.req
	f.BoolVarP(&req.DryRun, "dry-run", "n", false, dryRunHelp)
	f.BoolVar(&req.Measure, "measure", false, measureHelp)
	f.StringArrayVar(&req.SkipChecks, "skip-check", nil, skipCheckHelp)
	req.Retries = transport.Retries
	f.Var(option.Count(&req.Retries, 0, transport.MaxRetries), "retries", retriesHelp)
	o.output.define(f, "show the plan, and the stages of the copy")
}

// checkMap refuses a file that could not be written after hours of copying.
func (o *devOptions) checkMap() error {
	if o.mapFile == "" {
		return nil
	}
	return checkWritable("--map", o.mapFile)
}

// writeMap writes the map of unreadable ranges.
func (o *devOptions) writeMap(r *dev.Report) error {
	if o.mapFile == "" || r == nil || len(r.Results) == 0 {
		return nil
	}
	var text bytes.Buffer
	if err := device.WriteMapfile(&text, int64(r.Size), r.Results[len(r.Results)-1].BadRanges); err != nil {
		return err
	}
	return statedir.ReplaceKeepingMode(o.mapFile, text.Bytes())
}
