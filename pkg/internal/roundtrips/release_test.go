package roundtrips

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/zfs"
)

// open returns how many data connections and their listeners are open on both hosts.
func (w *world) open() [2]int { return [2]int{w.net.Open(localAddress), w.net.Open(betaAddress)} }

// TestUnusedConnections expects that the connections that the path search made are closed on both hosts if
// no stream can use them. The search runs before the command takes its snapshot, and makes eight connections
// because the size of the stream is not known yet.
func TestUnusedConnections(t *testing.T) {
	searched, none, failed := [2]int{8, 8}, [2]int{}, errors.New("no space")
	for name, tt := range map[string]struct {
		holds    bool
		snapshot func(w *world) error // after the search
		after    time.Duration        // from the end of the command to the check
		want     [2]int
	}{
		"the stream is small":    {snapshot: func(*world) error { return nil }, want: none},
		"the command fails":      {snapshot: func(*world) error { return failed }, after: 3 * oneWay, want: none},
		"they are too old":       {snapshot: func(w *world) error { time.Sleep(31 * time.Second); require.Equal(t, none, w.open()); return nil }, want: none},
		"beta keeps its end":     {holds: true, snapshot: func(*world) error { return failed }, after: 6 * time.Second, want: [2]int{0, 8}},
		"the command ends there": {snapshot: func(*world) error { return failed }, want: searched},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				t := w.t
				w.holds = tt.holds
				for _, h := range w.hosts() {
					h.Write("tank/a", make([]byte, 1<<20))
				}
				w.local.Around = func(_ context.Context, op string, _ []string, do func() error) error {
					if op == zfs.OpSnapshot {
						time.Sleep(2 * oneWay) // until beta has accepted them
						require.Equal(t, searched, w.open())
						if err := tt.snapshot(w); err != nil {
							return err
						}
					}
					return do()
				}
				arrived := 0
				w.beta.Around = func(_ context.Context, op string, _ []string, do func() error) error {
					if op == zfs.OpReceive {
						arrived++
						require.Equal(t, [2]int{1, 1}, w.open(), "the connection of the stream")
					}
					return do()
				}
				send, _ := w.send(endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"},
					func(s *job.Send) { s.TakeSnapshot, s.Plan.Snapshot = "1", "1" })
				at := hosts.New(w)
				err := send(at)
				require.True(t, err == nil && arrived > 0 || errors.Is(err, failed), err)
				time.Sleep(tt.after)
				require.Equal(t, tt.want, w.open())
				require.NoError(t, at.Close())
				time.Sleep(time.Minute)
				require.Equal(t, none, w.open())
				require.Equal(t, 1, w.logins)
			})
		})
	}
}
