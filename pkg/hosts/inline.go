package hosts

import (
	"bytes"
	"context"
	"errors"

	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// MaxInline is the maximum size of an inline stream in bytes.
const MaxInline = 160 << 10

// Inline is the source end of a small stream that comes with the request. Collect is the target end that
// returns a stream with the answer. Such a stream needs no data connection.
type (
	Inline struct {
		Data []byte `json:"data"`
	}
	Collect struct{}
)

func (Inline) from() kind { return inline }

func (Collect) to() kind { return inline }

// ErrNotSmall means that a stream has more than MaxInline bytes, although its estimate had less. The
// source sent nothing.
var ErrNotSmall = errors.New("the stream is too large for one message")

// inlineSource reads the data of an Inline.
type inlineSource struct{ *bytes.Reader }

func (inlineSource) Close() error { return nil }
func (inlineSource) Name() string { return "received stream" }

// collectSink collects a stream for the answer.
type collectSink struct{ data []byte }

func (c *collectSink) Write(p []byte) (int, error) {
	if len(c.data)+len(p) > MaxInline {
		return 0, ErrNotSmall
	}
	c.data = append(c.data, p...)
	return len(p), nil
}

func (*collectSink) Commit(context.Context) error { return nil }
func (*collectSink) Abort(error) error            { return nil }
func (*collectSink) Name() string                 { return "answer" }

// Arrived describes a dataset after a stream into it, for verification.
type Arrived struct {
	GUID     uint64 `json:"guid,string"` // of the last snapshot
	CanMount string `json:"canmount"`    // of the dataset
	ReadOnly string `json:"readonly"`
}

// addArrived sets Arrived, if the target end asks for it. A failure leaves it nil: the caller then lists
// the target.
func (l *Local) addArrived(ctx context.Context, to To, res *Result) {
	r, ok := to.(ReceiveStream)
	if !ok || !r.Report || len(r.Spec.Arrival.Snapshots) == 0 {
		return
	}
	last := r.Spec.Arrival.Snapshots[len(r.Spec.Arrival.Snapshots)-1]
	name := r.Spec.Target + "@" + last.Name
	found, err := l.Properties(ctx, []string{r.Spec.Target, name}, []string{"guid", "canmount", "readonly"})
	if err != nil || found[r.Spec.Target] == nil || found[name] == nil {
		return
	}
	if guid, err := zfs.ParseGUID(found[name]["guid"].Value); err == nil {
		dataset := found[r.Spec.Target]
		res.Arrived = &Arrived{GUID: guid, CanMount: dataset["canmount"].Value, ReadOnly: dataset["readonly"].Value}
	}
}

var (
	_ transfer.Source = inlineSource{}
	_ transfer.Sink   = (*collectSink)(nil)
)
