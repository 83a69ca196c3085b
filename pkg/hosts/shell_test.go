package hosts

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport"
	"zxfer/pkg/transport/mux"
)

// shellHost counts the data connections through its remote shell.
type shellHost struct {
	Host
	session *mux.Session
	dials   int
	refuse  error
}

func (h *shellHost) Name() string { return "beta" }

func (h *shellHost) Close() error { return nil }

func (h *shellHost) Dial(ctx context.Context, address string) (*mux.Stream, error) {
	if h.dials++; h.refuse != nil {
		return nil, h.refuse
	}
	return h.session.Open(ctx, address)
}

// shellOpener opens a new shellHost each time.
type shellOpener struct{ opened []*shellHost }

func (o *shellOpener) Open(context.Context, Address) (Host, error) {
	h := &shellHost{session: mux.New(io.Discard, "")}
	o.opened = append(o.opened, h)
	return h, nil
}

// TestShellSharesTheConnection expects that one data connection at a time shares the connection of the operations, that
// its successor shares it again, also after a failed dial, and that only further ones log in.
func TestShellSharesTheConnection(t *testing.T) {
	t.Parallel()
	open := &shellOpener{}
	shell := New(open).Get("beta", &transport.Settings{}).Shell()
	dial := func() (io.Closer, error) { return shell.Dial(t.Context(), "127.0.0.1:1", transport.Socket{}) }
	must := func() io.Closer {
		s, err := dial()
		require.NoError(t, err)
		return s
	}
	first := must()
	main := open.opened[0]
	require.Equal(t, 1, main.dials)
	require.NoError(t, first.Close())
	main.refuse = errors.New("no listener")
	_, err := dial()
	require.ErrorIs(t, err, main.refuse)
	main.refuse = nil
	second := must()
	require.NoError(t, first.Close()) // frees nothing more
	further := must()
	require.Equal(t, 3, main.dials)
	require.Len(t, open.opened, 2)
	require.NoError(t, further.Close())
	require.NoError(t, second.Close())
	require.NoError(t, must().Close())
	require.Equal(t, 4, main.dials)
}
