package agent

import (
	"context"
	"errors"
	"slices"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/remedy"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// failure is the wire form of an error: its text, and the properties that callers test.
type failure struct {
	Text  string      `json:"text"`
	Class fault.Class `json:"class,omitempty"` // 0 = unclassified
	Hint  string      `json:"hint,omitempty"`
	// Named holds Text and Hint with option names (see package option) instead of flags. A
	// client uses it if it knows all the names.
	Named *wording   `json:"named,omitempty"`
	ZFS   *zfs.Error `json:"zfs,omitempty"`
	Peer  string     `json:"peer,omitempty"` // text of a transfer.PeerError
	Is    []string   `json:"is,omitempty"`   // names of sentinels
	Done  int        `json:"done,omitempty"` // of a hosts.StoppedError
}

type wording struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
}

// ErrUnknownOperation is returned for an operation that the agent does not have.
var ErrUnknownOperation = errors.New("unknown operation")

// sentinel is an error that errors.Is recognizes on other hosts.
type sentinel struct {
	name string
	err  error
}

func sentinels() []sentinel {
	return []sentinel{
		{"canceled", context.Canceled},
		{"deadline", context.DeadlineExceeded},
		{"cut", tcp.ErrConnectionLost},
		{"tampered", tcp.ErrTampered},
		{"dial", tcp.ErrDial},
		{"nobody", tcp.ErrNoPeer},
		{"stall", transfer.ErrStall},
		{"miscounted", transfer.ErrTotalsMismatch},
		{"corrupt", device.ErrCorrupt},
		{"lost", hosts.ErrLost},
		{"forbidden", hosts.ErrForbidden},
		{"unconnected", hosts.ErrNotConnected},
		{"operation", ErrUnknownOperation},
		{"listener", hosts.ErrNoListener},
		{"malformed", hosts.ErrMalformed},
	}
}

// pack encodes an error.
func pack(err error) *failure {
	named := wording{err.Error(), fault.MarkedHint(err)}
	f := &failure{Text: option.Flags(named.Text), Hint: option.Flags(named.Hint), Done: hosts.Done(err)}
	if named != (wording{f.Text, f.Hint}) {
		f.Named = &named
	}
	var classified *fault.Error
	if errors.As(err, &classified) {
		f.Class = classified.Class
	}
	errors.As(err, &f.ZFS)
	var peer *transfer.PeerError
	if errors.As(err, &peer) {
		f.Peer = peer.Text
	}
	for _, s := range sentinels() {
		if errors.Is(err, s.err) {
			f.Is = append(f.Is, s.name)
		}
	}
	return f
}

// unpack decodes an error that came from host.
func (f *failure) unpack(at remedy.Host) error {
	host := at.Name
	chosen := wording{f.Text, f.Hint}
	if f.Named != nil && option.AllDeclared(f.Named.Text) && option.AllDeclared(f.Named.Hint) {
		chosen = *f.Named
	}
	e := &remoteError{text: host + ": " + clip(chosen.Text, maxText), hint: hintOn(at, chosen.Hint)}
	if f.ZFS != nil {
		z := *f.ZFS
		if z.Host == "" {
			z.Host = host
			if f.Text == f.ZFS.Error() {
				e.text = clip(z.Error(), maxText)
			}
		}
		z.Subject, z.Detail, z.Hint = clip(z.Subject, maxText), clip(z.Detail, maxText), hintOn(at, z.Hint)
		e.of = append(e.of, &z)
	}
	if f.Peer != "" {
		e.of = append(e.of, &transfer.PeerError{Text: clip(f.Peer, maxText)})
	}
	for _, s := range sentinels() {
		if slices.Contains(f.Is, s.name) {
			e.of = append(e.of, s.err)
		}
	}
	if f.Done != 0 {
		e.of = append(e.of, &hosts.StoppedError{Done: f.Done, Err: errors.New(e.text)})
	}
	// The class becomes the exit code, of which the kernel keeps eight bits.
	if f.Class >= fault.Failed && f.Class <= fault.Interrupted {
		return &fault.Error{Class: f.Class, Hint: e.hint, Err: e}
	}
	return e
}

// remoteError is an error of another host.
type remoteError struct {
	text string
	hint string
	of   []error // for errors.Is and errors.As
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) HintText() string { return e.hint }

func (e *remoteError) Unwrap() []error { return e.of }

// hintOn returns a hint as written for another host. Local hints do not start with a host's name.
func hintOn(at remedy.Host, hint string) string { return at.On(clip(hint, maxText)) }

// clip limits a text to n bytes.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// maxText limits an error's text, in bytes.
const maxText = 16 << 10
