package heal

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// A heal sends as little as possible. If that does not suffice, it sends more, in this order: the
// damaged blocks of an incremental stream, the damaged blocks of the full stream, the full stream.

// chooseBlocks limits the stream of a dataset to its damaged blocks, if they are known.
func (d *healing) chooseBlocks(damage *zfs.Damage) {
	b := damage.BlocksOf(d.report.Dataset)
	d.only, d.metadata, d.report.Blocks, d.report.Whole = b.Data, b.LiveMetadata, b.Data.Total(), ""
	switch {
	case damage.Unlisted:
		d.report.Whole = "ZFS does not list the errors"
	case damage.NoBlocks != "":
		d.report.Whole = damage.NoBlocks
	case len(d.only) == 0:
		d.report.Whole = "the error log of the pool lists no damaged data of it"
	case d.pair.relayed:
		d.report.Whole = "zxfer does not run on " + d.pair.good.HostName() + ": this host selects the blocks"
	}
	d.report.SendBytes = d.report.Bytes
	if d.report.Whole == "" && d.pair.blockSize > 0 && d.report.Blocks < math.MaxUint64/d.pair.blockSize {
		d.report.SendBytes = min(d.report.Bytes, d.report.Blocks*d.pair.blockSize)
	}
}

// blockSize returns the largest size of a dataset's blocks with its current properties, 0 if unknown.
func blockSize(d *zfs.Dataset) uint64 {
	property := "recordsize"
	if d.Type == zfs.Volume {
		property = "volblocksize"
	}
	n, _ := strconv.ParseUint(d.Get(property), 10, 64) // 0 if it is not set
	return n
}

// widen prepares another stream after one that may not have healed everything. damaged means that a
// file is still unreadable. It reports whether there is another stream to send.
func (d *healing) widen(rep send.Reporter, damaged bool) bool {
	switch {
	case d.report.Since != "":
		d.useFull(rep)
	case damaged && len(d.only) > 0 && !d.metadata:
		d.useWhole(rep, "the damaged blocks were not enough")
	default:
		return false
	}
	return true
}

// useFull replaces an incremental stream with the full one.
func (d *healing) useFull(rep send.Reporter) {
	rep.Log(d.report.Dataset + ": the changes since @" + d.report.Since + " are not enough: reading all data")
	d.report.Since, d.base, d.report.Bytes, d.report.FullBytes = "", 0, d.report.FullBytes, 0
}

// useWhole replaces the damaged blocks with the whole stream.
func (d *healing) useWhole(rep send.Reporter, why string) {
	rep.Log(d.report.Dataset + ": sending the whole stream: " + why)
	d.only, d.report.Blocks, d.report.Whole, d.report.SendBytes = nil, 0, why, d.report.Bytes
}

// refusal returns why zfs receive refused a stream of damaged blocks although it may accept the whole
// stream, or "".
func (d *healing) refusal(err error) string {
	var failed *zfs.Error
	if len(d.only) == 0 || !errors.As(err, &failed) || failed.Op != zfs.OpReceive || errors.Is(err, tcp.ErrConnectionLost) || cannotReconstruct(failed) {
		return ""
	}
	if !slices.Contains([]zfs.Kind{zfs.Unknown, zfs.BadStream, zfs.Feature, zfs.NotSupported}, failed.Kind) {
		return ""
	}
	return "zfs receive refused the damaged blocks: " + failed.Detail
}

// cannotReconstruct reports whether a corrective receive failed because a block cannot be healed.
func cannotReconstruct(e *zfs.Error) bool {
	return e.Op == zfs.OpReceive && (e.Kind == zfs.PoolFault || strings.Contains(e.Detail, "not able to reconstruct"))
}

// checkMetadata returns an error if a stream of damaged blocks healed everything except metadata.
func (d *healing) checkMetadata() error {
	if len(d.only) == 0 || !d.metadata {
		return nil
	}
	return fault.Failf(d.pair.restoreHint("restore the data", d.common), "%s healed, but metadata is also damaged, which streams do not contain",
		english.Plural(int(min(d.report.Blocks, math.MaxInt)), "block is", "blocks are"))
}

// restoreHint returns the command that restores the good data under a new name.
func (p *healPair) restoreHint(what, snapshot string) string {
	return what + " to a new dataset, then rename it: zxfer restore " +
		zfs.CommandLine([]string{p.good.String() + "@" + snapshot, siblingName(p.bad)})
}
