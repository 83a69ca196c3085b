package agent

import (
	"context"
	"errors"
	"slices"
	"strings"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// failure is an error on its way to another host: its text, and what callers
// tell errors apart by.
type failure struct {
	Text  string      `json:"text"`
	Class fault.Class `json:"class,omitempty"` // 0 = not classified
	Hint  string      `json:"hint,omitempty"`
	// Named are both as they name options (see package option), for a client that
	// knows all of these and writes them as its user does. Text and Hint have flags.
	Named *wording   `json:"named,omitempty"`
	ZFS   *zfs.Error `json:"zfs,omitempty"`
	Peer  string     `json:"peer,omitempty"` // of a transfer.PeerError
	Is    []string   `json:"is,omitempty"`   // sentinels, by name
}

type wording struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
}

// sentinel is an error that keeps its identity across hosts.
type sentinel struct {
	name string
	err  error
}

func sentinels() []sentinel {
	return []sentinel{
		{"canceled", context.Canceled},
		{"deadline", context.DeadlineExceeded},
		{"cut", tcp.ErrCut},
		{"truncated", tcp.ErrTruncated},
		{"tampered", tcp.ErrTampered},
		{"dial", tcp.ErrDial},
		{"nobody", tcp.ErrNobody},
		{"stall", transfer.ErrStall},
		{"miscounted", transfer.ErrMiscounted},
		{"corrupt", device.ErrCorrupt},
		{"lost", hosts.ErrLost},
		{"forbidden", hosts.ErrForbidden},
		{"operation", ErrUnknownOperation},
	}
}

// pack takes an error apart.
func pack(err error) *failure {
	named := wording{err.Error(), fault.HintOf(err)}
	f := &failure{Text: option.Flags(named.Text), Hint: option.Flags(named.Hint)}
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

// remoteError is an error of another host.
type remoteError struct {
	text string
	hint string
	of   []error // what it is, for errors.Is and errors.As
}

func (e *remoteError) Error() string    { return e.text }
func (e *remoteError) HintText() string { return e.hint }
func (e *remoteError) Unwrap() []error  { return e.of }

// maxText bounds an error's text, in bytes: nobody reads more of it.
const maxText = 16 << 10

// clip bounds what is shown of a text.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// attributed returns a hint of another host with the host's name at the start of each
// line: zxfer's own hints have none.
func attributed(host, hint string) string {
	var out []string
	for line := range strings.Lines(clip(hint, maxText)) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, host+": "+line)
		}
	}
	return strings.Join(out, "\n")
}

// unpack restores an error that came from host.
func (f *failure) unpack(host string) error {
	said := wording{f.Text, f.Hint}
	if f.Named != nil && option.Named(f.Named.Text) && option.Named(f.Named.Hint) {
		said = *f.Named
	}
	e := &remoteError{text: host + ": " + clip(said.Text, maxText), hint: attributed(host, said.Hint)}
	if f.ZFS != nil {
		z := *f.ZFS
		if z.Host == "" {
			z.Host = host
			if f.Text == f.ZFS.Error() {
				e.text = clip(z.Error(), maxText)
			}
		}
		z.Subject, z.Detail, z.Hint = clip(z.Subject, maxText), clip(z.Detail, maxText), attributed(host, z.Hint)
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
	// It is the exit code, of which the kernel passes on eight bits.
	if f.Class >= fault.Failed && f.Class <= fault.Interrupted {
		return &fault.Error{Class: f.Class, Hint: e.hint, Err: e}
	}
	return e
}
