package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// TestEveryOperationReturnsErrors expects that remote errors contain the host's name, and that a
// call that is cancelled before it starts is not sent.
func TestEveryOperationReturnsErrors(t *testing.T) {
	own := []string{hosts.OpFacts.Name(), hosts.OpHostFacts.Name(), hosts.OpInspectDevice.Name(), hosts.OpDeviceState.Name(), hosts.OpDigestDevice.Name()} // methods of the host, not of its ZFS
	for _, q := range questions() {
		t.Run(q.op, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				g := start(t, newHost(func(context.Context) error { return &zfs.Error{Kind: zfs.Busy, Op: "x", Detail: "held"} }))
				_, err := q.ask(t.Context(), g)
				require.Equal(t, !slices.Contains(own, q.op), g.host.asked != nil)
				if g.host.asked != nil {
					require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Busy})
					require.EqualError(t, err, "beta: zfs x: held")
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				g.host.asked = nil
				_, err = q.ask(ctx, g)
				require.ErrorIs(t, err, context.Canceled)
				require.Nil(t, g.host.asked)
			})
		})
	}
}

// TestTransferArgumentsArriveUnchanged expects that arguments arrive unchanged.
func TestTransferArgumentsArriveUnchanged(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(nil))
		task := hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: "tank/a", From: "#b", Through: []string{"c"}, To: "d", Flags: zfs.StreamFlags{Raw: true}, Token: "1-t"},
			Options: transfer.Options{Buffer: 5, Stall: time.Second}}, To: hosts.Dial{Ticket: tcp.Ticket{Secret: []byte{1, 2}}}}
		_, err := hosts.Call(t.Context(), g, hosts.OpTransfer, task)
		require.NoError(t, err)
		require.Equal(t, []any{hosts.OpTransfer.Name(), task}, g.host.asked)
		offer := tcp.Offer{Mode: tcp.TLS, Streams: 2, Address: "192.0.2.1", Deadline: time.Minute}
		ticket, err := hosts.Call(t.Context(), g, hosts.OpOffer, offer)
		require.NoError(t, err)
		require.Equal(t, []any{hosts.OpOffer.Name(), offer}, g.host.asked)
		require.Equal(t, ticketFor(offer), ticket)
		for _, brief := range []bool{true, false} {
			text, err := hosts.Call(t.Context(), g, hosts.OpCapture, brief)
			require.NoError(t, err)
			require.Equal(t, "-- a --\n", text)
			require.Equal(t, []any{hosts.OpCapture.Name(), brief}, g.host.asked)
		}
		req := probe.Request{ID: probe.Memory, Time: time.Second}
		c, err := hosts.Call(t.Context(), g, hosts.OpMeasure, req)
		require.NoError(t, err)
		require.Equal(t, []any{hosts.OpMeasure.Name(), req}, g.host.asked)
		require.EqualValues(t, 7, c.BytesPerSecond)
	})
}

// TestUnrelatedAnswerIsRefused expects that an answer to another request is refused. Answers
// are indexed by the request, and names from another host become local names.
func TestUnrelatedAnswerIsRefused(t *testing.T) {
	t.Parallel()
	elsewhere := map[string]string{
		hosts.OpList.Name():      `{"root":"tank/a","datasets":[{"name":"tank/elsewhere","type":"volume"}]}`,
		hosts.OpDatasetOf.Name(): `"tank/elsewhere@x"`, hosts.OpProperties.Name(): `{"tank/elsewhere@x":{}}`, hosts.OpEstimate.Name(): `[1]`, hosts.OpHolds.Name(): `{"tank/elsewhere@x":["t"]}`,
	}
	for _, q := range questions() {
		if body, ok := elsewhere[q.op]; ok {
			r := lyingAgent(t, func(m *message) [][]byte { return answer(m, body) })
			_, err := q.ask(t.Context(), r)
			require.ErrorContains(t, err, "beta: malformed answer of "+q.op+": ")
			require.Equal(t, fault.Failed, fault.ClassOf(err), q.op)
			require.NoError(t, r.Close())
		}
	}
}

// receiving returns the task that accepts an offer.
func receiving(session string) hosts.Task {
	return hosts.Task{From: hosts.Accept{Session: session}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "vault/a"}}}
}

func TestConcurrentCalls(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const n = 100
		all := make(chan struct{})
		var running atomic.Int32
		g := start(t, transferringHost(func(_ context.Context, task hosts.Task, _ func(transfer.Progress)) (hosts.Result, error) {
			if running.Add(1) == n {
				close(all)
			}
			<-all
			n, err := strconv.Atoi(task.From.(hosts.Accept).Session)
			return hosts.Result{Result: transfer.Result{Frames: int64(n)}}, err
		}))
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				res, err := hosts.Call(t.Context(), g, hosts.OpTransfer, receiving(strconv.Itoa(i)))
				if err != nil || res.Frames != int64(i) {
					t.Errorf("call %d got the answer of call %d: %v", i, res.Frames, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestProgressArrivesInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, transferringHost(func(_ context.Context, _ hosts.Task, progress func(transfer.Progress)) (hosts.Result, error) {
			for i := range 5 {
				progress(transfer.Progress{Bytes: int64(i), Network: &transfer.Network{}})
				time.Sleep(time.Second)
			}
			return hosts.Result{}, nil
		}))
		var got []int64
		_, err := hosts.Watch(t.Context(), g, hosts.OpTransfer, receiving("s"), func(p transfer.Progress) { got = append(got, p.Bytes) })
		require.NoError(t, err)
		require.Equal(t, []int64{0, 1, 2, 3, 4}, got)
	})
}

func TestSlowProgressConsumerDelaysNoCall(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, transferringHost(func(_ context.Context, _ hosts.Task, progress func(transfer.Progress)) (hosts.Result, error) {
			for i := range 10_000 {
				progress(transfer.Progress{Bytes: int64(i)})
			}
			return hosts.Result{Result: transfer.Result{Frames: 1}}, nil
		}))
		blocked, release := make(chan struct{}), make(chan struct{})
		transferred := make(chan error, 1)
		var once sync.Once
		go func() {
			_, err := hosts.Watch(t.Context(), g, hosts.OpTransfer, receiving("s"), func(transfer.Progress) {
				once.Do(func() { close(blocked); <-release })
			})
			transferred <- err
		}()
		<-blocked
		_, err := hosts.Call(t.Context(), g, hosts.OpFacts, hosts.None{})
		require.NoError(t, err, "other calls continue")
		close(release)
		require.NoError(t, <-transferred)
	})
}

func TestCancelWaitsForAgentAnswer(t *testing.T) {
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
				g := start(t, newHost(func(ctx context.Context) error {
					<-ctx.Done()
					time.Sleep(3 * time.Second) // saves its state
					wound.Store(true)
					return ctx.Err()
				}))
				ctx, cancel := c.limit(t.Context())
				defer cancel()
				err := hosts.Run(ctx, g, hosts.OpSnapshot, []string{"tank@a"})
				require.ErrorIs(t, err, c.want)
				require.ErrorContains(t, err, "beta")
				require.True(t, wound.Load(), "the answer comes after the operation has ended")
			})
		})
	}
}

func TestCancelOfStuckOperationTimesOut(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		stuck := make(chan struct{})
		g := start(t, newHost(func(context.Context) error { <-stuck; return nil }))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := hosts.Run(ctx, g, hosts.OpSnapshot, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second+cancelGrace, time.Since(began))
		close(stuck)
	})
}

func TestHalfOpenConnectionEndsBothSides(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		cancelled := make(chan struct{})
		g := start(t, newHost(func(ctx context.Context) error {
			<-ctx.Done()
			close(cancelled)
			return ctx.Err()
		}))
		lost := make(chan error, 1)
		go func() { lost <- hosts.Run(t.Context(), g, hosts.OpSnapshot, nil) }()
		time.Sleep(time.Minute) // pings keep an idle connection alive
		require.Empty(t, lost)
		g.line.cut.Store(true)
		began := time.Now()
		require.ErrorIs(t, <-lost, hosts.ErrLost)
		require.LessOrEqual(t, time.Since(began), silenceTimeout)
		<-cancelled
		require.ErrorContains(t, <-g.served, "no message for 30s")
		require.LessOrEqual(t, time.Since(began), silenceTimeout+pingEvery)

		_, err := hosts.Call(t.Context(), g, hosts.OpFacts, hosts.None{})
		require.ErrorIs(t, err, hosts.ErrLost, "later calls do not wait")
		require.ErrorContains(t, err, "beta: connection to the host was lost: no message for 30s")
	})
}

func TestLargeAnswerMayExceedSilenceTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(nil))
		long := randomText(60 << 10)
		g.host.zfs.Set("tank/a", "org.example:long", long)
		g.line.slow.Store(true)
		began := time.Now()
		got, err := hosts.Call(t.Context(), g, hosts.OpProperties, hosts.PropertyQuery{Names: []string{"tank/a"}, Properties: nil})
		require.NoError(t, err)
		require.Equal(t, long, got["tank/a"]["org.example:long"].Value)
		require.Greater(t, time.Since(began), silenceTimeout)
	})
}

// TestLargeRequestMayExceedSilenceTimeout expects that a request whose upload takes minutes does not end the
// connection, although pings wait behind it, and that a connection that is lost during the upload ends.
func TestLargeRequestMayExceedSilenceTimeout(t *testing.T) {
	names := make([]string, 10000)
	for i := range names {
		names[i] = fmt.Sprintf("tank/a@%050d", i)
	}
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(func(context.Context) error { return nil }))
		g.line.slowOut.Store(true)
		began := time.Now()
		require.NoError(t, hosts.Run(t.Context(), g, hosts.OpSnapshot, names))
		require.Greater(t, time.Since(began), 2*silenceTimeout)
	})
	t.Run("lost", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			g := start(t, newHost(func(context.Context) error { return nil }))
			g.line.slowOut.Store(true)
			time.AfterFunc(time.Minute, func() { g.line.cut.Store(true) })
			began := time.Now()
			require.ErrorIs(t, hosts.Run(t.Context(), g, hosts.OpSnapshot, names), hosts.ErrLost)
			require.LessOrEqual(t, time.Since(began), time.Minute+2*silenceTimeout)
		})
	})
}

func TestLostConnectionReportsTransportError(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		block := make(chan struct{})
		g := start(t, newHost(func(context.Context) error { <-block; return nil }))
		inner := g.line.closing
		g.line.closing = func() error { _ = inner(); return errors.New("ssh: broken pipe") }
		lost := make(chan error, 1)
		go func() { lost <- hosts.Run(t.Context(), g, hosts.OpSnapshot, nil) }()
		synctest.Wait()
		g.server.session.Load().end(errors.New("killed"))
		close(block)
		err := <-lost
		require.ErrorIs(t, err, hosts.ErrLost)
		require.EqualError(t, err, "beta: connection to the host was lost: ssh: broken pipe")
	})
}

func TestCallsDoNotWaitForSlowClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(func(ctx context.Context) error { <-ctx.Done(); time.Sleep(15 * time.Second); return nil }))
		lost := make(chan error, 1)
		go func() { lost <- hosts.Run(t.Context(), g, hosts.OpSnapshot, nil) }()
		synctest.Wait()
		began := time.Now()
		require.NoError(t, g.Close())
		require.Equal(t, 15*time.Second, time.Since(began), "Close waits until the agent has ended")
		require.ErrorIs(t, <-lost, hosts.ErrLost)
	})
}

func TestLogLinesContainHost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(nil))
		g.server.Log("an unauthenticated client connected")
		require.Equal(t, "beta: an unauthenticated client connected", <-g.logs)
	})
}

// TestBlockedLogIsNotSilence expects that blocked log lines do not count as silence of
// the agent. A stopped terminal may block them for any time.
func TestBlockedLogIsNotSilence(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(nil))
		for range cap(g.logs) {
			g.logs <- "full"
		}
		g.server.Log("this one waits")
		time.Sleep(3 * silenceTimeout)
		for range cap(g.logs) {
			<-g.logs
		}
		require.Equal(t, "beta: this one waits", <-g.logs)
		_, err := hosts.Call(t.Context(), g, hosts.OpFacts, hosts.None{})
		require.NoError(t, err)
	})
}

func TestRoundTripIsMeasuredPerPing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(nil))
		base := time.Since(g.started)
		g.rtt.Store(0)
		time.Sleep(9 * time.Second)
		g.handle(&message{Kind: pong, ID: uint64(base)})
		require.Equal(t, 9*time.Second, g.RTT())
		g.handle(&message{Kind: pong, ID: uint64(base + time.Second)})
		require.Equal(t, 8*time.Second, g.RTT(), "the shortest counts")
	})
}

// TestErrorReportsAgentVersion expects an error with the agent's version and a remedy if two
// builds know different fields. Only a forced command can combine such builds.
func TestErrorReportsAgentVersion(t *testing.T) {
	t.Parallel()
	for _, refused := range []error{fmt.Errorf(`%w: json: unknown field "window"`, hosts.ErrMalformed),
		fault.Refusef("ask the administrator of that host for more grants in authorized_keys; the key has: --allow x", `the agent's policy forbids it: %w: json: unknown field "window"`, hosts.ErrMalformed)} {
		r := lyingAgent(t, func(m *message) [][]byte { return [][]byte{encodeError(m, refused)[lengthSize:]} })
		_, err := hosts.Call(t.Context(), r, hosts.OpFacts, hosts.None{})
		require.ErrorContains(t, err, `unknown field "window"`)
		require.Equal(t, fault.ClassOf(refused), fault.ClassOf(err))
		require.Contains(t, fault.HintOf(err), "zxfer there is 1.0")
		require.Contains(t, fault.HintOf(err), "install the same zxfer on both hosts")
		require.NoError(t, r.Close())
	}
}
