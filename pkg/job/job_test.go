package job

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// One key of AES-GCM does not last for ever.
func TestLargeStreamsOverTLSHaveMoreConnections(t *testing.T) {
	t.Parallel()
	c := linkChoice{Way: way.Way{Streams: 2}}
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
		require.Equal(t, tt.want, c.connections(tt.mode, tt.bytes), "%s, %d bytes", tt.mode, tt.bytes)
	}
}

func TestChooseStreams(t *testing.T) {
	t.Parallel()
	usual := site.Facts{TCPReadMax: 6 << 20, TCPWriteMax: 4 << 20}
	tests := []struct {
		name   string
		window int
		rtt    time.Duration
		a, b   site.Facts
		want   int
	}{
		{"a local network needs one", 0, 200 * time.Microsecond, usual, usual, 1},
		{"the smallest limit of both ends counts", 0, 2 * time.Millisecond, usual, site.Facts{TCPReadMax: 1 << 20}, 5},
		{"far away, the bound", 0, 50 * time.Millisecond, usual, usual, maxChosenStreams},
		{"a window that was asked for counts instead", 64 << 20, 50 * time.Millisecond, usual, usual, 2},
		{"an unknown round trip", 0, 0, usual, usual, 1},
		{"unknown limits", 0, time.Second, site.Facts{}, site.Facts{}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, chooseStreams(tt.window, tt.rtt, tt.a, tt.b))
		})
	}
}

func TestChooseLink(t *testing.T) {
	t.Parallel()
	reached := func(local, peer string) site.Facts { return site.Facts{SSHLocal: local, SSHPeer: peer} }
	tests := []struct {
		name                    string
		way                     way.Way
		source, target          string
		sf, tf                  site.Facts
		listener, address, peer string
		wire                    string
		class                   fault.Class
	}{
		{name: "push: the target listens where ssh reached it", source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			listener: "target", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "pull: the source listens, as only that way is known to be open", source: "a", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			listener: "source", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "third party: the target listens, and the source may come from anywhere", source: "a", target: "b",
			sf: reached("10.0.0.2", "10.0.0.1"), tf: reached("10.0.0.3", "10.0.0.1"), listener: "target", address: "10.0.0.3", wire: "auto"},
		{name: "push turned around: this host listens", way: way.Way{Dial: "target"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			listener: "source", address: "10.0.0.1", peer: "10.0.0.2", wire: "auto"},
		{name: "an address of one's own, from any peer", way: way.Way{DataAddress: "192.168.7.2"}, source: "", target: "b",
			tf: reached("10.0.0.2", "10.0.0.1"), listener: "target", address: "192.168.7.2", wire: "auto"},
		{name: "through ssh: loopback", way: way.Way{Wire: "ssh"}, source: "", target: "b", listener: "target", address: "127.0.0.1", wire: "ssh"},
		{name: "through ssh between two other hosts", way: way.Way{Wire: "ssh"}, source: "a", target: "b", class: fault.Usage},
		{name: "plain tools, push: this host listens", way: way.Way{Wire: "nc"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			listener: "source", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools, pull: this host listens", way: way.Way{Wire: "nc"}, source: "b", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			listener: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools between two other hosts", way: way.Way{Wire: "nc"}, source: "a", target: "b", class: fault.Usage},
		{name: "no address known", source: "", target: "b", class: fault.Refused},
		{name: "an address that is none", way: way.Way{DataAddress: "beta"}, source: "", target: "b", class: fault.Usage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			source, target := &end{role: "source", host: tt.source}, &end{role: "target", host: tt.target}
			c, err := chooseLink(tt.way, source, target, tt.sf, tt.tf, 0)
			if tt.class != 0 {
				require.Error(t, err)
				require.Equal(t, tt.class, fault.ClassOf(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.listener, c.listener.role)
			require.NotEqual(t, c.listener, c.dialer)
			require.Equal(t, []string{tt.address, tt.peer, tt.wire}, []string{c.address, c.peer, c.Wire})
		})
	}
	t.Run("one host needs no network", func(t *testing.T) {
		t.Parallel()
		both := &end{role: "source"}
		c, err := chooseLink(way.Way{}, both, both, site.Facts{}, site.Facts{}, 0)
		require.NoError(t, err)
		require.Equal(t, wireLocal, c.Wire)
		require.Nil(t, c.listener)
	})
}

func TestWireOfADataset(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		wire      string
		encrypted bool
		want      wire.Mode
	}{
		{way.Auto, true, wire.Signed}, {way.Auto, false, wire.TLS}, {"tls", true, wire.TLS}, {"plain", false, wire.Plain}, {way.SSH, false, wire.Signed},
	} {
		require.Equal(t, tt.want, linkChoice{Way: way.Way{Wire: tt.wire}}.mode(tt.encrypted), "%s, encrypted %t", tt.wire, tt.encrypted)
	}
}

// What is not here has no meters: it is not told apart from the network.
func TestLimitOfPlainTools(t *testing.T) {
	t.Parallel()
	source, target := &end{}, &end{}
	push, pull := linkChoice{Way: way.Way{Wire: way.NC}, dialer: target}, linkChoice{Way: way.Way{Wire: way.NC}, dialer: source}
	require.Equal(t, "network or target", push.limit(transfer.LimitTarget, target))
	require.Equal(t, "source", push.limit(transfer.LimitSource, target))
	require.Equal(t, "source or network", pull.limit(transfer.LimitSource, target))
	require.Equal(t, "target", pull.limit(transfer.LimitTarget, target))
	require.Equal(t, "target", linkChoice{Way: way.Way{Wire: way.Auto}, dialer: target}.limit(transfer.LimitTarget, target))
}

// Of both ends' errors the one is shown that explains the other.
func TestRootCause(t *testing.T) {
	t.Parallel()
	noSpace := &zfs.Error{Kind: zfs.NoSpace, Op: "receive"}
	peer := &transfer.PeerError{Text: "no space"}
	cut := fmt.Errorf("send: %w", wire.ErrCut)
	lost := fmt.Errorf("b: %w", site.ErrLost)
	dial := fmt.Errorf("send: %w", wire.ErrDial)
	tampered := fmt.Errorf("receive: %w", wire.ErrTampered)
	tests := []struct {
		name                string
		send, receive, want error
	}{
		{"both well", nil, nil, nil},
		{"only the sender failed", cut, nil, cut},
		{"only the receiver failed", nil, noSpace, noSpace},
		{"the receiver's own failure before its echo", peer, noSpace, noSpace},
		{"the sender's own failure before the cut it made", noSpace, cut, noSpace},
		{"a lost host before the cut that this made", cut, lost, lost},
		{"a lost host before the dial that this made fail", dial, lost, lost},
		{"the same, of a receiver that dials", lost, dial, lost},
		{"a failed dial before the wait that it ended", dial, context.Canceled, dial},
		{"tampering before everything", peer, tampered, tampered},
		{"anything before being cancelled for it", context.Canceled, cut, cut},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, rootCause(tt.send, tt.receive))
		})
	}
}

func TestTransient(t *testing.T) {
	t.Parallel()
	for _, err := range []error{wire.ErrCut, site.ErrLost, &zfs.Error{Kind: zfs.Killed}, &zfs.Error{Kind: zfs.Busy}, &zfs.Error{Kind: zfs.Incomplete}} {
		require.True(t, transient(fmt.Errorf("x: %w", err)), "%v", err)
	}
	for _, err := range []error{wire.ErrTampered, wire.ErrDial, &zfs.Error{Kind: zfs.NoSpace}, &zfs.Error{Kind: zfs.Permission}, context.Canceled,
		errors.Join(wire.ErrTampered, wire.ErrCut)} {
		require.False(t, transient(fmt.Errorf("x: %w", err)), "%v", err)
	}
}

// An error that no further try changes is not tried again, nor called an
// interruption: the target has a snapshot that no plan knew of, twice; a conflict
// came up since.
func TestWhatNoTryCuresIsAFailure(t *testing.T) {
	t.Parallel()
	retries := func(s *Send) { s.Retries, s.RetryFor, s.Plan.Recursive = 6, time.Millisecond, false }
	w := newWorld(map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil, "dst/a": {}})
	w.datasets["dst/a"].Versions = w.datasets["src/a"].Versions[:1:1]
	tries := 0
	w.refuse = func(string) error { tries++; return &zfs.Error{Kind: zfs.Exists, Op: zfs.OpReceive, Subject: "dst/a"} }
	_, err := RunSend(t.Context(), request(retries), w, silent{})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Exists})
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.Equal(t, 2, tries)

	tries = 0
	w.refuse = func(string) error {
		tries++
		w.datasets["dst/a"].Versions = append(w.datasets["dst/a"].Versions, zfs.Version{Kind: zfs.Snapshot, Name: "theirs", GUID: 99, CreateTXG: 99})
		return wire.ErrCut
	}
	_, err = RunSend(t.Context(), request(retries), w, silent{})
	require.ErrorContains(t, err, "@theirs")
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.Equal(t, 1, tries)
}

// Another command that resumed the same stream was faster: the state that the
// token stood for is gone, and all is there.
func TestARivalCompletesTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil, "dst/a": {}})
	w.datasets["dst/a"].Versions = w.datasets["src/a"].Versions[:1:1]
	w.refuse = func(string) error {
		w.datasets["dst/a"].Versions = w.datasets["src/a"].Versions
		return &zfs.Error{Kind: zfs.BadToken, Op: zfs.OpReceive, Subject: "dst/a"}
	}
	_, err := RunSend(t.Context(), request(func(s *Send) { s.Retries, s.RetryFor, s.Plan.Recursive = 6, time.Millisecond, false }), w, silent{})
	require.NoError(t, err)
}

// Retries are counted anew only when the target kept something.
func TestAdvanced(t *testing.T) {
	t.Parallel()
	step := func(guid, done uint64) plan.Step { return plan.Step{ToGUID: guid, Done: done} }
	with := func(steps ...plan.Step) *plan.Dataset { return &plan.Dataset{Steps: steps} }
	require.False(t, advanced(with(step(1, 0)), with(step(1, 0))))
	require.False(t, advanced(with(step(1, 10)), with(step(1, 10))))
	require.True(t, advanced(with(step(1, 0)), with(step(1, 10))), "more of the stream is there")
	require.True(t, advanced(with(step(1, 0), step(2, 0)), with(step(2, 0))), "the next stream is due")
	require.True(t, advanced(with(step(1, 0)), with()), "nothing is left")
}

func TestJoinFailures(t *testing.T) {
	t.Parallel()
	cut := fault.Interrupt("the same command resumes", errors.New("cut"))
	failed := fault.Failf("make room", "no space")
	require.NoError(t, joinFailures(nil))
	require.Equal(t, fault.Interrupted, fault.ClassOf(joinFailures([]error{cut})))
	require.Equal(t, fault.Interrupted, fault.ClassOf(joinFailures([]error{cut, cut})))
	err := joinFailures([]error{cut, failed})
	require.Equal(t, fault.Failed, fault.ClassOf(err), "a failure is worse than what resumes")
	require.ErrorContains(t, err, "no space")
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	empty, some := &plan.Plan{}, &plan.Plan{Datasets: []*plan.Dataset{{Steps: make([]plan.Step, 1)}}}
	tests := []struct {
		err    error
		dryRun bool
		plan   *plan.Plan
		want   string
	}{
		{nil, false, some, "done"}, {nil, true, some, "planned"}, {nil, false, empty, "up-to-date"},
		{fault.Refusef("", "no"), false, nil, "refused"}, {fault.Interrupt("", errors.New("x")), false, some, "interrupted"},
		{errors.New("x"), false, nil, "failed"},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, outcome(tt.err, tt.dryRun, tt.plan))
	}
}

// What ^C or a rate of zero leaves must not divide or underflow.
func TestViewJoinsBothEnds(t *testing.T) {
	t.Parallel()
	var last StepProgress
	v := newView(100, 300, func(p StepProgress) { last = p })
	v.received(transfer.Progress{Bytes: 50})
	require.Equal(t, uint64(150), last.Bytes)
	require.Equal(t, uint64(300), last.Total)
	v.received(transfer.Progress{Bytes: 10}) // a second account of the other end
	require.Less(t, last.Rate, uint64(1<<40))
	require.Equal(t, uint64(110), v.bytes())
}

// failingOpener reaches its host as long as it has Sites.
type failingOpener struct{ sites []site.Site }

func (o *failingOpener) Open(context.Context, string) (site.Site, error) {
	if len(o.sites) == 0 {
		return nil, fault.Failf("try it by hand", "%s: connection refused", "beta")
	}
	st := o.sites[0]
	o.sites = o.sites[1:]
	return st, nil
}

func (o *failingOpener) Relay(context.Context, string, string) (string, error) {
	return "", errors.ErrUnsupported
}

// silent is a Reporter that needs no output.
type silent struct{}

func (silent) Log(string)                      {}
func (silent) Planned(*Report)                 {}
func (silent) Started(int, *plan.Dataset, int) {}
func (silent) Progress(int, StepProgress)      {}
func (silent) Finished(int, *StepResult)       {}

// A host that was never reached is a failure; one that was is lost for now.
func TestEndReopens(t *testing.T) {
	t.Parallel()
	never := &end{host: "beta", open: &failingOpener{}}
	_, err := never.get(t.Context())
	require.NotErrorIs(t, err, site.ErrLost)

	once := &end{host: "beta", open: &failingOpener{sites: []site.Site{site.NewLocal("test", func(string) {})}}}
	st, err := once.get(t.Context())
	require.NoError(t, err)
	once.drop(st)
	_, err = once.get(t.Context())
	require.ErrorIs(t, err, site.ErrLost)
	require.ErrorContains(t, err, "connection refused")
	require.Equal(t, "try it by hand", fault.HintOf(err))
}

func TestPersist(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("beta: %w", site.ErrLost)
	tests := []struct {
		name  string
		errs  []error // of each call; then nil
		calls int
		class fault.Class
	}{
		{"well", nil, 1, 0},
		{"lost once", []error{lost}, 2, 0},
		{"lost for good", []error{lost, lost, lost, lost}, 3, fault.Interrupted},
		{"another failure", []error{errors.New("diverged")}, 1, fault.Failed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &sender{req: Send{Retries: 2, RetryFor: time.Millisecond}, rep: silent{}}
			calls := 0
			err := s.persist(t.Context(), func(context.Context) error {
				calls++
				if calls <= len(tt.errs) {
					return tt.errs[calls-1]
				}
				return nil
			})
			require.Equal(t, tt.calls, calls)
			if tt.class == 0 {
				require.NoError(t, err)
				return
			}
			require.Equal(t, tt.class, fault.ClassOf(err))
		})
	}
}

// half is a Site that only transfers.
type half struct {
	site.Site
	transfer func(context.Context) error
	moved    int64 // bytes, before it does that
}

func (h half) Transfer(ctx context.Context, _ site.Task, report func(transfer.Progress)) (transfer.Result, error) {
	if h.moved > 0 {
		report(transfer.Progress{Bytes: h.moved})
	}
	return transfer.Result{}, h.transfer(ctx)
}

// Where one end refuses, the other is not waited for.
func TestARefusalEndsTheOtherHalf(t *testing.T) {
	t.Parallel()
	ends := func(f func(context.Context) error) *end {
		return &end{host: "beta", open: &failingOpener{sites: []site.Site{half{transfer: f}}}}
	}
	waits := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	refuses := func(context.Context) error { return fault.Refusef("", "the policy forbids it") }
	began := time.Now()
	_, _, err := halves(t.Context(), ends(waits), ends(refuses), site.Task{}, site.Task{}, nil, nil)
	require.ErrorContains(t, err, "the policy forbids it")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Less(t, time.Since(began), windDown/2)
}

// That no connection can be made is for a firewall's owner to hear, at first. Where
// data crossed before, it is a cut like others.
func TestADialThatFailsAfterOthersDidNotIsACut(t *testing.T) {
	t.Parallel()
	var fails error
	source := &end{host: "alpha", open: &failingOpener{sites: []site.Site{half{transfer: func(context.Context) error { return fails }}}}}
	target := &end{host: "beta"}
	for _, tt := range []struct {
		fails     error
		moved     int64
		transient bool
	}{{wire.ErrDial, 0, false}, {wire.ErrCut, 0, true}, {wire.ErrDial, 0, false}, {wire.ErrCut, 1, true}, {wire.ErrDial, 0, true}} {
		fails = tt.fails
		target.site = half{moved: tt.moved, transfer: func(context.Context) error { return wire.ErrCut }}
		_, _, err := halves(t.Context(), source, target, site.Task{}, site.Task{}, nil, func(transfer.Progress) {})
		require.ErrorIs(t, err, tt.fails)
		require.Equal(t, tt.transient, transient(err), "%v", err)
	}
}

// captures is a Site that only tells its facts.
type captures struct {
	site.Site
	text string
	err  error
}

func (c captures) Capture(_ context.Context, brief bool) ([]byte, error) {
	if !brief {
		return nil, errors.New("a job has no time for more")
	}
	return []byte(c.text), c.err
}

// A host that does not tell its facts is unknown, not wrong.
func TestSystemOfAnEnd(t *testing.T) {
	t.Parallel()
	ask := func(c captures) *end {
		return &end{host: "beta", open: &failingOpener{sites: []site.Site{c}}}
	}
	s := ask(captures{text: "-- sys/module/zfs/version --\n2.3.9-1\n"}).system(t.Context())
	require.NotNil(t, s)
	require.Equal(t, "2.3.9-1", s.ZFS)
	require.Nil(t, ask(captures{err: fault.Refusef("", "the agent's policy forbids it")}).system(t.Context()))
	require.Nil(t, ask(captures{text: "-- .. --\n"}).system(t.Context()), "no archive of files")
	require.Nil(t, (&end{host: "beta", open: &failingOpener{}}).system(t.Context()))
}
