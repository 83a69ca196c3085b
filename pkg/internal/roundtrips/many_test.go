package roundtrips

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// many creates the datasets tank/a/0 to tank/a/98 on both hosts, and returns all hundred names.
func (w *world) many() []string {
	all := []string{"tank/a"}
	for i := range 99 {
		all = append(all, fmt.Sprint("tank/a/", i))
		for _, h := range w.hosts() {
			h.Create(all[i+1], nil)
		}
	}
	return all
}

// change writes a few bytes to datasets of both hosts.
func (w *world) change(datasets []string, bytes int) {
	for _, h := range w.hosts() {
		for _, d := range datasets {
			h.Write(d, make([]byte, bytes))
		}
	}
}

// limitStreams makes each stream take a moment, and expects at most that many at once on each host. It returns the
// largest number.
func (w *world) limitStreams(most int64) *atomic.Int64 {
	var seen atomic.Int64
	for _, h := range w.hosts() {
		var running atomic.Int64
		around := h.Around
		h.Around = func(ctx context.Context, op string, names []string, do func() error) error {
			if op == zfs.OpSend || op == zfs.OpReceive {
				n := running.Add(1)
				defer running.Add(-1)
				seen.Store(max(seen.Load(), n))
				time.Sleep(time.Microsecond)
			}
			return around(ctx, op, names, do)
		}
	}
	w.t.Cleanup(func() { require.LessOrEqual(w.t, seen.Load(), most) })
	return &seen
}

// TestHundredDatasets counts the round trips of a hundred small increments, which share them: with
// parallel = 2, only two streams use a host at once, but others are on their way meanwhile.
func TestHundredDatasets(t *testing.T) {
	for _, tt := range []struct {
		source, target string
		bytes          int
		most           float64
	}{
		{"", "beta:", 1 << 10, 8},
		{"beta:", "", 1 << 10, 9},
		{"", "beta:", 64 << 10, 8},
		{"beta:", "", 64 << 10, 9},
	} {
		t.Run(fmt.Sprintf("%sto %s, %d bytes", tt.source, tt.target, tt.bytes), func(t *testing.T) {
			inWorld(t, func(w *world) {
				t := w.t
				datasets := w.many()
				r := w.replication(tt.source+"tank/a", "recursive = true\n"+takes, tt.target+"vault/a")
				r.run()
				w.change(datasets, tt.bytes)
				seen := w.limitStreams(2)
				trips, timeline := r.run()
				t.Logf("%.1f round trips", trips)
				require.LessOrEqual(t, trips, tt.most, timeline)
				require.EqualValues(t, 2, seen.Load())
				to := w.beta
				if tt.target == "" {
					to = w.local
				}
				for _, d := range datasets {
					require.Len(t, to.Versions("vault"+d[len("tank"):]), 2, d)
				}
			})
		})
	}
}

// TestHundredDatasetsAfterLoss expects a loss of the connection to interrupt the streams on their way, and the
// command to send them again. It uses one turn, because the fake clock stands still while a stream waits for
// the path search of another.
func TestHundredDatasetsAfterLoss(t *testing.T) {
	for _, from := range []string{"", "beta"} {
		inWorld(t, func(w *world) {
			t := w.t
			datasets := w.many()
			source, target := endpoint.Endpoint{Host: from, Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}
			to, busy, op := w.beta, w.beta, zfs.OpReceive
			if from != "" {
				target.Host, to, op = "", w.local, zfs.OpSend
			}
			send, report := w.send(source, target, func(s *send.Request) { s.Plan.Recursive, s.Retries = true, 3 })
			snapshot := func(suffix string) {
				w.change(datasets, 1<<10)
				for _, h := range w.hosts() {
					for _, name := range datasets {
						require.NoError(t, h.Snapshot(t.Context(), []string{name + suffix}))
					}
				}
			}
			snapshot("@1")
			w.measure(send)
			snapshot("@2")
			around := busy.Around
			var operations atomic.Int64
			busy.Around = func(ctx context.Context, did string, names []string, do func() error) error {
				if n := operations.Add(1); did == op && n == 50 {
					_ = w.shell.Conn.Close() // never fails
					time.Sleep(time.Second)
				}
				return around(ctx, did, names, do)
			}
			w.logins = 0
			w.measure(send)
			require.Equal(t, 2, w.logins)
			interrupted := 0
			for _, r := range report.Results {
				if r.Error != "" {
					interrupted++
				}
			}
			require.NotZero(t, interrupted)
			require.LessOrEqual(t, interrupted, 48)
			for _, name := range datasets {
				require.Len(t, to.Versions("vault"+name[len("tank"):]), 2, name)
			}
		})
	}
}

// TestHundredDatasetsWithFailures expects a send of a hundred small increments, one at a time, to need few
// round trips. Failed receives stop only their datasets.
func TestHundredDatasetsWithFailures(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		datasets := w.many()
		snapshot := func(suffix string) {
			w.change(datasets, 1<<10)
			for _, name := range datasets {
				require.NoError(t, w.local.Snapshot(t.Context(), []string{name + suffix}))
			}
		}
		snapshot("@1")
		send, report := w.send(endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}, func(s *send.Request) { s.Plan.Recursive = true })
		w.measure(send)
		snapshot("@2")
		trips, timeline := w.measure(send)
		t.Logf("%.1f round trips", trips)
		require.LessOrEqual(t, trips, 20.0, timeline)
		snapshot("@3")
		around := w.beta.Around
		w.beta.Around = func(ctx context.Context, op string, names []string, do func() error) error {
			if op == zfs.OpReceive && (names[0] == "vault/a/7" || names[0] == "vault/a/70") {
				return fault.Failf("", "%s: no space", names[0])
			}
			return around(ctx, op, names, do)
		}
		at := hosts.New(w)
		require.ErrorContains(t, send(at), "no space")
		require.NoError(t, at.Close())
		time.Sleep(time.Minute)
		failed := 0
		for _, r := range report.Results {
			if r.Error != "" {
				failed++
				require.Contains(t, r.Error, r.Target+": no space")
			}
		}
		require.Equal(t, 2, failed)
		require.Len(t, report.Results, 100)
		require.Len(t, w.beta.Versions("vault/a/70"), 2)
		require.Len(t, w.beta.Versions("vault/a/71"), 3)
	})
}

// TestHundredDatasetsOverSlowShell expects that a slow remote shell is not taken for lost while
// small streams that together take longer than the limit of silence arrive.
func TestHundredDatasetsOverSlowShell(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		datasets := w.many()
		send, report := w.send(endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}, func(s *send.Request) { s.Plan.Recursive = true })
		for i, suffix := range []string{"@1", "@2"} {
			w.change(datasets, 16<<10)
			for _, name := range datasets {
				require.NoError(t, w.local.Snapshot(t.Context(), []string{name + suffix}))
			}
			w.rate = i * 4 << 10
			w.measure(send)
		}
		require.Equal(t, 2, w.logins, "one for each command")
		require.Greater(t, report.Seconds, 390.0)
	})
}

// TestRollbacksDoNotWaitForOthers expects that no other stream runs between the last check of what a rollback
// destroys and the rollback.
func TestRollbacksDoNotWaitForOthers(t *testing.T) {
	inWorld(t, func(w *world) {
		t := w.t
		datasets := w.many()[:5]
		send, _ := w.send(endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"},
			func(s *send.Request) { s.Plan.Recursive, s.Plan.Rollback = true, true })
		snapshot := func(h *zfsmem.Host, below, suffix string) {
			for _, name := range datasets {
				require.NoError(t, h.Snapshot(t.Context(), []string{below + name[len("tank"):] + suffix}))
			}
		}
		snapshot(w.local, "tank", "@1")
		w.measure(send)
		snapshot(w.beta, "tank", "@other") // so that its GUIDs differ from the local host's
		snapshot(w.beta, "vault", "@theirs")
		w.change(datasets, 1<<10)
		snapshot(w.local, "tank", "@2")
		around, checked := w.beta.Around, ""
		var received, checkedBefore []string
		w.beta.Around = func(ctx context.Context, op string, names []string, do func() error) error {
			switch op {
			case zfs.OpList:
				checked = names[0]
			case zfs.OpReceive:
				if !strings.Contains(names[0], "@") {
					received, checkedBefore = append(received, names[0]), append(checkedBefore, checked)
				}
			}
			return around(ctx, op, names, do)
		}
		w.measure(send)
		require.Len(t, received, len(datasets))
		require.Equal(t, received, checkedBefore)
		for _, name := range datasets {
			require.Len(t, w.beta.Versions("vault"+name[len("tank"):]), 2, name)
		}
	})
}

// TestRetryOfSmallStreamNeedsNoPath expects the retry of a small stream to need no data connection. If the connection to
// the host was lost, the stream goes through the new one: no other path is possible.
func TestRetryOfSmallStreamNeedsNoPath(t *testing.T) {
	for _, lost := range []bool{false, true} {
		inWorld(t, func(w *world) {
			t := w.t
			w.net.Refuses = true
			w.snapshot("1", 1<<10)
			around, receives := w.beta.Around, 0
			w.beta.Around = func(ctx context.Context, op string, names []string, do func() error) error {
				if op == zfs.OpReceive {
					if receives++; receives == 1 && lost {
						_ = w.shell.Conn.Close() // never fails
					}
					if receives == 1 {
						return &zfs.Error{Kind: zfs.Busy, Op: op, Subject: names[0]}
					}
				}
				return around(ctx, op, names, do)
			}
			send, _ := w.send(endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}, func(s *send.Request) { s.Retries = 1 })
			if !lost {
				w.measure(send)
				require.Len(t, w.beta.Versions("vault/a"), 1)
				return
			}
			at := hosts.New(w)
			require.NoError(t, send(at))
			require.Len(t, w.beta.Versions("vault/a"), 1)
			require.NoError(t, at.Close())
			time.Sleep(time.Minute)
		})
	}
}

// TestSmallDatasetsNeedNoTurn expects that datasets with small streams do not wait for a large one, which may use the
// only turn for hours.
func TestSmallDatasetsNeedNoTurn(t *testing.T) {
	for _, from := range []string{"", "beta"} {
		inWorld(t, func(w *world) {
			t := w.t
			datasets := w.many()
			source, target, to := endpoint.Endpoint{Host: from, Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}, w.beta
			if from != "" {
				target.Host, to = "", w.local
			}
			w.change(datasets[:99], 1<<10)
			w.change(datasets[99:], 1<<20)
			turns := 0
			send, _ := w.send(source, target, func(s *send.Request) {
				s.Plan.Recursive = true
				s.Gate = func(context.Context) (func(), error) {
					turns++
					time.Sleep(time.Hour)
					require.Len(t, to.Versions("vault/a/97"), 1)
					return func() {}, nil
				}
			})
			for _, h := range w.hosts() {
				for _, name := range datasets {
					require.NoError(t, h.Snapshot(t.Context(), []string{name + "@1"}))
				}
			}
			w.measure(send)
			require.Equal(t, 1, turns)
		})
	}
}
