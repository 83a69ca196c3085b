package netcat

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
)

// at is where an end is.
type at struct {
	local bool
	site  hosts.Host
}

func (a *at) Local() bool                                                { return a.local }
func (a *at) Label() string                                              { return a.site.Name() }
func (a *at) Do(_ context.Context, f func(hosts.Host) error) error       { return f(a.site) }
func (a *at) RTT() time.Duration                                         { return 0 }
func (a *at) Relay(context.Context, string, func(error)) (string, error) { return "", nil }

// Noise crosses in both directions, for as long as it was asked to, and leaves
// nothing behind.
func TestNoise(t *testing.T) {
	t.Parallel()
	for _, nc := range []string{"nc.openbsd", "nc.traditional", "ncat", "busybox nc"} {
		t.Run(nc, func(t *testing.T) {
			t.Parallel()
			_, h := open(t, nc, keeps)
			local := hosts.NewLocal("test", func(string) {})
			t.Cleanup(func() { _ = local.Close() })
			here, there := &at{true, local}, &at{false, h}
			link, err := connect.Choose(transport.Settings{Wire: transport.NC, DataAddress: "127.0.0.1"}, connect.Side{Host: here}, connect.Side{Host: there})
			require.NoError(t, err)
			for _, c := range []struct{ from, to *at }{{here, there}, {there, here}} {
				testenv.Widen(t, 200*time.Millisecond, func(asked time.Duration) error {
					began := time.Now()
					res, err := connect.Run(t.Context(), link, connect.From{Host: c.from, What: hosts.Noise{Time: asked}},
						connect.To{Host: c.to, What: hosts.Nowhere{}}, connect.Count{}, nil)
					require.NoError(t, err)
					require.Greater(t, time.Since(began), asked)
					require.Equal(t, "nc", res.Wire)
					require.Equal(t, res.Sent.Pace.Bytes, res.Received.Pace.Bytes)
					if p := res.Sent.Pace; p.Bytes == 0 || p.Seconds < asked.Seconds()/2 { // counted from its first byte on
						return fmt.Errorf("%d bytes in %.3fs", p.Bytes, p.Seconds)
					}
					return nil
				})
			}
		})
	}
}

// What these tools cannot do is refused before anything runs there.
func TestEndsThatAreRefused(t *testing.T) {
	t.Parallel()
	_, h := open(t, anyNC(t), keeps)
	_, err := h.OpenFrom(t.Context(), hosts.ReadDevice{}, offer(), 0)
	require.ErrorContains(t, err, "beta: without zxfer there it cannot copy devices")
	_, err = h.OpenTo(t.Context(), hosts.WriteDevice{}, offer(), 0)
	require.ErrorContains(t, err, "beta: without zxfer there it cannot copy devices")
}
