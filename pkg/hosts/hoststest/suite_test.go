package hoststest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// suite has two hosts, the source and the target of a job. It uses only operations that every host
// supports.
type suite struct {
	host           hosts.Host
	source, target hosts.Host
	open           func(*testing.T) hosts.Host
}

// newSuite opens two hosts and closes them when the test ends.
func newSuite(t *testing.T, open func(t *testing.T) hosts.Host) *suite {
	s := &suite{open: func(t *testing.T) hosts.Host {
		opened := open(t)
		t.Cleanup(func() { require.NoError(t, opened.Close()) })
		return opened
	}}
	s.source, s.target = s.open(t), s.open(t)
	s.host = s.source
	return s
}

// conforms runs the whole suite. open returns a new local host.
func conforms(t *testing.T, open func(t *testing.T) hosts.Host) {
	zfstest.Require(t)
	s := newSuite(t, open)
	run(t, s, datasets(), newRealPool)
	run(t, s, streams(), newRealPool)
	run(t, s, []test[*zfstest.Pool]{
		{"facts", (*suite).testFacts},
		{"errors keep their hints", (*suite).testHints},
		{"wires", (*suite).testWires},
		{"a chain with clone and volume", (*suite).testChain},
		{"close during a transfer", (*suite).testClose},
		{"the source is killed", (*suite).testSourceKilled},
		{"the target is killed", (*suite).testTargetKilled},
	}, func(t *testing.T) *zfstest.Pool { return zfstest.NewPool(t, zfstest.Options{}) })
}

// test is a test of the suite and the pool that it needs.
type test[G any] struct {
	name string
	run  func(*suite, *testing.T, G)
}

func run[G any](t *testing.T, s *suite, tests []test[G], open func(*testing.T) G) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(s, t, open(t)) })
	}
}

// streams are the tests for every host that transfers streams.
func streams() []test[testPool] {
	return []test[testPool]{
		{"errors keep their kinds", (*suite).testErrors},
		{"an ended context", (*suite).testEndedContext},
		{"digest", (*suite).testDigest},
		{"a local copy", (*suite).testLocalCopy},
		{"a stream in the control connection", (*suite).testAttached},
		{"progress", (*suite).testProgress},
		{"cancel, then resume", (*suite).testCancel},
		{"cancel of one end", (*suite).testCancelOneEnd},
		{"cancel before the connection", (*suite).testCancelAlone},
		{"the source refuses", (*suite).testSourceRefuses},
		{"the target refuses", (*suite).testTargetRefuses},
		{"the target is full", (*suite).testNoSpace},
		{"the target is busy", (*suite).testBusy},
		{"a tampered stream", (*suite).testTampered},
		{"no peer", (*suite).testNobody},
		{"an invalid task", (*suite).testBadTasks},
		{"state of an interrupted receive", (*suite).testDiscard},
	}
}

// testPool is access to a pool without the tested host.
type testPool interface {
	Root() string
	Dataset(name string) string
	Create(name string, args ...string) string
	Snapshot(dataset, name string) string
	Write(dataset, file string, size int64, seed uint64)
	Get(name, property string) string
	ZFS(args ...string) string
	// Path returns the path of a file of a dataset, or "" if nothing is mounted.
	Path(dataset, file string) string
}

// newRealPool is a pool of this computer.
func newRealPool(t *testing.T) testPool { return realPool{zfstest.NewPool(t, zfstest.Options{})} }

type realPool struct{ *zfstest.Pool }

func (r realPool) Root() string { return r.Name }

// requireKind requires a ZFS error of that kind.
func requireKind(t *testing.T, err error, kind zfs.Kind) {
	t.Helper()
	var e *zfs.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, kind, e.Kind, "%+v", e)
	require.ErrorIs(t, err, &zfs.Error{Kind: kind})
}

// exists queries ZFS directly, because the host is under test.
func exists(t *testing.T, p interface{ ZFS(...string) string }, version string) bool {
	t.Helper()
	return slices.Contains(strings.Split(p.ZFS("list", "-H", "-o", "name", "-t", "all", "-r", zfs.PoolOf(version)), "\n"), version)
}

// stream is one transfer between the suite's two hosts.
type stream struct {
	send    zfs.SendSpec
	receive zfs.ReceiveSpec
	mode    tcp.Mode // "" = signed
	streams int      // 0 = 1
	// backwards makes the source listen and the target dial.
	backwards bool
	options   transfer.Options
	// via replaces the address in the ticket.
	via func(string) string
	// sending and receiving get the progress reports.
	sending, receiving func(transfer.Progress)
}

// outcome is the result of both ends of a transfer.
type outcome struct {
	sent, received      hosts.Result
	sendErr, receiveErr error
	ticket              tcp.Ticket
}

// arrival returns the planned contents of a stream. A missing snapshot has the GUID 1.
func arrival(t *testing.T, source hosts.Host, s zfs.SendSpec) zfs.Arrival {
	t.Helper()
	names := []string{s.Dataset}
	for _, n := range slices.Concat(s.Through, []string{s.To}) {
		names = append(names, s.Dataset+"@"+n)
	}
	base, asked := s.From, names
	if base != "" {
		if strings.ContainsAny(base[:1], "@#") {
			base = s.Dataset + base
		}
		asked = slices.Concat(names, []string{base})
	}
	all, err := hosts.Call(t.Context(), source, hosts.OpProperties, hosts.PropertyQuery{Names: asked, Properties: []string{"guid", "type", "encryption"}})
	require.NoError(t, err)
	guid := func(name string) uint64 {
		n, err := strconv.ParseUint(all[name]["guid"].Value, 10, 64)
		if err != nil {
			return 1
		}
		return n
	}
	of := all[s.Dataset]
	a := zfs.Arrival{Raw: s.Flags.Raw && of["encryption"].Value != "off", Volume: of["type"].Value == string(zfs.Volume)}
	if s.Token != "" {
		token, err := zfs.ParseToken(s.Token)
		require.NoError(t, err)
		_, name, _ := strings.Cut(token.ToName, "@")
		a.Snapshots = []zfs.SnapshotID{{Name: name, GUID: token.ToGUID}}
		a.Base, a.Resumed, a.Raw = token.FromGUID, true, token.Flags.Raw
		return a
	}
	for _, n := range names[1:] {
		a.Snapshots = append(a.Snapshots, zfs.SnapshotID{Name: n[len(s.Dataset)+1:], GUID: guid(n)})
	}
	if base != "" {
		a.Base = guid(base)
	}
	return a
}

// into returns a receive of a stream of the suite's source.
func (s *suite) into(t *testing.T, send zfs.SendSpec, target string) zfs.ReceiveSpec {
	t.Helper()
	return zfs.ReceiveSpec{Target: target, Arrival: arrival(t, s.source, send)}
}

// start starts a transfer and returns a function that waits for both ends.
func (s *suite) start(ctx context.Context, t *testing.T, st stream) func() outcome {
	t.Helper()
	return start(ctx, t, s.source, s.target, st)
}

func start(ctx context.Context, t *testing.T, source, target hosts.Host, st stream) func() outcome {
	t.Helper()
	if st.mode == "" {
		st.mode = tcp.Signed
	}
	if len(st.receive.Arrival.Snapshots) == 0 {
		st.receive.Arrival = arrival(t, source, st.send)
	}
	if st.options.Block == 0 {
		st.options.Block = 96 << 10 // several frames for each connection, not a small stream
	}
	listens := target
	if st.backwards {
		listens = source
	}
	ticket, err := hosts.Call(ctx, listens, hosts.OpOffer, tcp.Offer{Mode: st.mode, Streams: max(st.streams, 1), Address: "127.0.0.1", Deadline: testenv.Timeout()})
	require.NoError(t, err)
	o := outcome{ticket: ticket}
	dial := ticket
	if st.via != nil {
		dial.Address = st.via(ticket.Address)
	}
	sending := hosts.Task{From: hosts.SendStream{Spec: st.send, Options: st.options}, To: hosts.Dial{Ticket: dial}}
	receiving := hosts.Task{From: hosts.Accept{Session: ticket.Session}, To: hosts.ReceiveStream{Spec: st.receive, Options: st.options}}
	if st.backwards {
		sending.To, receiving.From = hosts.Accept{Session: ticket.Session}, hosts.Dial{Ticket: dial}
	}
	var ends sync.WaitGroup
	ends.Go(func() { o.sent, o.sendErr = hosts.Watch(ctx, source, hosts.OpTransfer, sending, st.sending) })
	ends.Go(func() { o.received, o.receiveErr = hosts.Watch(ctx, target, hosts.OpTransfer, receiving, st.receiving) })
	return func() outcome {
		ends.Wait()
		return o
	}
}

// move runs a transfer that must succeed.
func (s *suite) move(t *testing.T, st stream) outcome {
	t.Helper()
	o := s.start(t.Context(), t, st)()
	require.NoError(t, errors.Join(o.sendErr, o.receiveErr))
	require.Equal(t, o.sent.Bytes, o.received.Bytes)
	if o.received.Digest != "" { // with one connection of mode plain, the data does not pass zxfer
		require.Equal(t, o.sent.Digest, o.received.Digest)
	}
	return o
}

// after returns a progress function, and a channel that is closed after that many bytes.
func after(bytes int64) (func(transfer.Progress), <-chan struct{}) {
	reached := make(chan struct{})
	var once sync.Once
	return func(p transfer.Progress) {
		if p.Bytes >= bytes {
			once.Do(func() { close(reached) })
		}
	}, reached
}

// wait waits until a channel is closed.
func wait(t *testing.T, reached <-chan struct{}) {
	t.Helper()
	select {
	case <-reached:
	case <-time.After(testenv.Timeout()):
		require.FailNow(t, "the transfer does not move")
	}
}

// running returns the processes, without zombies, that have word in an argument.
func running(t *testing.T, word string) (pids []int) {
	t.Helper()
	all, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		argv, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(argv), word) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// requireEnded requires that no process uses the pool.
func requireEnded(t *testing.T, p testPool) {
	t.Helper()
	for _, pid := range running(t, p.Root()) {
		argv, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		stack, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stack")
		require.Fail(t, "a process is left", "%q %s", argv, stack)
	}
}

// requireResumable requires that the target has no snapshot and has partially received state.
func requireResumable(t *testing.T, p testPool, target, snapshot string) (token string) {
	t.Helper()
	require.False(t, exists(t, p, target+"@"+snapshot), "an incomplete stream created a snapshot")
	token = p.Get(target, "receive_resume_token")
	_, err := zfs.ParseToken(token)
	require.NoError(t, err, token)
	return token
}
