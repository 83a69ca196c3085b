package hosts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// From is what a Task moves, To where it goes. There are no others than those
// of this file.
type (
	From interface{ from() kind }
	To   interface{ to() kind }
)

// SendStream is a stream of a dataset.
type SendStream struct {
	Spec    zfs.SendSpec     `json:"spec"`
	Options transfer.Options `json:"options,omitzero"`
}

// ReceiveStream stores a stream in a dataset.
type ReceiveStream struct {
	Spec    zfs.ReceiveSpec  `json:"spec"`
	Options transfer.Options `json:"options,omitzero"`
}

// ReadDevice reads the source of a device's copy, WriteDevice writes its
// target. Both are given the same.
type (
	ReadDevice  struct{ device.Task }
	WriteDevice struct{ device.Task }
)

// SendFiles is files of a snapshot, ReceiveFiles brings them into a directory.
type (
	SendFiles struct {
		Archive files.Archive    `json:"archive"`
		Options transfer.Options `json:"options,omitzero"`
	}
	ReceiveFiles struct {
		Into    files.Into       `json:"into"`
		Options transfer.Options `json:"options,omitzero"`
	}
)

// Noise is made up for a time, to measure the way to Nowhere.
type (
	Noise struct {
		Time time.Duration `json:"time"`
	}
	Nowhere struct{}
)

// Nothing is what a connection carries that is only made to see that it can be:
// both ends prove themselves, and close it. It goes nowhere else.
type Nothing struct{}

// Dial and Accept are the line to another host's part: by its ticket, or at the
// listener that this Site has offered under a session.
type (
	Dial struct {
		Ticket tcp.Ticket `json:"ticket"`
	}
	Accept struct {
		Session string `json:"session"`
	}
)

func (SendStream) from() kind  { return stream }
func (ReceiveStream) to() kind { return stream }
func (ReadDevice) from() kind  { return drive }
func (WriteDevice) to() kind   { return drive }
func (SendFiles) from() kind   { return tree }
func (ReceiveFiles) to() kind  { return tree }
func (Noise) from() kind       { return noise }
func (Nowhere) to() kind       { return noise }
func (Nothing) from() kind     { return nothing }
func (Nothing) to() kind       { return nothing }
func (Dial) from() kind        { return dial }
func (Dial) to() kind          { return dial }
func (Accept) from() kind      { return accept }
func (Accept) to() kind        { return accept }

// OptionsOf are the options of an end of a stream, the usual ones of what has
// none.
func OptionsOf(end any) transfer.Options {
	switch e := end.(type) {
	case SendStream:
		return e.Options
	case ReceiveStream:
		return e.Options
	case SendFiles:
		return e.Options
	case ReceiveFiles:
		return e.Options
	case Noise:
		return probe.Options(1)
	}
	return transfer.Options{}
}

// CauseOf is why a stream failed, if it did, as far as its Source, which is closed,
// knows better.
func CauseOf(src transfer.Source, err error) error {
	s, ok := src.(cli.Stream)
	if err == nil || !ok {
		return err
	}
	return JoinCause(s.Cause(err), err)
}

// JoinCause is the error of a transfer that failed for what its source says. What the
// target would not take stays said, and what class that is.
func JoinCause(source, target error) error {
	planned := &zfs.Error{Kind: zfs.Unplanned}
	if !errors.Is(target, planned) || errors.Is(source, planned) {
		return source
	}
	return fault.Failf(fault.HintOf(target), "%w; the target says: %w", source, target)
}

// OpenFrom opens an end in this process.
func (l *Local) OpenFrom(ctx context.Context, what From) (transfer.Source, error) {
	switch from := what.(type) {
	case SendStream:
		return l.openSend(ctx, from)
	case SendFiles:
		return l.packFiles(ctx, from.Archive)
	case Noise:
		return probe.Noise(from.Time), nil
	}
	return nil, fmt.Errorf("%T is no end that this process opens", what)
}

// OpenTo opens an end in this process; see OpenFrom.
func (l *Local) OpenTo(ctx context.Context, what To) (transfer.Sink, error) {
	switch to := what.(type) {
	case ReceiveStream:
		return l.tools.OpenReceive(ctx, to.Spec)
	case ReceiveFiles:
		return files.Unpack(to.Into)
	case Nowhere:
		return probe.Nowhere(), nil
	}
	return nil, fmt.Errorf("%T is no end that this process opens", what)
}

// openSend starts a stream. Where the back end runs anyway it makes small ones.
func (l *Local) openSend(ctx context.Context, from SendStream) (src cli.Stream, err error) {
	if !from.Options.Small() || !l.started.Load() {
		return l.tools.OpenSend(ctx, from.Spec)
	}
	life := ctx // of the stream, not of the call
	err = l.with(ctx, func(_ context.Context, b cli.Backend) error {
		src, err = b.OpenSend(life, from.Spec)
		return err
	})
	return src, err
}
