package hosts

import (
	"context"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/files"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// From is the source end of a Task and To its target end. Only the types in this file implement
// them.
type (
	From interface{ from() kind }
	To   interface{ to() kind }
)

// Ends opens ends of a Task for data that passes this process.
type Ends interface {
	OpenFrom(ctx context.Context, from From) (transfer.Source, error)
	OpenTo(ctx context.Context, to To) (transfer.Sink, error)
}

// SendStream sends a dataset as a stream. Only limits it to some blocks (see zfs.BlockFilter).
type SendStream struct {
	Spec    zfs.SendSpec     `json:"spec"`
	Only    zfs.Blocks       `json:"only,omitempty"`
	Options transfer.Options `json:"options,omitzero"`
}

// ReceiveStream receives a stream into a dataset. With Report, the result has Arrived.
type ReceiveStream struct {
	Spec    zfs.ReceiveSpec  `json:"spec"`
	Options transfer.Options `json:"options,omitzero"`
	Report  bool             `json:"report,omitempty"`
}

// ReadDevice and WriteDevice are the source and the target end of a device copy. Both get the same
// device.Task.
type (
	ReadDevice  struct{ device.Task }
	WriteDevice struct{ device.Task }
)

// SendFiles sends files of a snapshot. ReceiveFiles writes them to a directory.
type (
	SendFiles struct {
		Archive files.Archive    `json:"archive"`
		Options transfer.Options `json:"options,omitzero"`
	}
	ReceiveFiles struct {
		Into    files.UnpackOptions `json:"into"`
		Options transfer.Options    `json:"options,omitzero"`
	}
)

// Noise generates data for a time, and Nowhere discards it, to measure the network path.
type (
	Noise struct {
		Time time.Duration `json:"time"`
	}
	Nowhere struct{}
)

// Nothing is an end of a task that only tests a connection. Both ends authenticate and close it.
type Nothing struct{}

// Dial and Accept are connections to the part of another host. Dial uses that host's ticket. Accept
// uses a listener that this host offered under a session id.
type (
	Dial struct {
		Ticket tcp.Ticket `json:"ticket"`
		// Through opens the connections in this process; nil = the host's own stack.
		Through tcp.Stack `json:"-"`
	}
	Accept struct {
		Session string `json:"session"`
	}
)

func (SendStream) from() kind { return stream }

func (ReceiveStream) to() kind { return stream }

func (ReadDevice) from() kind { return drive }

func (WriteDevice) to() kind { return drive }

func (SendFiles) from() kind { return tree }

func (ReceiveFiles) to() kind { return tree }

func (Noise) from() kind { return noise }

func (Nowhere) to() kind { return noise }

func (Nothing) from() kind { return nothing }

func (Nothing) to() kind { return nothing }

func (Dial) from() kind { return dial }

func (Dial) to() kind { return dial }

func (Accept) from() kind { return accept }

func (Accept) to() kind { return accept }

// OptionsOf returns the transfer options of an end, or the defaults if it has none.
func OptionsOf(end any) transfer.Options {
	switch e := end.(type) {
	case SendStream:
		return e.Options
	case ReceiveStream:
		return e.Options
	case WriteVolume:
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
