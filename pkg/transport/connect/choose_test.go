package connect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	reached := func(local, peer string) hosts.Facts { return hosts.Facts{SSHLocal: local, SSHPeer: peer} }
	tests := []struct {
		name                string
		way                 transport.Settings
		source, target      string
		sf, tf              hosts.Facts
		dial, address, peer string
		wire                string
		class               fault.Class
	}{
		{name: "push: the target listens where ssh reached it", source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "source", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "pull: the source listens, the only known path", source: "a", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "third party: the target listens, any peer", source: "a", target: "b",
			sf: reached("10.0.0.2", "10.0.0.1"), tf: reached("10.0.0.3", "10.0.0.1"), dial: "source", address: "10.0.0.3", wire: "auto"},
		{name: "push reversed: this host listens", way: transport.Settings{Dial: "target"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "auto"},
		{name: "requested address, any peer", way: transport.Settings{DataAddress: "192.168.7.2"}, source: "", target: "b",
			tf: reached("10.0.0.2", "10.0.0.1"), dial: "source", address: "192.168.7.2", wire: "auto"},
		{name: "through ssh: loopback", way: transport.Settings{Wire: "ssh"}, source: "", target: "b", dial: "source", address: "127.0.0.1", wire: "ssh"},
		{name: "through ssh between two other hosts", way: transport.Settings{Wire: "ssh"}, source: "a", target: "b", class: fault.Usage},
		{name: "plain tools, push: this host listens", way: transport.Settings{Wire: "nc"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools, pull: this host listens", way: transport.Settings{Wire: "nc"}, source: "b", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			dial: "source", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools between two other hosts", way: transport.Settings{Wire: "nc"}, source: "a", target: "b", class: fault.Usage},
		{name: "no address known: through ssh", source: "", target: "b", dial: "source", address: "127.0.0.1", wire: "ssh"},
		{name: "no address known of others", source: "a", target: "b", class: fault.Refused},
		{name: "no address known, requested direction", way: transport.Settings{Dial: "source"}, source: "", target: "b", class: fault.Refused},
		{name: "a jump host of ssh: data may come from elsewhere", source: "", target: "b", tf: reached("10.0.0.2", "10.9.9.9"),
			dial: "source", address: "10.0.0.2", wire: "auto"},
		{name: "a jump host of ssh does not listen for this one", way: transport.Settings{Dial: "target"}, source: "", target: "b", tf: reached("10.0.0.2", "10.9.9.9"), class: fault.Refused},
		{name: "invalid address", way: transport.Settings{DataAddress: "beta"}, source: "", target: "b", class: fault.Usage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			source, target := side(tt.source, tt.sf), side(tt.target, tt.tf)
			for _, s := range []*Side{&source, &target} {
				if s.Local() {
					s.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
				}
			}
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
		both := side("", hosts.Facts{})
		l := mustChoose(t, transport.Settings{Wire: "tls", Ports: transport.Ports{Low: 1, High: 2}}, both, both)
		require.Equal(t, Report{Mode: Local, Why: "source and target are on the same host"}, l.Report(true, true))
	})
}

// TestLoopbackAddressIsRefused expects that loopback is refused as the address of a
// host, because every dialer would connect to itself.
func TestLoopbackAddressIsRefused(t *testing.T) {
	t.Parallel()
	local := side("", hosts.Facts{Boot: "1"})
	for _, address := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"} {
		remote := hosts.Facts{SSHLocal: address, SSHPeer: address, Boot: "2"}
		for _, dial := range []string{"source", "target"} {
			_, err := Choose(transport.Settings{Dial: dial}, local, side("beta", remote))
			require.Equal(t, fault.Refused, fault.ClassOf(err), address)
			require.ErrorContains(t, err, address, dial)
		}
		l, err := Choose(transport.Settings{}, local, side("beta", remote))
		require.NoError(t, err, address)
		require.Equal(t, "ssh", l.Wire, "which leads there")
		_, err = Choose(transport.Settings{DataAddress: address}, local, side("beta", remote))
		require.NoError(t, err, "requested: a tunnel")
		remote.Boot = "1"
		_, err = Choose(transport.Settings{}, local, side("beta", remote))
		require.NoError(t, err, "another container of this machine")
	}
}

// fakeNetwork has two hosts. Some directions between them are blocked.
type fakeNetwork struct {
	near, far fakeHost
	log       []string
}

// fakeHost is a host that records its calls.
type fakeHost struct {
	host
	hosts.Host
	says   error   // error of a direct connection from this host
	relays error   // error of a connection through the remote shell
	slow   int     // number of direct connections that time out first
	busy   []error // errors of the first offers
	offers []tcp.Offer
}

var errShut = fmt.Errorf("%w to 10.0.0.2:4 (tcp): timeout", tcp.ErrDial)

func (d *fakeHost) Do(_ context.Context, f func(hosts.Host) error) error { return f(d) }

func (d *fakeHost) Shell() tcp.Stack { return tcp.Kernel{} }

func (d *fakeHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, d.Host, r, hoststest.With(hosts.OpOffer, d.Offer), hoststest.Watched(hosts.OpTransfer, d.Transfer))
}

func (d *fakeHost) Offer(_ context.Context, o tcp.Offer) (tcp.Ticket, error) {
	if len(d.busy) > 0 {
		err := d.busy[0]
		d.busy = d.busy[1:]
		return tcp.Ticket{}, err
	}
	d.offers = append(d.offers, o)
	return tcp.Ticket{}, nil
}

func (d *fakeHost) RTT() time.Duration { return 0 }

func (d *fakeHost) Transfer(ctx context.Context, task hosts.Task, _ func(transfer.Progress)) (hosts.Result, error) {
	_, sends := task.From.(hosts.Nothing)
	_, receives := task.To.(hosts.Nothing)
	dial, dials := task.To.(hosts.Dial)
	if from, ok := task.From.(hosts.Dial); ok {
		dial, dials = from, true
	}
	switch {
	case !sends && !receives:
		return hosts.Result{}, errors.New("it carries something")
	case dials && dial.Through == nil:
		if d.slow > 0 {
			d.slow--
			time.Sleep(probeTimeout)
			return hosts.Result{}, errShut
		}
		return hosts.Result{}, d.says
	case dials:
		return hosts.Result{}, d.relays
	}
	select {
	case <-ctx.Done():
		return hosts.Result{}, ctx.Err()
	case <-time.After(time.Millisecond):
		return hosts.Result{}, nil
	}
}

func newFakeNetwork(local, remote string) (d *fakeNetwork, source, target Side) {
	d = &fakeNetwork{near: fakeHost{host: host{label: local}}, far: fakeHost{host: host{label: remote}}}
	facts := hosts.Facts{SSHLocal: "10.0.0.2", SSHPeer: "10.0.0.1"}
	return d, Side{Host: &d.near, Facts: facts}, Side{Host: &d.far, Facts: facts}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	closedPaths := errShut
	inUse := fault.Failf("widen {{port-range}}", "cannot listen on 10.0.0.2, ports 9000-9000: all are in use")
	kernel := fmt.Errorf("%w to 10.0.0.2:4 (tcp): %w", tcp.ErrDial, fault.Refusef("", "no bbr here"))
	lost := fmt.Errorf("beta: %w", hosts.ErrLost)
	for _, tt := range []struct {
		name      string
		near, far string
		says      [2]error // error of a direct connection from near, from far
		way       transport.Settings
		err       error
		wire      string
		dial      string
		closed    bool
		tries     int // number of connections that fail
		untried   string
		relays    error        // error of a connection through ssh
		busy      []error      // errors of far's first offers
		addresses []netip.Addr // addresses of near
		told      string       // log lines
	}{
		{name: "first path", far: "b", wire: "auto", dial: "source"},
		{name: "the other direction", far: "b", says: [2]error{closedPaths}, wire: "auto", dial: "target", tries: 1},
		{name: "between other hosts", near: "a", far: "b", says: [2]error{closedPaths}, wire: "auto", dial: "target", tries: 1},
		{name: "key without permission to connect", far: "b", says: [2]error{closedPaths, fault.Refusef("", "%w: no", hosts.ErrForbidden)}, wire: "ssh", dial: "source", tries: 2},
		{name: "only ssh", far: "b", says: [2]error{closedPaths, closedPaths}, wire: "ssh", dial: "source", tries: 2},
		{name: "ssh without some options", far: "b", says: [2]error{closedPaths, closedPaths}, way: transport.Settings{Ports: transport.Ports{Low: 9, High: 9}, Socket: transport.Socket{Window: 1 << 20}},
			wire: "ssh", dial: "source", tries: 2, told: "through ssh without {{port-range}} and {{window}}, slower"},
		{name: "no path", far: "b", says: [2]error{closedPaths, closedPaths}, relays: fault.Refusef("", "it always starts an agent"), wire: "auto", dial: "source", closed: true, tries: 3},
		{name: "unreachable address in between", far: "b", says: [2]error{closedPaths}, addresses: []netip.Addr{netip.MustParseAddr("10.9.9.9")},
			wire: "ssh", dial: "source", tries: 2, told: "NAT): the address of this host from there is unknown; trying through ssh, slower: ssh"},
		{name: "no path between other hosts", near: "a", far: "b", says: [2]error{closedPaths, closedPaths}, wire: "auto", dial: "source", closed: true, tries: 2},
		{name: "requested direction", far: "b", says: [2]error{closedPaths}, way: transport.Settings{Dial: "source"}, wire: "auto", dial: "source", closed: true, tries: 1,
			untried: "{{dial target}} | {{wire ssh}} without {{dial}}"},
		{name: "requested address", far: "b", says: [2]error{closedPaths}, way: transport.Settings{DataAddress: "10.0.0.7"}, wire: "auto", dial: "source", closed: true, tries: 1,
			untried: "the same command without {{data-address}}"},
		{name: "requested wire", far: "b", says: [2]error{closedPaths, closedPaths}, way: transport.Settings{Wire: "tls"}, wire: "tls", dial: "source", closed: true, tries: 2, untried: "{{wire ssh}}"},
		{name: "requested wire, other direction", far: "b", says: [2]error{closedPaths}, way: transport.Settings{Wire: "tls"}, wire: "tls", dial: "target", tries: 1},
		{name: "requested ssh is not tested", far: "b", says: [2]error{closedPaths, closedPaths}, way: transport.Settings{Wire: "ssh"}, wire: "ssh", dial: "source"},
		{name: "lost host", far: "b", says: [2]error{lost}, err: hosts.ErrLost},
		{name: "ports in use", far: "b", busy: []error{inUse, inUse}, err: inUse},
		{name: "ports in use once", far: "b", busy: []error{inUse}, wire: "auto", dial: "source"},
		{name: "option that the kernel lacks", far: "b", says: [2]error{kernel}, err: kernel},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, source, target := newFakeNetwork(tt.near, tt.far)
			d.near.says, d.far.says, d.near.relays, d.far.busy = tt.says[0], tt.says[1], tt.relays, tt.busy
			source.Addresses = tt.addresses
			if tt.addresses != nil {
				target.Facts.SSHPeer = "10.0.0.9"
			}
			l, err := Choose(tt.way, source, target)
			require.NoError(t, err)
			require.Zero(t, l.Search(), "nothing was tried")
			l, err = l.Open(t.Context(), func(text string) { d.log = append(d.log, text) })
			require.ErrorIs(t, err, tt.err)
			if err != nil {
				require.Empty(t, l.rejected)
				return
			}
			s := l.Search()
			require.Equal(t, []string{tt.wire, tt.dial}, []string{l.Wire, l.dial})
			require.Equal(t, tt.closed, s.NoPath)
			require.Len(t, s.Rejected, tt.tries, "%v", s.Rejected)
			require.Equal(t, tt.untried, strings.Join(s.Untried, " | "))
			told := strings.Join(d.log, "\n")
			require.Contains(t, told, tt.told)
			for _, why := range s.Rejected[:max(0, len(s.Rejected)-1)] {
				require.Contains(t, told, why)
			}
			if !tt.closed && tt.tries > 0 {
				require.Contains(t, told, s.Rejected[tt.tries-1], "each change of the path is reported")
			}
			for _, o := range append(d.near.offers, d.far.offers...) {
				require.Equal(t, 1, o.Streams)
				if o.Address != "127.0.0.1" { // ssh has to log in
					require.Equal(t, probeTimeout, o.Deadline)
				}
			}
			require.Equal(t, linkDeadline, l.deadline, "the deadline for data is unchanged")
		})
	}
}

// TestOpenRetriesSlowPath expects that a path that timed out is tried again before ssh, because
// a timeout may be temporary. A refused path is not tried again.
func TestOpenRetriesSlowPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		slow  int
		says  error
		wire  string
		shut  int
		tries int // number of offers made
	}{
		{"answers on retry", 1, nil, "auto", 0, 3},
		{"does not answer", 2, errShut, "ssh", 2, 4},
		{"refused", 0, errShut, "ssh", 2, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, source, target := newFakeNetwork("", "b")
			d.near.slow, d.near.says, d.far.says = tt.slow, tt.says, errShut
			l, err := Choose(transport.Settings{}, source, target)
			require.NoError(t, err)
			l, err = l.Open(t.Context(), func(text string) { d.log = append(d.log, text) })
			require.NoError(t, err)
			require.Equal(t, tt.wire, l.Wire, tt.name)
			require.Len(t, l.Search().Rejected, tt.shut, tt.name)
			require.Len(t, append(d.near.offers, d.far.offers...), tt.tries, "%s: %v", tt.name, d.log)
		})
	}
}

// TestOpenContinuesSearch expects that after a lost connection, the search continues at the same path.
func TestOpenContinuesSearch(t *testing.T) {
	t.Parallel()
	d, source, target := newFakeNetwork("", "b")
	d.near.says, d.far.says = errShut, fmt.Errorf("b: %w", hosts.ErrLost)
	l, err := Choose(transport.Settings{}, source, target)
	require.NoError(t, err)
	l, err = l.Open(t.Context(), func(string) {})
	require.ErrorIs(t, err, hosts.ErrLost)
	d.far.says = nil
	l, err = l.Open(t.Context(), func(string) {})
	require.NoError(t, err)
	require.Equal(t, "target", l.dial)
	require.Len(t, d.far.offers, 1, "the first path was tried once")
	require.Len(t, l.Search().Rejected, 1)
}

// TestSearchOfRequestedDirection expects Listen to name the listening host of the requested
// path.
func TestSearchOfRequestedDirection(t *testing.T) {
	t.Parallel()
	_, source, target := newFakeNetwork("a", "b")
	l, err := Choose(transport.Settings{Dial: "target"}, source, target)
	require.NoError(t, err)
	l, err = l.Open(t.Context(), func(string) {})
	require.NoError(t, err)
	require.Equal(t, "a", l.Search().Listen)
}

// freePort returns a port outside the kernel's ephemeral range.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		if port := 20000 + rand.IntN(10000); !portInUse(t, port) {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// portInUse reports whether a loopback port has a listener or a connection.
func portInUse(t *testing.T, port int) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/net/tcp")
	require.NoError(t, err)
	at := fmt.Sprintf("0100007F:%04X", port)
	for line := range strings.Lines(string(text)) {
		// local and remote address, and the state: 06 (TIME_WAIT) is left by a closed
		// connection
		if f := strings.Fields(line); len(f) > 3 && (f[1] == at || f[2] == at) && f[3] != "06" {
			return true
		}
	}
	return false
}

// TestProbeLeavesNothing expects that a probe between real hosts leaves no connection and no
// listener, and uses up no slot that data needs.
func TestProbeLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, w := range []string{"", "signed", "tls", "plain"} {
		port := freePort(t)
		local, remote, l := pair(t, transport.Settings{Wire: w, Streams: 2, Ports: transport.Ports{Low: port, High: port}})
		choices := l.Resolve(false)
		other := choices.offer(0)
		other.PortLow, other.PortHigh = 0, 0
		ticket, err := hosts.Call(t.Context(), remote.site, hosts.OpOffer, other)
		require.NoError(t, err)
		l.probeDeadline = testenv.Timeout()
		l, err = l.Open(t.Context(), func(text string) { t.Error(text) })
		require.NoError(t, err)
		require.False(t, l.Search().NoPath)
		require.True(t, l.used.Load())
		require.Zero(t, l.Search().Rejected)
		require.Eventually(t, func() bool { return !portInUse(t, port) }, testenv.Timeout(), 10*time.Millisecond)
		done := make(chan error, 1)
		go func() {
			_, err := hosts.Call(t.Context(), remote.site, hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: ticket.Session}, To: hosts.Nothing{}})
			done <- err
		}()
		_, err = hosts.Call(t.Context(), local.site, hosts.OpTransfer, hosts.Task{From: hosts.Nothing{}, To: hosts.Dial{Ticket: ticket}})
		require.NoError(t, err, "an existing offer")
		require.NoError(t, <-done)
		_, err = Run(t.Context(), l, From{Host: local, What: hosts.Noise{Time: 10 * time.Millisecond}}, To{remote, hosts.Nowhere{}}, Count{}, nil)
		require.NoError(t, err)
	}
}
