package site

import (
	"context"
	"fmt"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// From is what a transfer moves, To where it goes.
type (
	From interface{ from(*Task) }
	To   interface{ to(*Task) }
)

// SendStream is a stream of a dataset.
type SendStream struct {
	Spec    zfs.SendSpec
	Options transfer.Options
}

// ReceiveStream stores a stream in a dataset.
type ReceiveStream struct {
	Spec    zfs.ReceiveSpec
	Options transfer.Options
}

// ReadDevice reads the source of a device's copy, WriteDevice writes its
// target. Both are given the same.
type (
	ReadDevice  struct{ device.Task }
	WriteDevice struct{ device.Task }
)

// Noise is made up for a time, to measure the way to Nowhere.
type (
	Noise struct {
		Time time.Duration `json:"time"`
	}
	Nowhere struct{}
)

func (n Noise) from(t *Task) { t.Noise = &n }

func (Nowhere) to(t *Task) { t.Noise = &Noise{} }

func (s SendStream) from(t *Task) { t.Send, t.Options = &s.Spec, s.Options }

func (r ReceiveStream) to(t *Task) { t.Receive, t.Options = &r.Spec, r.Options }

func (d ReadDevice) from(t *Task) {
	d.Read = true
	t.Device = &d.Task
}

func (d WriteDevice) to(t *Task) {
	d.Write, d.Read = true, t.Device != nil
	t.Device = &d.Task
}

// Whole is the Task of one host that has both ends.
func Whole(from From, to To) (t Task) {
	from.from(&t)
	to.to(&t)
	return t
}

// Sending is the half of the end that something comes from.
func Sending(from From) (t Task) { from.from(&t); return t }

// Receiving is the half of the end that it goes to.
func Receiving(to To) (t Task) { to.to(&t); return t }

// OptionsOf are the options of a stream, the usual ones of what has none.
func OptionsOf(what From) transfer.Options {
	if s, ok := what.(SendStream); ok {
		return s.Options
	}
	return transfer.Options{}
}

// OpenFrom opens an end in this process.
func (l *Local) OpenFrom(ctx context.Context, what From) (transfer.Source, error) {
	switch from := what.(type) {
	case SendStream:
		return l.tools.OpenSend(ctx, from.Spec)
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
	case Nowhere:
		return probe.Nowhere(), nil
	}
	return nil, fmt.Errorf("%T is no end that this process opens", what)
}
