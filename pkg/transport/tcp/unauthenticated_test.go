package tcp

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBareAcceptsOnlySecret(t *testing.T) {
	t.Parallel()
	logged := make(chan string, 10)
	l, err := ListenUnauthenticated(t.Context(), Offer{Address: "127.0.0.1", Deadline: unlimited}, func(s string) { logged <- s })
	require.NoError(t, err)
	defer l.Close()
	require.Len(t, l.Secret(), 64)
	say := func(text string) net.Conn {
		c, err := net.Dial("tcp", l.Address())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = io.WriteString(c, text)
		require.NoError(t, err)
		return c
	}
	for _, text := range []string{strings.Repeat("0", 64) + "\n", strings.ToUpper(l.Secret()) + "x", l.Secret() + " ", strings.Repeat("x", 1000)} {
		_, _ = io.ReadAll(say(text)) // until it is dropped
		require.Contains(t, <-logged, "it does not start with the secret")
	}
	short := say(l.Secret()[:63])
	require.NoError(t, short.(*net.TCPConn).CloseWrite())
	require.Contains(t, <-logged, "unexpected EOF")

	own := say(l.Secret() + "\nand what follows")
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	defer c.Close()
	got := make([]byte, len("and what follows"))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, "and what follows", string(got), "no byte after the secret was lost")
	_, err = c.Write([]byte("back"))
	require.NoError(t, err)
	_, err = io.ReadFull(own, got[:4])
	require.NoError(t, err)
	require.Equal(t, "back", string(got[:4]))

	requireClosed(t, l.l)
	_, err = l.Accept(t.Context())
	require.ErrorContains(t, err, "already accepted")
}

func TestBareEndsWithDeadline(t *testing.T) {
	t.Parallel()
	l, err := ListenUnauthenticated(t.Context(), Offer{Address: "127.0.0.1", Deadline: 10 * time.Millisecond}, nil)
	require.NoError(t, err)
	_, err = l.Accept(t.Context())
	require.ErrorIs(t, err, ErrNoPeer)
	require.NoError(t, l.Close())
}
