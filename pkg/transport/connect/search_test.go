package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// fakeNetwork has two hosts. Some directions between them are blocked.
type fakeNetwork struct {
	near, far fakeHost
	mu        sync.Mutex
	log       []string
	sessions  []chan error // the result of each dial, by session
}

func (d *fakeNetwork) note(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, text)
}

// dialed returns where the result of the dial of a session goes.
func (d *fakeNetwork) dialed(session string) chan error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, _ := strconv.Atoi(session) // its own
	return d.sessions[i]
}

// fakeHost is a host that records its calls.
type fakeHost struct {
	host
	hosts.Host
	network *fakeNetwork
	says    error        // error of a direct connection from this host
	relays  error        // error of a connection through the remote shell
	busy    []error      // errors of the first offers
	deaf    bool         // the listener does not notice that somebody connected
	stores  atomic.Int64 // number of transfers that stored something
	offers  []tcp.Offer
}

var errShut = hosts.NotConnected(fmt.Errorf("%w to 10.0.0.2:4 (tcp): timeout", tcp.ErrDial))

func (d *fakeHost) Do(_ context.Context, f func(hosts.Host) error) error { return f(d) }

func (d *fakeHost) Shell() tcp.Stack { return tcp.Kernel{} }

func (d *fakeHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, d.Host, r, hoststest.With(hosts.OpOffer, d.Offer), hoststest.Watched(hosts.OpTransfer, d.Transfer))
}

func (d *fakeHost) Offer(_ context.Context, o tcp.Offer) (t tcp.Ticket, err error) {
	d.network.mu.Lock()
	defer d.network.mu.Unlock()
	if len(d.busy) > 0 {
		err := d.busy[0]
		d.busy = d.busy[1:]
		return t, err
	}
	d.offers = append(d.offers, o)
	d.network.sessions = append(d.network.sessions, make(chan error, 1))
	t.Session = strconv.Itoa(len(d.network.sessions) - 1)
	return t, nil
}

func (d *fakeHost) RTT() time.Duration { return 0 }

func (d *fakeHost) Transfer(ctx context.Context, task hosts.Task, _ func(transfer.Progress)) (hosts.Result, error) {
	var err error
	switch end := peerOf(task).(type) {
	case hosts.Dial:
		if err = d.says; end.Through != nil {
			err = d.relays
		}
		d.network.dialed(end.Ticket.Session) <- err
	case hosts.Accept:
		select {
		case failed := <-d.network.dialed(end.Session):
			if failed != nil || d.deaf {
				err = hosts.NotConnected(tcp.ErrNoPeer)
			}
		case <-ctx.Done():
			err = hosts.NotConnected(ctx.Err())
		}
	}
	if err == nil && task.To == (hosts.Nowhere{}) {
		d.stores.Add(1)
	}
	return hosts.Result{}, err
}

// peerOf returns the end of a task that is the connection to the other host.
func peerOf(t hosts.Task) any {
	switch t.From.(type) {
	case hosts.Dial, hosts.Accept:
		return t.From
	}
	return t.To
}

func newFakeNetwork(local, remote string) (d *fakeNetwork, source, target Side) {
	d = &fakeNetwork{near: fakeHost{host: host{label: local}}, far: fakeHost{host: host{label: remote}}}
	d.near.network, d.far.network = d, d
	facts := hosts.Facts{SSHLocal: "10.0.0.2", SSHPeer: "10.0.0.1"}
	return d, Side{Host: &d.near, Facts: facts}, Side{Host: &d.far, Facts: facts}
}

// move moves noise over the path of a search.
func (s *Search) move(t *testing.T) error {
	_, err := s.Run(t.Context(), From{Host: s.source.Host, What: hosts.Noise{}}, To{s.target.Host, hosts.Nowhere{}}, Count{}, nil)
	return err
}

// TestSearch expects a connection without data, and a stream, to find the same path.
func TestSearch(t *testing.T) {
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
		{name: "key without permission to connect", far: "b", says: [2]error{closedPaths, hosts.NotConnected(fault.Refusef("", "%w: no", hosts.ErrForbidden))}, wire: "ssh", dial: "source", tries: 2},
		{name: "only ssh", far: "b", says: [2]error{closedPaths, closedPaths}, wire: "ssh", dial: "source", tries: 2},
		{name: "ssh without some options", far: "b", says: [2]error{closedPaths, closedPaths}, way: transport.Settings{Ports: transport.Ports{Low: 9, High: 9}, Socket: transport.Socket{Window: 1 << 20}},
			wire: "ssh", dial: "source", tries: 2, told: "through ssh without {{port-range}} and {{window}}, slower"},
		{name: "no path", far: "b", says: [2]error{closedPaths, closedPaths}, relays: hosts.NotConnected(fault.Refusef("", "it always starts an agent")), wire: "auto", dial: "source", closed: true, tries: 3},
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
		{name: "ports in use", far: "b", busy: []error{inUse}, err: inUse},
		{name: "key without permission to listen", far: "b", busy: []error{fmt.Errorf("b: %w: no", hosts.ErrForbidden)}, wire: "auto", dial: "target", tries: 1},
		{name: "a stream that is not permitted", far: "b", says: [2]error{fmt.Errorf("b: %w: no", hosts.ErrForbidden)}, err: hosts.ErrForbidden},
		{name: "option that the kernel lacks", far: "b", says: [2]error{kernel}, err: kernel},
	} {
		for _, probes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, probe %v", tt.name, probes), func(t *testing.T) {
				t.Parallel()
				d, source, target := newFakeNetwork(tt.near, tt.far)
				d.near.says, d.far.says, d.near.relays, d.far.busy = tt.says[0], tt.says[1], tt.relays, tt.busy
				source.Addresses = tt.addresses
				if tt.addresses != nil {
					target.Facts.SSHPeer = "10.0.0.9"
				}
				s, err := NewSearch(tt.way, source, target, d.note)
				require.NoError(t, err)
				require.Zero(t, s.Result(), "nothing was tried")
				if probes {
					err = s.Probe(t.Context())
				} else if err = s.move(t); tt.closed {
					require.ErrorContains(t, err, "no data passes between the two hosts: ")
					err = nil
				}
				require.ErrorIs(t, err, tt.err)
				r := s.Result()
				if err != nil {
					require.Empty(t, r.Rejected)
					return
				}
				l := s.Link()
				require.Equal(t, []string{tt.wire, tt.dial}, []string{l.Wire, l.dial})
				require.Equal(t, tt.closed, r.NoPath)
				require.Len(t, r.Rejected, tt.tries, "%v", r.Rejected)
				require.Equal(t, tt.untried, strings.Join(r.Untried, " | "))
				told := strings.Join(d.log, "\n")
				require.Contains(t, told, tt.told)
				for _, why := range r.Rejected[:max(0, len(r.Rejected)-1)] {
					require.Contains(t, told, why)
				}
				if !tt.closed && tt.tries > 0 {
					require.Contains(t, told, r.Rejected[tt.tries-1], "each change of the path is reported")
				}
				for _, o := range append(d.near.offers, d.far.offers...) {
					require.Contains(t, []time.Duration{probeDeadline, searchDeadline, linkDeadline}, o.Deadline)
				}
				require.Equal(t, linkDeadline, l.deadline, "the deadline for data is unchanged")
			})
		}
	}
}

// TestGivenPathIsNotSearched expects no connection without data within a host, through a requested ssh, with nc, and to a
// host without zxfer.
func TestGivenPathIsNotSearched(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		way     transport.Settings
		noAgent string
		wire    string
	}{
		{transport.Settings{Wire: "ssh"}, "", "ssh"},
		{transport.Settings{}, "its system is FreeBSD", "ssh"},
		{transport.Settings{Wire: "nc", TrustedLink: true}, "its system is FreeBSD", "nc"},
	} {
		d, source, target := newFakeNetwork("", "b")
		d.near.says, d.far.says, d.near.relays = errShut, errShut, errShut
		target.Facts.NoAgent = tt.noAgent
		s, err := NewSearch(tt.way, source, target, d.note)
		require.NoError(t, err)
		require.True(t, s.Certain())
		require.NoError(t, s.Probe(t.Context()))
		require.Zero(t, s.Result())
		require.Equal(t, tt.wire, s.Link().Wire)
		require.Empty(t, d.log)
	}
}

// TestSearchContinues expects that after a lost connection, the search continues at the same path.
func TestSearchContinues(t *testing.T) {
	t.Parallel()
	d, source, target := newFakeNetwork("", "b")
	d.near.says, d.far.says = errShut, fmt.Errorf("b: %w", hosts.ErrLost)
	s, err := NewSearch(transport.Settings{}, source, target, d.note)
	require.NoError(t, err)
	require.ErrorIs(t, s.Probe(t.Context()), hosts.ErrLost)
	d.far.says = nil
	require.NoError(t, s.Probe(t.Context()))
	require.Equal(t, "target", s.Link().dial)
	require.Len(t, d.far.offers, 1, "the first path was tried once")
	require.Len(t, s.Result().Rejected, 1)
}

// TestFoundPathStays expects that once data has passed a path, a failed connection counts as lost: a retry may succeed.
// Before, it usually means a firewall.
func TestFoundPathStays(t *testing.T) {
	t.Parallel()
	d, source, target := newFakeNetwork("", "b")
	s, err := NewSearch(transport.Settings{}, source, target, d.note)
	require.NoError(t, err)
	require.NoError(t, s.move(t))
	for _, fails := range []error{errShut, hosts.NotConnected(tcp.ErrNoPeer)} {
		d.near.says = fails
		require.ErrorIs(t, s.move(t), tcp.ErrConnectionLost)
	}
	require.Empty(t, d.log)
	require.Equal(t, "source", s.Link().dial)
}

// TestTransfersSearchTogether expects that several transfers that begin at the same time reject a path once.
func TestTransfersSearchTogether(t *testing.T) {
	t.Parallel()
	d, source, target := newFakeNetwork("", "b")
	d.near.says = errShut
	s, err := NewSearch(transport.Settings{}, source, target, d.note)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { require.NoError(t, s.move(t)) })
	}
	all.Wait()
	require.Len(t, d.log, 1)
	require.Len(t, s.Result().Rejected, 1)
}

// TestStartedTransferIsNotRepeated expects that a transfer of which one end may have started its work does not move over the
// next path by itself: the caller knows what is left, such as of standard input.
func TestStartedTransferIsNotRepeated(t *testing.T) {
	t.Parallel()
	d, source, target := newFakeNetwork("a", "b")
	d.far.deaf = true // the last message of the handshake was lost
	s, err := NewSearch(transport.Settings{Wire: "signed"}, source, target, d.note)
	require.NoError(t, err)
	require.ErrorIs(t, s.move(t), tcp.ErrConnectionLost)
	require.Len(t, s.Result().Rejected, 1)
	require.NoError(t, s.move(t))
	require.Equal(t, "target", s.Link().dial)
	require.EqualValues(t, 1, d.far.stores.Load())
}

// TestOtherErrorsSayNothingAboutThePath expects that a path on which something else failed is still searched.
func TestOtherErrorsSayNothingAboutThePath(t *testing.T) {
	t.Parallel()
	for _, first := range []error{fmt.Errorf("b: %w", hosts.ErrLost), errors.New("all ports in use"), fmt.Errorf("b: %w", hosts.ErrForbidden)} {
		d, source, target := newFakeNetwork("", "b")
		d.near.says = first
		s, err := NewSearch(transport.Settings{}, source, target, d.note)
		require.NoError(t, err)
		require.ErrorIs(t, s.move(t), first)
		d.near.says = errShut // the firewall was always there
		require.NoError(t, s.move(t))
		require.Equal(t, "target", s.Link().dial)
	}
}

// TestDataDecides expects a path that data passes to be the path, although another transfer rejected it meanwhile.
func TestDataDecides(t *testing.T) {
	t.Parallel()
	d, source, target := newFakeNetwork("", "b")
	s, err := NewSearch(transport.Settings{}, source, target, d.note)
	require.NoError(t, err)
	first := s.Link()
	require.NoError(t, s.reject(first, errShut))
	s.accept(first)
	require.Equal(t, "source", s.Link().dial)
	require.NoError(t, s.reject(s.Link(), errShut), "too late")
	require.Equal(t, "source", s.Link().dial)
}

// TestProbeRepeatsAfterTimeout expects that a timeout, which may be temporary, does not refuse a command, and that a
// refused connection does.
func TestProbeRepeatsAfterTimeout(t *testing.T) {
	t.Parallel()
	for _, waits := range []time.Duration{0, probeDeadline} {
		synctest.Test(t, func(t *testing.T) {
			d, source, target := newFakeNetwork("a", "b")
			d.near.says, d.far.says = errShut, errShut
			s, err := NewSearch(transport.Settings{}, source, target, func(string) { time.Sleep(waits); d.near.says = nil })
			require.NoError(t, err)
			require.NoError(t, s.Probe(t.Context()))
			require.Equal(t, waits == 0, s.Result().NoPath)
		})
	}
}

// dropsProof is a stack whose connections lose what the dialer sends after its first message.
type dropsProof struct{ tcp.Kernel }

type proofless struct {
	tcp.Socket
	writes atomic.Int64
}

func (d dropsProof) Dial(ctx context.Context, address string, o transport.Socket) (tcp.Socket, error) {
	c, err := d.Kernel.Dial(ctx, address, o)
	if err != nil {
		return nil, err
	}
	return &proofless{Socket: c}, nil
}

func (p *proofless) Write(b []byte) (int, error) {
	if p.writes.Add(1) > 1 {
		return len(b), nil
	}
	return p.Socket.Write(b)
}

// TestStandardInputIsNotCut loses the last message of a handshake: the dialing end reads standard input, although
// nothing can arrive. It expects no copy that lacks its start.
func TestStandardInputIsNotCut(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	data := bytes.Repeat([]byte("important"), 200_000)
	near, far := hosts.NewLocal("test", func(string) {}), hosts.NewLocal("test", func(string) {})
	defer near.Close()
	defer far.Close()
	near.SetStack(dropsProof{})
	near.SetStandard(device.Streams{In: bytes.NewReader(data)})
	facts := hosts.Facts{Boot: "1", SSHLocal: "127.0.0.1", SSHPeer: "127.0.0.1", TCP: tcp.ReadTCP(os.DirFS("/"))}
	local, remote := &host{ops: near}, &relayed{host: host{label: "beta", ops: far}}
	s, err := NewSearch(transport.Settings{Wire: "signed"}, Side{Host: local, Facts: facts}, Side{Host: remote, Facts: facts}, func(string) {})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "image")
	to, err := device.Inspect(t.Context(), path)
	require.NoError(t, err)
	task := device.Task{Source: device.Facts{Path: device.Standard, Kind: device.KindStream}, Target: to}
	require.NoError(t, task.SetDefaults())
	_, err = s.Run(t.Context(), From{Host: local, What: hosts.ReadDevice{Task: task}}, To{remote, hosts.WriteDevice{Task: task}}, Count{}, nil)
	require.ErrorIs(t, err, tcp.ErrConnectionLost)
}

// TestCertain expects that only a search that may end without a path is to be made before the first change.
func TestCertain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		near    string
		way     transport.Settings
		certain bool
	}{
		{"", transport.Settings{}, true},
		{"", transport.Settings{Wire: "ssh"}, true},
		{"", transport.Settings{Wire: "tls"}, false},
		{"", transport.Settings{Dial: "target"}, false},
		{"a", transport.Settings{}, false},
		{"", transport.Settings{Streams: 4}, false}, // a restricted key has one connection
	} {
		_, source, target := newFakeNetwork(tt.near, "b")
		if tt.way.Streams > 0 {
			target.Facts.Grants = []string{"--allow receive=tank"}
		}
		s, err := NewSearch(tt.way, source, target, nil)
		require.NoError(t, err)
		require.Equal(t, tt.certain, s.Certain(), "%+v", tt)
	}
}

// TestSearchOfRequestedDirection expects Listen to name the listening host of the requested
// path.
func TestSearchOfRequestedDirection(t *testing.T) {
	t.Parallel()
	d, source, target := newFakeNetwork("a", "b")
	s, err := NewSearch(transport.Settings{Dial: "target"}, source, target, d.note)
	require.NoError(t, err)
	require.NoError(t, s.Probe(t.Context()))
	require.Equal(t, "a", s.Result().Listen)
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
		local, remote, search := searchPair(t, transport.Settings{Wire: w, Streams: 2, Ports: transport.Ports{Low: port, High: port}})
		choices := search.First().Resolve(false)
		other := choices.offer(0)
		other.PortLow, other.PortHigh = 0, 0
		ticket, err := hosts.Call(t.Context(), remote.ops, hosts.OpOffer, other)
		require.NoError(t, err)
		search.probeWait = testenv.Timeout()
		require.NoError(t, search.Probe(t.Context()))
		require.True(t, search.found)
		require.Zero(t, search.Result().Rejected)
		require.Eventually(t, func() bool { return !portInUse(t, port) }, testenv.Timeout(), 10*time.Millisecond)
		done := make(chan error, 1)
		go func() {
			_, err := hosts.Call(t.Context(), remote.ops, hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: ticket.Session}, To: hosts.Nothing{}})
			done <- err
		}()
		_, err = hosts.Call(t.Context(), local.ops, hosts.OpTransfer, hosts.Task{From: hosts.Nothing{}, To: hosts.Dial{Ticket: ticket}})
		require.NoError(t, err, "an existing offer")
		require.NoError(t, <-done)
		_, err = search.Run(t.Context(), From{Host: local, What: hosts.Noise{Time: 10 * time.Millisecond}}, To{remote, hosts.Nowhere{}}, Count{}, nil)
		require.NoError(t, err)
	}
}
