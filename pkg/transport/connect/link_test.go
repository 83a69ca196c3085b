package connect

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// host is a Host with fixed operations. Without a label it is local.
type host struct {
	label string
	ops   hosts.Host
	rtt   time.Duration
}

func (h *host) Local() bool                                          { return h.label == "" }
func (h *host) Label() string                                        { return h.label }
func (h *host) RTT() time.Duration                                   { return h.rtt }
func (h *host) Do(_ context.Context, f func(hosts.Host) error) error { return f(h.ops) }
func (h *host) Shell() tcp.Stack                                     { return nil }
func side(label string, f hosts.Facts) Side                          { return Side{Host: &host{label: label}, Facts: f} }
func mustChoose(t *testing.T, w transport.Settings, source, target Side) (l Link) {
	t.Helper()
	s, err := NewSearch(w, source, target, nil)
	require.NoError(t, err)
	return s.First()
}

// TestLargeTLSStreamsUseMoreConnections expects more connections for large streams, because
// one AES-GCM key must not encrypt too many bytes.
func TestLargeTLSStreamsUseMoreConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode  tcp.Mode
		bytes uint64
		want  int
	}{
		{tcp.TLS, 0, 2},
		{tcp.TLS, 512 << 30, 2},
		{tcp.TLS, 512<<30 + 1, 3},
		{tcp.TLS, 10 << 40, 40},
		{tcp.TLS, 1 << 60, tcp.MaxStreams},
		{tcp.Signed, 10 << 40, 2},
	} {
		choices := transport.Settings{Wire: string(tt.mode), Streams: 2}
		l := Link{Settings: choices, requested: choices, carrier: tcpCarrier{}}
		require.Equal(t, tt.want, l.connections(tt.bytes), "%s, %d bytes", tt.mode, tt.bytes)
	}
}

// TestSmallStreamsUseFewConnections expects that a small stream does not wait for more connections than
// it fills.
func TestSmallStreamsUseFewConnections(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		wire         string
		asked        int
		bytes        uint64
		want, logins int
	}{
		{"signed", 0, 0, 8, 8},
		{"signed", 0, 1, 1, 1},
		{"signed", 0, 20 << 20, 3, 1},
		{"signed", 0, 1 << 30, 8, 8},
		{"signed", 8, 1, 8, 8},
		{"tls", 0, 1, 1, 1},
	} {
		l := Link{Settings: transport.Settings{Wire: tt.wire, Streams: 8}, requested: transport.Settings{Streams: tt.asked}, carrier: tcpCarrier{}}
		require.Equal(t, tt.want, l.ForSize(tt.bytes).Streams, tt)
		l.Wire, l.carrier = transport.SSH, sshCarrier{}
		require.Equal(t, tt.logins, l.connections(tt.bytes), tt)
	}
}

// TestFarLinksUseMoreConnections expects more connections and smaller frames over a long round trip.
func TestFarLinksUseMoreConnections(t *testing.T) {
	t.Parallel()
	facts := hosts.Facts{TCP: tcp.TCP{TCPReadMax: 6 << 20, TCPWriteMax: 4 << 20}}
	for _, tt := range []struct {
		rtt     time.Duration
		streams int // requested
		bytes   uint64
		want    int
		block   int // 0 = the default
	}{
		{time.Millisecond, 0, 50 << 20, 1, 0},
		{100 * time.Millisecond, 0, 50 << 20, 8, farBlock},
		{100 * time.Millisecond, 0, 5 << 20, 3, farBlock},
		{100 * time.Millisecond, 0, 2 << 20, 1, 0},
		{100 * time.Millisecond, 1, 50 << 20, 1, 0},
		{time.Millisecond, 4, 50 << 20, 4, 0},
	} {
		remote := side("b", facts)
		remote.Host = &host{label: "b", rtt: tt.rtt}
		remote.Facts.SSHLocal, remote.Facts.SSHPeer = "10.0.0.2", "10.0.0.1"
		l := mustChoose(t, transport.Settings{Streams: tt.streams}, side("", facts), remote).ForSize(tt.bytes)
		require.Equal(t, tt.want, l.Streams, tt)
		require.Equal(t, tt.block, l.ForLink(transfer.Options{}).Block, tt)
	}
}

func TestStreamsFor(t *testing.T) {
	t.Parallel()
	usual := hosts.Facts{TCP: tcp.TCP{TCPReadMax: 6 << 20, TCPWriteMax: 4 << 20}}
	tests := []struct {
		name   string
		window int64
		rtt    time.Duration
		a, b   hosts.Facts
		want   int
	}{
		{"a local network needs one", 0, 200 * time.Microsecond, usual, usual, 1},
		{"the smallest limit of both hosts counts", 0, 2 * time.Millisecond, usual, hosts.Facts{TCP: tcp.TCP{TCPReadMax: 1 << 20}}, 5},
		{"high latency, the maximum", 0, 50 * time.Millisecond, usual, usual, maxChosenStreams},
		{"a requested window counts instead", 64 << 20, 50 * time.Millisecond, usual, usual, 2},
		{"an unknown round trip", 0, 0, usual, usual, 1},
		{"unknown limits", 0, time.Second, hosts.Facts{}, hosts.Facts{}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, streamsFor(tt.window, tt.rtt, tt.a, tt.b))
		})
	}
}

// TestAs expects that a stream uses the requested transport, otherwise a suitable one.
func TestAs(t *testing.T) {
	t.Parallel()
	local, remote := side("", hosts.Facts{}), side("b", hosts.Facts{SSHLocal: "10.0.0.2", SSHPeer: "10.0.0.1"})
	for _, tt := range []struct {
		wire   string
		sealed bool
		want   string
		mode   tcp.Mode
	}{
		{"", true, "signed", tcp.Signed}, {"", false, "tls", tcp.TLS}, {"tls", true, "tls", tcp.TLS},
		{"plain", false, "plain", tcp.Plain}, {"ssh", false, "ssh", tcp.Signed},
	} {
		l := mustChoose(t, transport.Settings{Wire: tt.wire}, local, remote).Resolve(tt.sealed)
		require.Equal(t, tt.want, l.Wire)
		require.Equal(t, tt.mode, l.carrier.mode(&l))
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	local, remote := side("", hosts.Facts{}), side("b", hosts.Facts{SSHLocal: "2001:db8::2", SSHPeer: "2001:db8::1"})
	l := mustChoose(t, transport.Settings{Ports: transport.Ports{Low: 7000, High: 7010}}, local, remote)
	for _, tt := range []struct {
		sealed, open bool
		mode         string
	}{{true, true, "signed, tls"}, {true, false, "signed"}, {false, true, "tls"}, {false, false, "auto"}} {
		r := l.Report(tt.sealed, tt.open)
		require.Equal(t, Report{Mode: tt.mode, Why: r.Why, Streams: 1, Dial: "source", Address: "[2001:db8::2]:7000-7010"}, r)
		require.NotEmpty(t, r.Why)
	}
}

// TestBottleneckOfPlainTools expects that the remote host is not distinguished from the network, because
// it has no meters.
func TestBottleneckOfPlainTools(t *testing.T) {
	t.Parallel()
	local, beta := &host{}, &host{label: "beta"}
	moving := func(c carrier, source, target Host) func(string) string {
		m := &session{from: From{Host: source}, to: To{Host: target}}
		return func(limit string) string { return c.limit(m, limit) }
	}
	push, pull := moving(agentlessCarrier{nc: true}, local, beta), moving(agentlessCarrier{nc: true}, beta, local)
	require.Equal(t, "network or target", push(transfer.LimitTarget))
	require.Equal(t, "source", push(transfer.LimitSource))
	require.Equal(t, "source or network", pull(transfer.LimitSource))
	require.Equal(t, "target", pull(transfer.LimitTarget))
	require.Equal(t, "target", moving(tcpCarrier{}, local, beta)(transfer.LimitTarget))
	require.Equal(t, "ssh or network or target", moving(agentlessCarrier{}, local, beta)(transfer.LimitTarget))
}

// TestOnlyEncryptedDataIsSentWithoutTLS expects that auto leaves out encryption only for a raw stream of a
// dataset that the listing showed as encrypted.
func TestOnlyEncryptedDataIsSentWithoutTLS(t *testing.T) {
	t.Parallel()
	_, _, l := pair(t, transport.Settings{})
	for _, raw := range []bool{false, true} {
		for _, encrypted := range []bool{false, true} {
			from := From{What: hosts.SendStream{Spec: zfs.SendSpec{Flags: zfs.StreamFlags{Raw: raw}}}, Encrypted: encrypted}
			want := "tls"
			if raw && encrypted {
				want = "signed"
			}
			require.Equal(t, want, l.Resolve(from.secret()).Wire, "raw %t, encrypted %t", raw, encrypted)
		}
	}
	require.False(t, From{What: hosts.SendFiles{}, Encrypted: true}.secret())
}
