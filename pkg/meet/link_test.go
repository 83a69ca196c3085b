package meet

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
)

// host is a Host with a Site; without a label it is this one.
type host struct {
	label string
	site  site.Site
	rtt   time.Duration
}

func (h *host) Local() bool                                         { return h.label == "" }
func (h *host) Label() string                                       { return h.label }
func (h *host) RTT() time.Duration                                  { return h.rtt }
func (h *host) Do(_ context.Context, f func(site.Site) error) error { return f(h.site) }
func (h *host) Relay(context.Context, string) (string, error)       { return "", nil }
func side(label string, f site.Facts) Side                          { return Side{&host{label: label}, f} }
func chosen(t *testing.T, w way.Way, source, target Side) (l Link) {
	l, err := Choose(w, source, target)
	require.NoError(t, err)
	return l
}

// One key of AES-GCM does not last for ever.
func TestLargeStreamsOverTLSHaveMoreConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode  wire.Mode
		bytes uint64
		want  int
	}{
		{wire.TLS, 0, 2},
		{wire.TLS, 512 << 30, 2},
		{wire.TLS, 512<<30 + 1, 3},
		{wire.TLS, 10 << 40, 40},
		{wire.TLS, 1 << 60, wire.MaxStreams},
		{wire.Signed, 10 << 40, 2},
	} {
		l := Link{Way: way.Way{Wire: string(tt.mode), Streams: 2}, crossing: overTCP{}}
		require.Equal(t, tt.want, l.connections(tt.bytes), "%s, %d bytes", tt.mode, tt.bytes)
	}
}

func TestStreamsFor(t *testing.T) {
	t.Parallel()
	usual := site.Facts{TCP: wire.TCP{TCPReadMax: 6 << 20, TCPWriteMax: 4 << 20}}
	tests := []struct {
		name   string
		window int64
		rtt    time.Duration
		a, b   site.Facts
		want   int
	}{
		{"a local network needs one", 0, 200 * time.Microsecond, usual, usual, 1},
		{"the smallest limit of both ends counts", 0, 2 * time.Millisecond, usual, site.Facts{TCP: wire.TCP{TCPReadMax: 1 << 20}}, 5},
		{"far away, the bound", 0, 50 * time.Millisecond, usual, usual, maxChosenStreams},
		{"a window that was asked for counts instead", 64 << 20, 50 * time.Millisecond, usual, usual, 2},
		{"an unknown round trip", 0, 0, usual, usual, 1},
		{"unknown limits", 0, time.Second, site.Facts{}, site.Facts{}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, streamsFor(tt.window, tt.rtt, tt.a, tt.b))
		})
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	reached := func(local, peer string) site.Facts { return site.Facts{SSHLocal: local, SSHPeer: peer} }
	tests := []struct {
		name                string
		way                 way.Way
		source, target      string
		sf, tf              site.Facts
		dial, address, peer string
		wire                string
		class               fault.Class
	}{
		{name: "push: the target listens where ssh reached it", source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "source", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "pull: the source listens, as only that way is known to be open", source: "a", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "third party: the target listens, and the source may come from anywhere", source: "a", target: "b",
			sf: reached("10.0.0.2", "10.0.0.1"), tf: reached("10.0.0.3", "10.0.0.1"), dial: "source", address: "10.0.0.3", wire: "auto"},
		{name: "push turned around: this host listens", way: way.Way{Dial: "target"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "auto"},
		{name: "an address of one's own, from any peer", way: way.Way{DataAddress: "192.168.7.2"}, source: "", target: "b",
			tf: reached("10.0.0.2", "10.0.0.1"), dial: "source", address: "192.168.7.2", wire: "auto"},
		{name: "through ssh: loopback", way: way.Way{Wire: "ssh"}, source: "", target: "b", dial: "source", address: "127.0.0.1", wire: "ssh"},
		{name: "through ssh between two other hosts", way: way.Way{Wire: "ssh"}, source: "a", target: "b", class: fault.Usage},
		{name: "plain tools, push: this host listens", way: way.Way{Wire: "nc"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools, pull: this host listens", way: way.Way{Wire: "nc"}, source: "b", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			dial: "source", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools between two other hosts", way: way.Way{Wire: "nc"}, source: "a", target: "b", class: fault.Usage},
		{name: "no address known", source: "", target: "b", class: fault.Refused},
		{name: "an address that is none", way: way.Way{DataAddress: "beta"}, source: "", target: "b", class: fault.Usage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			source, target := side(tt.source, tt.sf), side(tt.target, tt.tf)
			l, err := Choose(tt.way, source, target)
			if tt.class != 0 {
				require.Error(t, err)
				require.Equal(t, tt.class, fault.ClassOf(err))
				return
			}
			require.NoError(t, err)
			dialer, listener := source.Host, target.Host
			if tt.dial == "target" {
				dialer, listener = listener, dialer
			}
			require.Same(t, dialer, l.dialer)
			require.Same(t, listener, l.listener)
			require.Equal(t, []string{tt.dial, tt.address, tt.peer, tt.wire}, []string{l.dial, l.address, l.peer, l.Wire})
		})
	}
	t.Run("one host needs no network", func(t *testing.T) {
		t.Parallel()
		both := side("", site.Facts{})
		l := chosen(t, way.Way{Wire: "tls", Ports: way.Ports{Low: 1, High: 2}}, both, both)
		require.Equal(t, Report{Mode: Local, Why: "source and target are on one host"}, l.Report(true, true))
	})
}

// A host that says it was reached at loopback would have this one connect to
// itself, and another host to itself.
func TestAnAddressThatLeadsToNoOtherHostIsRefused(t *testing.T) {
	t.Parallel()
	near := side("", site.Facts{Boot: "1"})
	for _, address := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"} {
		there := site.Facts{SSHLocal: address, SSHPeer: address, Boot: "2"}
		_, err := Choose(way.Way{}, near, side("beta", there))
		require.Equal(t, fault.Refused, fault.ClassOf(err), address)
		require.ErrorContains(t, err, "beta", address)
		_, err = Choose(way.Way{DataAddress: address}, near, side("beta", there))
		require.NoError(t, err, "asked for: a tunnel")
		there.Boot = "1"
		_, err = Choose(way.Way{}, near, side("beta", there))
		require.NoError(t, err, "another container of this machine")
	}
}

// A stream crosses by the wire that was asked for, or by one that suits it.
func TestAs(t *testing.T) {
	t.Parallel()
	here, there := side("", site.Facts{}), side("b", site.Facts{SSHLocal: "10.0.0.2", SSHPeer: "10.0.0.1"})
	for _, tt := range []struct {
		wire   string
		sealed bool
		want   string
		mode   wire.Mode
	}{
		{"", true, "signed", wire.Signed}, {"", false, "tls", wire.TLS}, {"tls", true, "tls", wire.TLS},
		{"plain", false, "plain", wire.Plain}, {"ssh", false, "ssh", wire.Signed},
	} {
		l := chosen(t, way.Way{Wire: tt.wire}, here, there).As(tt.sealed)
		require.Equal(t, tt.want, l.Wire)
		require.Equal(t, tt.mode, l.crossing.mode(&l))
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	here, there := side("", site.Facts{}), side("b", site.Facts{SSHLocal: "2001:db8::2", SSHPeer: "2001:db8::1"})
	l := chosen(t, way.Way{Ports: way.Ports{Low: 7000, High: 7010}}, here, there)
	for _, tt := range []struct {
		sealed, open bool
		mode         string
	}{{true, true, "signed, tls"}, {true, false, "signed"}, {false, true, "tls"}, {false, false, "auto"}} {
		r := l.Report(tt.sealed, tt.open)
		require.Equal(t, Report{Mode: tt.mode, Why: r.Why, Streams: 1, Dial: "source", Address: "[2001:db8::2]:7000-7010"}, r)
		require.NotEmpty(t, r.Why)
	}
}

// What is not here has no meters: it is not told apart from the network.
func TestLimitOfPlainTools(t *testing.T) {
	t.Parallel()
	source, target := &host{}, &host{}
	moving := func(c crossing, dialer Host) func(string) string {
		m := &meeting{link: Link{dialer: dialer}, from: From{Host: source}, to: To{Host: target}}
		return func(limit string) string { return c.limit(m, limit) }
	}
	push, pull := moving(byTools{}, target), moving(byTools{}, source)
	require.Equal(t, "network or target", push(transfer.LimitTarget))
	require.Equal(t, "source", push(transfer.LimitSource))
	require.Equal(t, "source or network", pull(transfer.LimitSource))
	require.Equal(t, "target", pull(transfer.LimitTarget))
	require.Equal(t, "target", moving(overTCP{}, target)(transfer.LimitTarget))
}
