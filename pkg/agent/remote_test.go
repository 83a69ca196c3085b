package agent

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/probe"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

func TestRemoteForwardsEveryOperation(t *testing.T) {
	send := zfs.SendSpec{Dataset: "tank/a", From: "#b", Through: []string{"c"}, To: "d", Flags: zfs.StreamFlags{Raw: true}, Token: "1-t"}
	task := site.Task{From: site.SendStream{Spec: send, Options: transfer.Options{Buffer: 5, Stall: time.Second}}, To: site.Dial{Ticket: wire.Ticket{Secret: []byte{1, 2}}}}
	part := site.ContentQuery{SendSpec: send, Within: zfs.Within{Object: 7, From: 8, To: 1 << 63}}
	query := site.ListQuery{Dataset: "tank", Recursive: true, Versions: true}
	offer := wire.Offer{Mode: wire.TLS, Streams: 2, Address: "192.0.2.1", Deadline: time.Minute}
	names := []string{"tank/a b@x", "tank/ü@y"}
	for name, c := range map[string]struct {
		ask   func(context.Context, site.Full) (any, error)
		asked []any
		want  any
	}{
		"facts": {func(ctx context.Context, s site.Full) (any, error) { return s.Facts(ctx) },
			[]any{"facts"}, site.Facts{Hostname: "beta", CPUs: 3, Root: true}},
		"list": {func(ctx context.Context, s site.Full) (any, error) { return s.List(ctx, query) },
			[]any{"list", query}, zfs.Listing{Root: "tank", Datasets: []*zfs.Dataset{{Name: "tank", Type: zfs.Volume, GUID: 1<<64 - 1, Properties: map[string]zfs.Property{}}}}},
		"dataset of": {func(ctx context.Context, s site.Full) (any, error) { return s.DatasetOf(ctx, "/mnt") },
			[]any{"dataset-of", "/mnt"}, "tank/a"},
		"properties": {func(ctx context.Context, s site.Full) (any, error) { return s.Properties(ctx, names, []string{"used"}) },
			[]any{"properties", names, []string{"used"}}, map[string]map[string]zfs.Property{"tank/a b@x": {"used": {Value: "1", Source: "-"}}}},
		"local properties": {func(ctx context.Context, s site.Full) (any, error) { return s.Properties(ctx, names, nil) },
			[]any{"properties", names, []string(nil)}, map[string]map[string]zfs.Property{"tank/a b@x": {"used": {Value: "1", Source: "-"}}}},
		"estimate": {func(ctx context.Context, s site.Full) (any, error) { return s.Estimate(ctx, []zfs.SendSpec{send}) },
			[]any{"estimate", []zfs.SendSpec{send}}, []uint64{1<<64 - 1}},
		"snapshot": {func(ctx context.Context, s site.Full) (any, error) { return nil, s.Snapshot(ctx, names) },
			[]any{"snapshot", names}, nil},
		"hold": {func(ctx context.Context, s site.Full) (any, error) { return nil, s.Hold(ctx, "t", names) },
			[]any{"hold", "t", names}, nil},
		"release": {func(ctx context.Context, s site.Full) (any, error) { return nil, s.Release(ctx, "t", names) },
			[]any{"release", "t", names}, nil},
		"holds": {func(ctx context.Context, s site.Full) (any, error) { return s.Holds(ctx, names) },
			[]any{"holds", names}, map[string][]string{"tank/a b@x": {"t"}}},
		"bookmark": {func(ctx context.Context, s site.Full) (any, error) {
			return nil, s.Bookmark(ctx, map[string]string{"tank#a": "tank@a"})
		}, []any{"bookmark", map[string]string{"tank#a": "tank@a"}}, nil},
		"destroy": {func(ctx context.Context, s site.Full) (any, error) { return nil, s.Destroy(ctx, names) },
			[]any{"destroy", names}, nil},
		"create parents": {func(ctx context.Context, s site.Full) (any, error) { return nil, s.CreateParents(ctx, "tank/a/b") },
			[]any{"create-parents", "tank/a/b"}, nil},
		"discard partial": {func(ctx context.Context, s site.Full) (any, error) { return nil, s.DiscardPartial(ctx, "tank/a") },
			[]any{"discard-partial", "tank/a"}, nil},
		"digest": {func(ctx context.Context, s site.Full) (any, error) { return s.Digest(ctx, part) },
			[]any{"digest", part}, site.Digest{Sum: strings.Repeat("ab", 16), Bytes: 7, Shift: 1, Parts: []zfs.Part{{At: 1 << 62, Sum: strings.Repeat("cd", 16)}}}},
		"offer": {func(ctx context.Context, s site.Full) (any, error) { return s.Offer(ctx, offer) },
			[]any{"offer", offer}, ticketFor(offer)},
		"transfer": {func(ctx context.Context, s site.Full) (any, error) { return s.Transfer(ctx, task, nil) },
			[]any{"transfer", task}, site.Result{Result: transfer.Result{Frames: 9}}},
		"capture": {func(ctx context.Context, s site.Full) (any, error) { return s.Capture(ctx, true) },
			[]any{"capture", true}, []byte("-- a --\n")},
		"measure": {func(ctx context.Context, s site.Full) (any, error) { return s.Measure(ctx, probe.Request{ID: "x"}) },
			[]any{"measure", probe.Request{ID: "x"}}, probe.Ceiling{ID: "x", BytesPerSecond: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := start(t, &fakeSite{})
				got, err := c.ask(t.Context(), g)
				require.NoError(t, err)
				require.Equal(t, c.want, got)
				require.Equal(t, c.asked, g.site.asked)

				g.site.err = &zfs.Error{Kind: zfs.Busy, Op: "x", Detail: "held"}
				_, err = c.ask(t.Context(), g)
				require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Busy})
				require.EqualError(t, err, "beta: zfs x: held")

				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				g.site.asked = nil
				_, err = c.ask(ctx, g)
				require.ErrorIs(t, err, context.Canceled)
				require.Nil(t, g.site.asked, "a call that was given up before it began is not made")
			})
		})
	}
}

// What another host names becomes names here, and its answers are indexed by
// the questions: one that answers something else is not believed.
func TestAnAnswerToSomethingElseIsNone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, &fakeSite{odd: true})
		_, list := g.List(t.Context(), site.ListQuery{Dataset: "tank/a", Recursive: true})
		_, of := g.DatasetOf(t.Context(), "/mnt")
		_, properties := g.Properties(t.Context(), []string{"tank/a"}, nil)
		_, estimate := g.Estimate(t.Context(), []zfs.SendSpec{{Dataset: "tank/a", To: "x"}})
		_, holds := g.Holds(t.Context(), []string{"tank/a@x"})
		for op, err := range map[string]error{opList.name: list, opDatasetOf.name: of, opProperties.name: properties, opEstimate.name: estimate, opHolds.name: holds} {
			require.ErrorContains(t, err, "beta: malformed answer of "+op+": ")
			require.Equal(t, fault.Failed, fault.ClassOf(err), op)
		}
	})
}

// receiving is a task of an offer.
func receiving(session string) site.Task {
	return site.Task{From: site.Accept{Session: session}, To: site.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "vault/a"}}}
}

func TestManyCallsRunSideBySide(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const n = 100
		all := make(chan struct{})
		var running atomic.Int32
		g := start(t, &fakeSite{transfer: func(_ context.Context, task site.Task, _ func(transfer.Progress)) (site.Result, error) {
			if running.Add(1) == n {
				close(all)
			}
			<-all
			n, err := strconv.Atoi(task.From.(site.Accept).Session)
			return site.Result{Result: transfer.Result{Frames: int64(n)}}, err
		}})
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				res, err := g.Transfer(t.Context(), receiving(strconv.Itoa(i)), nil)
				if err != nil || res.Frames != int64(i) {
					t.Errorf("call %d got the answer of call %d: %v", i, res.Frames, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestProgressComesInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, &fakeSite{transfer: func(_ context.Context, _ site.Task, progress func(transfer.Progress)) (site.Result, error) {
			for i := range 5 {
				progress(transfer.Progress{Bytes: int64(i), Network: &transfer.Network{}})
				time.Sleep(time.Second)
			}
			return site.Result{}, nil
		}})
		var got []int64
		_, err := g.Transfer(t.Context(), receiving("s"), func(p transfer.Progress) { got = append(got, p.Bytes) })
		require.NoError(t, err)
		require.Equal(t, []int64{0, 1, 2, 3, 4}, got)
	})
}

func TestASlowConsumerOfProgressHoldsUpNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, &fakeSite{transfer: func(_ context.Context, _ site.Task, progress func(transfer.Progress)) (site.Result, error) {
			for i := range 10_000 {
				progress(transfer.Progress{Bytes: int64(i)})
			}
			return site.Result{Result: transfer.Result{Frames: 1}}, nil
		}})
		blocked, release := make(chan struct{}), make(chan struct{})
		transferred := make(chan error, 1)
		var once sync.Once
		go func() {
			_, err := g.Transfer(t.Context(), receiving("s"), func(transfer.Progress) {
				once.Do(func() { close(blocked); <-release })
			})
			transferred <- err
		}()
		<-blocked
		_, err := g.Facts(t.Context())
		require.NoError(t, err, "other calls go on")
		close(release)
		require.NoError(t, <-transferred)
	})
}

func TestCancelReachesTheAgentAndItsAnswerIsAwaited(t *testing.T) {
	for name, c := range map[string]struct {
		limit func(context.Context) (context.Context, context.CancelFunc)
		want  error
	}{
		"cancelled": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, context.Canceled},
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var wound atomic.Bool
				g := start(t, &fakeSite{do: func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(3 * time.Second) // state is saved
					wound.Store(true)
					return ctx.Err()
				}})
				ctx, cancel := c.limit(t.Context())
				defer cancel()
				err := g.Snapshot(ctx, []string{"tank@a"})
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, "beta")
				require.True(t, wound.Load(), "the answer comes after the operation has ended")
			})
		})
	}
}

func TestAnOperationThatIgnoresItsCancelIsNotAwaitedForEver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		stuck := make(chan struct{})
		g := start(t, &fakeSite{do: func(context.Context) error { <-stuck; return nil }})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := g.Snapshot(ctx, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second+cancelGrace, time.Since(began))
		close(stuck)
	})
}

func TestAHalfOpenConnectionEndsBothEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		cancelled := make(chan struct{})
		g := start(t, &fakeSite{do: func(ctx context.Context) error {
			<-ctx.Done()
			close(cancelled)
			return ctx.Err()
		}})
		lost := make(chan error, 1)
		go func() { lost <- g.Snapshot(t.Context(), nil) }()
		time.Sleep(time.Minute) // pings keep an idle connection alive
		require.Empty(t, lost)
		g.line.cut.Store(true)
		began := time.Now()
		require.ErrorIs(t, <-lost, site.ErrLost)
		require.LessOrEqual(t, time.Since(began), silence)
		<-cancelled
		require.ErrorContains(t, <-g.served, "heard nothing for 30s")
		require.LessOrEqual(t, time.Since(began), silence+pingEvery)

		_, err := g.Facts(t.Context())
		require.ErrorIs(t, err, site.ErrLost, "nor do later calls wait")
		require.ErrorContains(t, err, "beta: connection to the host was lost: it said nothing for 30s")
	})
}

func TestALargeAnswerMayTakeLongerThanSilence(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, &fakeSite{})
		g.line.slow.Store(true)
		began := time.Now()
		long := strings.Repeat("a", 100<<10) // the answer has it too
		got, err := g.Properties(t.Context(), []string{long}, nil)
		require.NoError(t, err)
		require.Contains(t, got, long)
		require.Greater(t, time.Since(began), silence)
	})
}

func TestTheTransportsLastWordsExplainALoss(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		block := make(chan struct{})
		g := start(t, &fakeSite{do: func(context.Context) error { <-block; return nil }})
		inner := g.line.closing
		g.line.closing = func() error { _ = inner(); return errors.New("ssh: broken pipe") }
		lost := make(chan error, 1)
		go func() { lost <- g.Snapshot(t.Context(), nil) }()
		synctest.Wait()
		g.server.session.Load().end(errors.New("killed"))
		close(block)
		err := <-lost
		require.ErrorIs(t, err, site.ErrLost)
		require.EqualError(t, err, "beta: connection to the host was lost: ssh: broken pipe")
	})
}

func TestCallsDoNotWaitForATransportThatIsSlowToClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, &fakeSite{do: func(ctx context.Context) error { <-ctx.Done(); time.Sleep(15 * time.Second); return nil }})
		lost := make(chan error, 1)
		go func() { lost <- g.Snapshot(t.Context(), nil) }()
		synctest.Wait()
		began := time.Now()
		require.NoError(t, g.Close())
		require.Equal(t, 15*time.Second, time.Since(began), "Close waits until the agent has ended")
		require.ErrorIs(t, <-lost, site.ErrLost)
	})
}

func TestLogLinesCarryTheHost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, &fakeSite{})
		g.server.Log("a stranger connected")
		require.Equal(t, "beta: a stranger connected", <-g.logs)
	})
}

// A terminal that was stopped takes no lines, for as long as it likes.
func TestALogThatWaitsIsNoSilenceOfTheAgent(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, &fakeSite{})
		for range cap(g.logs) {
			g.logs <- "full"
		}
		g.server.Log("this one waits")
		time.Sleep(3 * silence)
		for range cap(g.logs) {
			<-g.logs
		}
		require.Equal(t, "beta: this one waits", <-g.logs)
		_, err := g.Facts(t.Context())
		require.NoError(t, err)
	})
}

func TestRoundTripIsMeasuredPerPing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, &fakeSite{})
		base := time.Since(g.began)
		g.rtt.Store(0)
		time.Sleep(9 * time.Second)
		g.handle(&message{Kind: pong, ID: uint64(base)})
		require.Equal(t, 9*time.Second, g.RTT())
		g.handle(&message{Kind: pong, ID: uint64(base + time.Second)})
		require.Equal(t, 8*time.Second, g.RTT(), "the shortest counts")
	})
}

// Only a forced command can bring two builds together that do not know the same
// fields: the error says which version is there, and what to do.
func TestAnAgentOfAnotherBuildIsNamed(t *testing.T) {
	t.Parallel()
	for _, refused := range []error{errors.New(`malformed arguments: json: unknown field "window"`),
		fault.Refusef("what the account of this key may do is in its authorized_keys: --allow x", `the agent's policy forbids it: json: unknown field "window"`)} {
		r := liar(t, func(m *message) [][]byte { return [][]byte{failed(m, refused)[lengthSize:]} })
		_, err := r.Facts(t.Context())
		require.ErrorContains(t, err, `unknown field "window"`)
		require.Equal(t, fault.ClassOf(refused), fault.ClassOf(err))
		require.Contains(t, fault.HintOf(err), "zxfer there is 1.0")
		require.Contains(t, fault.HintOf(err), "install the same zxfer on both hosts")
		require.NoError(t, r.Close())
	}
}
