package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/tcp"
)

// TestMain runs the command instead of the tests if PIPES is set.
func TestMain(m *testing.M) {
	if os.Getenv("PIPES") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func pipes(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), "PIPES=1")
	return cmd
}

// TestPipes expects that every transport passes all produced bytes to the consumer, also as a bare
// loop.
func TestPipes(t *testing.T) {
	t.Parallel()
	for _, mode := range []tcp.Mode{tcp.Plain, tcp.Signed, tcp.TLS} {
		testPipes(t, string(mode), "dial", "listen", string(mode), "1", "127.0.0.1")
		testPipes(t, string(mode)+" loop", "dial-loop", "listen-loop", string(mode), "127.0.0.1")
	}
}

func testPipes(t *testing.T, name, sender string, receiver ...string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
		defer cancel()
		ticket := filepath.Join(t.TempDir(), "ticket")
		listen, consume := pipes(ctx, append(receiver, ticket)...), pipes(ctx, "consume", "1ms", "1ms")
		produce, dial := pipes(ctx, "produce", "3"), pipes(ctx, sender, ticket)
		var told strings.Builder
		consume.Stderr = &told
		join(t, listen, consume)
		require.Eventually(t, func() bool { _, err := os.Stat(ticket); return err == nil }, testenv.Timeout(), 5*time.Millisecond)
		join(t, produce, dial)
		for _, cmd := range []*exec.Cmd{produce, dial, listen, consume} {
			require.NoError(t, cmd.Wait())
		}
		require.Equal(t, "3145728 bytes\n", told.String())
	})
}

// join starts two commands with a pipe between them.
func join(t *testing.T, from, to *exec.Cmd) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	from.Stdout, to.Stdin = w, r
	require.NoError(t, from.Start())
	require.NoError(t, to.Start())
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
}

func TestWrongArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"listen", "signed"}, {"produce", "much"}, {"dial", filepath.Join(t.TempDir(), "none")}} {
		require.Error(t, run(t.Context(), args), args)
	}
}
