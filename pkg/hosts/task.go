package hosts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"zxfer/pkg/device"
)

// Task is a host's part in moving something: all of it, between two ends of one
// kind, or the half of one end, whose other end is the line to the other host.
type Task struct {
	From From
	To   To
}

// kind is what an end is an end of; as JSON an end is its value under that name.
type kind string

const (
	none   kind = ""
	stream kind = "stream"
	drive  kind = "device"
	tree   kind = "files"
	noise  kind = "noise"
	dial   kind = "dial"
	accept kind = "accept"
	// nothing is of no thing, none of no end.
	nothing kind = "nothing"
)

// line tells the kinds that lead to another host.
func (k kind) line() bool { return k == dial || k == accept }

// kinds are those of both ends, none where there is no end.
func (t Task) kinds() (from, to kind) {
	if t.From != nil {
		from = t.From.from()
	}
	if t.To != nil {
		to = t.To.to()
	}
	return from, to
}

// Moves is the kind of what is moved: stream, device, files, noise or nothing.
func (t Task) Moves() string {
	from, to := t.kinds()
	if from.line() {
		return string(to)
	}
	return string(from)
}

// check refuses what is no Task: it comes as text from another host.
func (t Task) check() error {
	from, to := t.kinds()
	if from == none || to == none || from.line() == to.line() && (from != to || from.line()) {
		return errors.New("a task is between two ends of a kind, or an end and the line to another host")
	}
	return nil
}

// device is the device's copy that a task is part of.
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

// MarshalJSON writes each end under its kind.
func (t Task) MarshalJSON() ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	from, to := t.kinds()
	return json.Marshal(map[string]any{"from": map[kind]any{from: t.From}, "to": map[kind]any{to: t.To}})
}

// UnmarshalJSON takes nothing but a Task, without a field that it does not know.
func (t *Task) UnmarshalJSON(text []byte) (err error) {
	var ends struct{ From, To map[kind]json.RawMessage }
	if err := Decode(text, &ends); err != nil {
		return err
	}
	if t.From, err = one(ends.From, map[kind]func([]byte) (From, error){
		stream: end[From, SendStream], drive: end[From, ReadDevice], tree: end[From, SendFiles], noise: end[From, Noise], nothing: end[From, Nothing], dial: end[From, Dial], accept: end[From, Accept],
	}); err != nil {
		return fmt.Errorf("from: %w", err)
	}
	if t.To, err = one(ends.To, map[kind]func([]byte) (To, error){
		stream: end[To, ReceiveStream], drive: end[To, WriteDevice], tree: end[To, ReceiveFiles], noise: end[To, Nowhere], nothing: end[To, Nothing], dial: end[To, Dial], accept: end[To, Accept],
	}); err != nil {
		return fmt.Errorf("to: %w", err)
	}
	return t.check()
}

// unknownEnd is said of an end of a later build.
const unknownEnd = "there is no end"

// UnsupportedByPeer tells that a host refused a task because its build, an earlier one, does
// not have an end of it.
func UnsupportedByPeer(err error) bool {
	return err != nil && strings.Contains(err.Error(), unknownEnd)
}

// one is the one end that there is, of the kinds that there may be.
func one[E any](ends map[kind]json.RawMessage, kinds map[kind]func([]byte) (E, error)) (e E, err error) {
	if len(ends) != 1 {
		return e, errors.New("a task has two ends of one kind each")
	}
	for k, body := range ends {
		if kinds[k] == nil {
			return e, fmt.Errorf(unknownEnd+" %q", cut(string(k)))
		}
		return kinds[k](body)
	}
	return e, nil
}

// end is an I that is an E.
func end[I, E any](body []byte) (I, error) {
	var e E
	err := Decode(body, &e)
	return any(e).(I), err
}

// Decode reads one JSON value of another host. What it does not know it refuses:
// who passed over a field would do something else than was asked.
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
