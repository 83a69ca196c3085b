package hosts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"zxfer/pkg/device"
	"zxfer/pkg/transfer"
)

// Task is a host's part of a transfer. Either it has two ends of one kind and needs no other host,
// or one of its ends is the connection to another host.
type Task struct {
	From From
	To   To
}

// kind names the type of an end. In JSON, an end is its value under that name.
type kind string

const (
	none     kind = ""
	stream   kind = "stream"
	drive    kind = "device"
	volume   kind = "volume" // a stream that a device stores
	tree     kind = "files"
	noise    kind = "noise"
	dial     kind = "dial"
	accept   kind = "accept"
	attached kind = "attached" // a stream of the control connection
	// nothing is the kind of Nothing, none that of a missing end.
	nothing kind = "nothing"
)

// remote reports whether the end is a connection to another host.
func (k kind) remote() bool { return k == dial || k == accept || k == attached }

// kinds returns the kinds of both ends, none for a missing end.
func (t Task) kinds() (from, to kind) {
	if t.From != nil {
		from = t.From.from()
	}
	if t.To != nil {
		to = t.To.to()
	}
	return from, to
}

// Moves returns the kind of the data: stream, device, volume, files, noise or nothing.
func (t Task) Moves() string {
	from, to := t.kinds()
	if from.remote() || to == volume {
		return string(to)
	}
	return string(from)
}

// check returns an error for an invalid task. Tasks are untrusted, because they come from another
// host.
func (t Task) check() error {
	from, to := t.kinds()
	if from == attached && to != stream || to == attached && from != stream {
		return errors.New("only a stream passes the control connection")
	}
	if from == stream && to == volume {
		return nil
	}
	if from == none || to == none || from.remote() == to.remote() && (from != to || from.remote()) {
		return errors.New("a task requires two ends of the same kind, or one end and a connection")
	}
	return nil
}

// attached returns the end that is a stream of the control connection.
func (t Task) attached() (Attached, bool) {
	if a, ok := t.From.(Attached); ok {
		return a, true
	}
	a, ok := t.To.(Attached)
	return a, ok
}

// options returns the options of a stream, which the source's end has if both are on this host. The source's host
// applies the bandwidth limit.
func (t Task) options() transfer.Options {
	if from, _ := t.kinds(); from.remote() {
		options := OptionsOf(t.To)
		options.BandLimit = 0
		return options
	}
	return OptionsOf(t.From)
}

// device returns the task's part of a device copy.
func (t Task) device() (d device.Task, ok bool) {
	from, reads := t.From.(ReadDevice)
	to, writes := t.To.(WriteDevice)
	switch {
	case reads:
		d = from.Task
	case writes:
		d = to.Task
	}
	d.Read, d.Write = reads, writes
	return d, reads || writes
}

// MarshalJSON encodes each end under its kind.
func (t Task) MarshalJSON() ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	from, to := t.kinds()
	return json.Marshal(map[string]any{"from": map[kind]any{from: t.From}, "to": map[kind]any{to: t.To}})
}

// UnmarshalJSON refuses invalid tasks and unknown fields.
func (t *Task) UnmarshalJSON(text []byte) (err error) {
	var ends struct{ From, To map[kind]json.RawMessage }
	if err := Decode(text, &ends); err != nil {
		return err
	}
	if t.From, err = decodeEnd(ends.From, map[kind]func([]byte) (From, error){
		stream: decodeAs[From, SendStream], drive: decodeAs[From, ReadDevice], tree: decodeAs[From, SendFiles], noise: decodeAs[From, Noise], nothing: decodeAs[From, Nothing], attached: decodeAs[From, Attached], dial: decodeAs[From, Dial], accept: decodeAs[From, Accept],
	}); err != nil {
		return fmt.Errorf("from: %w", err)
	}
	if t.To, err = decodeEnd(ends.To, map[kind]func([]byte) (To, error){
		stream: decodeAs[To, ReceiveStream], drive: decodeAs[To, WriteDevice], volume: decodeAs[To, WriteVolume], tree: decodeAs[To, ReceiveFiles], noise: decodeAs[To, Nowhere], nothing: decodeAs[To, Nothing], attached: decodeAs[To, Attached], dial: decodeAs[To, Dial], accept: decodeAs[To, Accept],
	}); err != nil {
		return fmt.Errorf("to: %w", err)
	}
	return t.check()
}

// decodeEnd decodes the only end of a map with the decoder for its kind.
func decodeEnd[E any](ends map[kind]json.RawMessage, kinds map[kind]func([]byte) (E, error)) (e E, err error) {
	if len(ends) != 1 {
		return e, errors.New("a task requires two ends of the same kind")
	}
	for k, body := range ends {
		if kinds[k] == nil {
			return e, fmt.Errorf("there is no end %q", cut(string(k)))
		}
		return kinds[k](body)
	}
	return e, nil
}

// decodeAs decodes an E as the interface I.
func decodeAs[I, E any](body []byte) (I, error) {
	var e E
	err := Decode(body, &e)
	return any(e).(I), err
}

// ErrMalformed means that a host does not know the arguments of a request: two builds differ, because a client
// sends only what its own build knows.
var ErrMalformed = errors.New("malformed arguments")

// Decode decodes one JSON value from another host. It refuses unknown fields, because ignoring one
// could do something else than requested.
func Decode(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}
