package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	"zxfer/pkg/probe"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// relayed is a remote host that counts the connections through its remote shell.
type relayed struct {
	host
	tcp.Kernel
	through atomic.Int64
}

func (r *relayed) Shell() tcp.Stack { return r }

func (r *relayed) Dial(ctx context.Context, address string, s transport.Socket) (tcp.Socket, error) {
	r.through.Add(1)
	return r.Kernel.Dial(ctx, address, s)
}

// pair returns two hosts, both on this machine.
func pair(t *testing.T, w transport.Settings) (local *host, remote *relayed, l Link) {
	local, remote, s := searchPair(t, w)
	return local, remote, s.First()
}

func searchPair(t *testing.T, w transport.Settings) (local *host, remote *relayed, s *Search) {
	t.Helper()
	open := func() hosts.Host {
		st := hosts.NewLocal("test", func(string) {})
		t.Cleanup(func() { _ = st.Close() })
		return st
	}
	local, remote = &host{ops: open()}, &relayed{host: host{label: "beta", ops: open()}}
	facts := hosts.Facts{Boot: "1", SSHLocal: "127.0.0.1", SSHPeer: "127.0.0.1", TCP: tcp.ReadTCP(os.DirFS("/"))}
	s, err := NewSearch(w, Side{Host: local, Facts: facts}, Side{Host: remote, Facts: facts}, func(text string) { t.Error(text) })
	require.NoError(t, err)
	return local, remote, s
}

// TestRun expects that every transport connects every kind of host, in both directions.
func TestRun(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, w := range []string{"", "signed", "tls", "plain", "ssh"} {
		for _, dial := range []string{"", "target"} {
			if w == "ssh" && dial != "" {
				continue
			}
			t.Run(w+" "+dial, func(t *testing.T) {
				local, remote, l := pair(t, transport.Settings{Wire: w, Dial: dial, Streams: 2})
				wire := l.Resolve(false).Wire

				// Send noise against the direction that the link was chosen for. On a slow
				// machine, a short transfer may arrive before its first byte is read.
				var res Result
				for d := 100 * time.Millisecond; res.Received.NoiseRate == nil || res.Received.NoiseRate.Bytes == 0; d *= 4 {
					require.Less(t, d, testenv.Timeout(), "no rate is left")
					var err error
					res, err = Run(t.Context(), l, From{Host: remote, What: hosts.Noise{Time: d}}, To{local, hosts.Nowhere{}}, Count{}, nil)
					require.NoError(t, err)
				}
				require.Equal(t, wire, res.Wire)
				require.Positive(t, res.Sent.NoiseRate.Bytes)
				require.Equal(t, 2, res.Sent.Network.Streams)

				from := filepath.Join(t.TempDir(), "from")
				data := []byte(strings.Repeat("what is to be moved, ", 100_000))
				require.NoError(t, os.WriteFile(from, data, 0o600))
				task := deviceTask(t, from, from+".copy")
				var last Progress
				res, err := Run(t.Context(), l, From{Host: local, What: hosts.ReadDevice{Task: task}}, To{remote, hosts.WriteDevice{Task: task}},
					Count{Total: uint64(len(data))}, func(p Progress) { last = p })
				require.NoError(t, err)
				requireFile(t, data, from+".copy")
				require.Equal(t, res.Sent.Device.SourceDigest, res.Received.Device.TargetDigest)
				require.EqualValues(t, len(data), last.Bytes)
				require.Equal(t, last.Bytes, last.Total)
				if w == "ssh" {
					require.Positive(t, remote.through.Load(), "the remote shell was bypassed")
				}
			})
		}
	}
}

func TestRunWithinOneHost(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	local, _, _ := pair(t, transport.Settings{})
	l := mustChoose(t, transport.Settings{}, Side{Host: local}, Side{Host: local})
	from := filepath.Join(t.TempDir(), "from")
	data := []byte(strings.Repeat("what is to be moved, ", 100_000))
	require.NoError(t, os.WriteFile(from, data, 0o600))
	task := deviceTask(t, from, from+".copy")
	res, err := Run(t.Context(), l, From{Host: local, What: hosts.ReadDevice{Task: task}}, To{local, hosts.WriteDevice{Task: task}}, Count{}, nil)
	require.NoError(t, err)
	requireFile(t, data, from+".copy")
	require.Equal(t, Local, res.Wire)
	require.Nil(t, res.Sent.Network)
	names := map[string]int{}
	for _, s := range res.Stages {
		names[s.Name]++
		require.Equal(t, 1, names[s.Name], "one process is reported once")
	}
}

// TestSocketOptionsAreSet expects that both hosts set the requested socket options. If one host
// cannot, Choose fails before data is sent.
func TestSocketOptionsAreSet(t *testing.T) {
	t.Parallel()
	choices := transport.Settings{Wire: "signed", Socket: transport.Socket{Window: 128 << 10, Congestion: "reno"}}
	local, remote, l := pair(t, choices)
	res, err := Run(t.Context(), l, From{Host: local, What: hosts.Noise{Time: 50 * time.Millisecond}}, To{remote, hosts.Nowhere{}}, Count{}, nil)
	require.NoError(t, err)
	for _, n := range []*transfer.Network{res.Sent.Network, res.Received.Network} {
		require.Equal(t, "reno", n.Congestion)
		require.Equal(t, 256<<10, n.SendBuffer, "the kernel doubles it")
	}
	reno, cubic := tcp.TCP{Congestion: []string{"reno"}}, tcp.TCP{Congestion: []string{"cubic", "bbr"}}
	has, lacks := hosts.Facts{SSHLocal: "10.0.0.2", SSHPeer: "10.0.0.1", TCP: reno}, hosts.Facts{TCP: cubic}
	_, err = NewSearch(choices, side("", lacks), side("beta", has), nil)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	lacks.SSHLocal, lacks.SSHPeer, has.SSHLocal = "10.0.0.2", "10.0.0.1", ""
	_, err = NewSearch(choices, side("", has), side("beta", lacks), nil)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "beta: {{congestion reno}}: the kernel offers cubic, bbr")
}

func deviceTask(t *testing.T, from, to string) device.Task {
	task := device.Task{Request: device.Request{Options: device.Options{Options: transfer.Options{Block: 1 << 20}}}}
	var err error
	task.Source, err = device.Inspect(t.Context(), from)
	require.NoError(t, err)
	task.Target, err = device.Inspect(t.Context(), to)
	require.NoError(t, err)
	return task
}

func requireFile(t *testing.T, want []byte, name string) {
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.True(t, string(want) == string(got), "%s differs", name)
}

// plain only moves data.
type plain struct {
	hosts.Host
	transfer func(context.Context, hosts.Task) (hosts.Result, error)
}

func (p plain) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, p.Host, r, hoststest.With(hosts.OpOffer, p.Offer), hoststest.Watched(hosts.OpTransfer, p.Transfer))
}

func (p plain) Offer(context.Context, tcp.Offer) (tcp.Ticket, error) { return tcp.Ticket{}, nil }

func (p plain) Transfer(ctx context.Context, task hosts.Task, report func(transfer.Progress)) (hosts.Result, error) {
	res, err := p.transfer(ctx, task)
	report(res.Progress)
	return res, err
}

// runHalves returns a function that runs a stream between two hosts with the given behaviour.
func runHalves(t *testing.T, sends, receives func(context.Context, hosts.Task) (hosts.Result, error)) func() (Result, error) {
	a, b := &host{label: "a", ops: plain{transfer: sends}}, &host{label: "b", ops: plain{transfer: receives}}
	l := mustChoose(t, transport.Settings{DataAddress: "192.0.2.1"}, Side{Host: a}, Side{Host: b})
	return func() (Result, error) {
		return Run(t.Context(), l, From{Host: a, What: hosts.SendStream{}}, To{b, hosts.ReceiveStream{}}, Count{}, nil)
	}
}

// TestRefusalEndsOtherHost expects that if one host refuses, zxfer does not wait for the other
// host.
func TestRefusalEndsOtherHost(t *testing.T) {
	t.Parallel()
	waits := func(ctx context.Context, _ hosts.Task) (r hosts.Result, err error) {
		<-ctx.Done()
		return r, ctx.Err()
	}
	refuses := func(context.Context, hosts.Task) (r hosts.Result, err error) {
		return r, fault.Refusef("", "the policy forbids it")
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := runHalves(t, waits, refuses)()
		require.ErrorContains(t, err, "the policy forbids it")
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.Less(t, time.Since(began), windDown/2)
	})
}

// TestRunFailsIfDigestsDiffer expects an error if both hosts succeed but
// their digests differ.
func TestRunFailsIfDigestsDiffer(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	for _, c := range []struct {
		sent, received string
		same           bool
	}{{a, a, true}, {a, "", true}, {"", b, true}, {a, b, false}} {
		says := func(digest string) func(context.Context, hosts.Task) (hosts.Result, error) {
			return func(context.Context, hosts.Task) (hosts.Result, error) {
				return hosts.Result{Result: transfer.Result{Digest: digest}}, nil
			}
		}
		_, err := runHalves(t, says(c.sent), says(c.received))()
		if c.same {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, transfer.ErrTotalsMismatch)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	}
}

// TestRefusedStreamRemainsRefused expects that a source's explanation neither hides that its stream
// was refused nor chooses the class of the error.
func TestRefusedStreamRemainsRefused(t *testing.T) {
	t.Parallel()
	gate := &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive, Detail: "got a record of type 77"}
	for _, send := range []error{&zfs.Error{Kind: zfs.Killed, Op: zfs.OpSend}, fault.Interrupt("continue", errors.New("nothing is wrong"))} {
		err := rootCause(send, gate)
		require.ErrorContains(t, err, "got a record of type 77")
		require.ErrorIs(t, err, send)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	}
}

func TestMonitorJoinsBothHosts(t *testing.T) {
	t.Parallel()
	var last Progress
	v := &monitor{count: Count{100, 300}, limit: func(s string) string { return s }, report: func(p Progress) { last = p }}
	v.received(transfer.Progress{Bytes: 50})
	require.Equal(t, uint64(150), last.Bytes)
	require.Equal(t, uint64(300), last.Total)
	v.received(transfer.Progress{Bytes: 10}) // a second report of the other end
	require.Less(t, last.Rate, uint64(1<<40))
	require.Equal(t, uint64(10), v.arrived())
	// The sender of a device knows which blocks need no transfer.
	v.device = true
	v.sent(transfer.Progress{Bytes: 250})
	v.received(transfer.Progress{Bytes: 20})
	require.Equal(t, uint64(250), last.Bytes)
	v.both(transfer.Progress{Bytes: 260})
	require.Equal(t, uint64(260), last.Bytes)
	// A source that sends only some blocks shows the bytes that it read.
	v = &monitor{count: Count{0, 300}, limit: v.limit, report: v.report}
	v.sent(transfer.Progress{Bytes: 5, Worked: 200})
	v.received(transfer.Progress{Bytes: 4})
	require.Equal(t, uint64(200), last.Bytes)
	require.Equal(t, uint64(4), v.arrived())
}

// TestRootCause expects that the error shown is the one that explains the other.
func TestRootCause(t *testing.T) {
	t.Parallel()
	noSpace := &zfs.Error{Kind: zfs.NoSpace, Op: "receive"}
	peer := &transfer.PeerError{Text: "no space"}
	cut := fmt.Errorf("send: %w", tcp.ErrConnectionLost)
	lost := fmt.Errorf("b: %w", hosts.ErrLost)
	dial := fmt.Errorf("send: %w", tcp.ErrDial)
	tampered := fmt.Errorf("receive: %w", tcp.ErrTampered)
	tests := []struct {
		name                string
		send, receive, want error
	}{
		{"no errors", nil, nil, nil},
		{"only the sender failed", cut, nil, cut},
		{"only the receiver failed", nil, noSpace, noSpace},
		{"receiver error over its echo", peer, noSpace, noSpace},
		{"sender error over the loss it caused", noSpace, cut, noSpace},
		{"lost host over the loss it caused", cut, lost, lost},
		{"lost host over the failed dial", dial, lost, lost},
		{"lost host over the failed dial of the receiver", lost, dial, lost},
		{"failed dial over the cancelled wait", dial, context.Canceled, dial},
		{"tampering over other errors", peer, tampered, tampered},
		{"other errors over the cancellation", context.Canceled, cut, cut},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, rootCause(tt.send, tt.receive))
		})
	}
}

// lossyHost is a host without zxfer whose connection is lost, and doer its connection.
type lossyHost struct{ hosts.Host }

func (lossyHost) OpenFrom(context.Context, hosts.From) (transfer.Source, error) {
	return nil, errors.New("unexpected")
}

func (lossyHost) OpenTo(context.Context, hosts.To) (transfer.Sink, error) {
	return nil, hosts.ErrLost
}

type doer struct {
	host
	result error
}

func (d *doer) Do(_ context.Context, f func(hosts.Host) error) error {
	d.result = f(lossyHost{})
	return d.result
}

// TestLostTargetKeepsSource expects that the loss of a target does not count as a loss of the source, whose
// connection other transfers use.
func TestLostTargetKeepsSource(t *testing.T) {
	t.Parallel()
	source, target := &doer{host: host{label: "a"}}, &doer{host: host{label: "b"}}
	m := &session{from: From{Host: source, What: hosts.SendStream{}}, to: To{target, hosts.ReceiveStream{}}}
	require.ErrorIs(t, agentlessCarrier{}.run(t.Context(), m), hosts.ErrLost)
	require.ErrorIs(t, target.result, hosts.ErrLost)
	require.NoError(t, source.result)
}

// attachable is a host whose connection carries streams.
type attachable struct {
	plain
	session *mux.Session
}

func (a attachable) Dial(ctx context.Context, address string) (*mux.Stream, error) {
	return a.session.Open(ctx, address)
}

// TestWaitingIsNotTheDurationOfAStream lets a small stream wait for others on the remote host.
func TestWaitingIsNotTheDurationOfAStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		waits := func(wait time.Duration) plain {
			return plain{transfer: func(context.Context, hosts.Task) (r hosts.Result, err error) {
				time.Sleep(wait + 2*time.Second)
				r.Bytes, r.Elapsed = 8000, 2*time.Second
				return r, nil
			}}
		}
		facts := hosts.Facts{SSHLocal: "10.0.0.2", SSHPeer: "10.0.0.1"}
		session := mux.New(io.Discard, "")
		defer session.End(io.EOF)
		local, remote := &host{ops: waits(0)}, &host{label: "b", ops: attachable{waits(time.Hour), session}}
		l, ok := mustChoose(t, transport.Settings{}, Side{Host: local, Facts: facts}, Side{Host: remote, Facts: facts}).Small(8000)
		require.True(t, ok)
		res, err := Run(t.Context(), l, From{Host: local, What: hosts.SendStream{}}, To{remote, hosts.ReceiveStream{}}, Count{Total: 8000}, nil)
		require.NoError(t, err)
		require.Equal(t, Speed{Seconds: 4, Rate: 2000}, res.Speed)
	})
}

// toolHost is a host without zxfer, with ends in memory.
type toolHost struct{ hosts.Host }

func (h toolHost) Through(*tcp.Offer, int64) hosts.Ends { return h }

func (toolHost) OpenFrom(context.Context, hosts.From) (transfer.Source, error) {
	return transfertest.NewSource(make([]byte, 4<<20)), nil
}

func (toolHost) OpenTo(context.Context, hosts.To) (transfer.Sink, error) { return probe.Discard(), nil }

// TestAgentlessStreamsShareLimit expects that streams to a host without zxfer together keep the limit.
func TestAgentlessStreamsShareLimit(t *testing.T) {
	t.Parallel()
	for _, w := range []transport.Settings{{}, {Wire: "nc", TrustedLink: true, DataAddress: "192.0.2.1"}} {
		synctest.Test(t, func(t *testing.T) {
			local, nas := &host{ops: toolHost{}}, &host{label: "nas", ops: toolHost{}}
			l := mustChoose(t, w, Side{Host: local}, Side{Host: nas, Facts: hosts.Facts{NoAgent: "FreeBSD"}})
			send := hosts.SendStream{Options: transfer.Options{BandLimit: 1 << 20, LimitID: 1}}
			began := time.Now()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					if _, err := Run(t.Context(), l, From{Host: local, What: send}, To{nas, hosts.ReceiveStream{}}, Count{}, nil); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			require.InDelta(t, 16, time.Since(began).Seconds(), 0.1)
		})
	}
}
