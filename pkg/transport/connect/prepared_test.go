package connect

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// countingHost counts the offers of a host.
type countingHost struct {
	hosts.Host
	offers atomic.Int64
}

func (c *countingHost) Run(ctx context.Context, r *hosts.Request) error {
	if r.Op.Name() == hosts.OpOffer.Name() {
		c.offers.Add(1)
	}
	return c.Host.Run(ctx, r)
}

// TestPreparedConnections expects that the first suitable transfer uses the connections that the search
// made, and that others offer their own.
func TestPreparedConnections(t *testing.T) {
	t.Parallel()
	const bytes = 32 << 20
	noise := func(l Link, local *host, remote *relayed) error {
		_, err := Run(t.Context(), l, From{Host: local, What: hosts.Noise{Time: 10 * time.Millisecond}}, To{remote, hosts.Nowhere{}}, Count{Total: bytes}, nil)
		return err
	}
	for _, tt := range []struct {
		name     string
		expected func(Link) Link
		change   func(l *Link, remote *relayed)
		offers   int64 // of the search and two transfers
	}{
		{"the first transfer", func(l Link) Link { return l.Expecting(false, bytes) }, nil, 2},
		{"nothing expected", func(l Link) Link { return l }, nil, 3},
		{"another wire", func(l Link) Link { return l.Expecting(true, bytes) }, nil, 3},
		{"more connections", func(l Link) Link { return l.Expecting(false, bytes) }, func(l *Link, _ *relayed) { l.Streams = 3 }, 3},
		{"too old", func(l Link) Link { return l.Expecting(false, bytes) }, func(l *Link, _ *relayed) {
			l.ready.Load().expiry.Reset(0)
			for l.ready.Load() != nil {
				time.Sleep(time.Millisecond)
			}
		}, 3},
		{"released", func(l Link) Link { return l.Expecting(false, bytes) }, func(l *Link, _ *relayed) {
			l.Release()
			for l.ready.Load() != nil {
				time.Sleep(time.Millisecond)
			}
		}, 3},
		{"the listening host restarted", func(l Link) Link { return l.Expecting(false, bytes) }, func(_ *Link, remote *relayed) {
			c := remote.site.(*countingHost)
			_ = c.Close()
			c.Host = hosts.NewLocal("test", func(string) {})
		}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			local, remote, _ := pair(t, transport.Settings{})
			counted := &countingHost{Host: remote.site}
			remote.site = counted
			facts := hosts.Facts{Boot: "1", SSHLocal: "127.0.0.1", SSHPeer: "127.0.0.1", TCP: tcp.ReadTCP(os.DirFS("/"))}
			l := tt.expected(mustChoose(t, transport.Settings{}, Side{Host: local, Facts: facts}, Side{Host: remote, Facts: facts}))
			l.probeDeadline = testenv.Timeout()
			l, err := l.Open(t.Context(), func(text string) { t.Error(text) })
			require.NoError(t, err)
			if tt.change != nil {
				tt.change(&l, remote)
			}
			require.NoError(t, noise(l, local, remote))
			require.NoError(t, noise(l, local, remote))
			require.Equal(t, tt.offers, counted.offers.Load())
			_ = remote.site.Close()
		})
	}
}
