package guard

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/freeze"
	"zxfer/pkg/testenv"
)

// slow is a machine whose agent runs commands in sequence, like the real agent. Its first freeze
// lasts until the test releases it.
type slow struct {
	frozen  atomic.Bool
	lines   chan line
	readers atomic.Int32  // connections that the machine reads
	thaws   atomic.Int32  // commands to thaw that arrived
	release chan struct{} // closed by the test: the first freeze takes effect
	froze   chan struct{} // closed after the first freeze
	// forgets drops the commands that arrived during the freeze, and closes the connection.
	forgets bool
}

type line struct {
	text string
	from net.Conn
}

func (m *slow) listen(t *testing.T) freeze.Spec {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "qga")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	m.lines, m.release, m.froze = make(chan line, 100), make(chan struct{}), make(chan struct{})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			m.readers.Add(1)
			go func() {
				defer m.readers.Add(-1)
				for in := bufio.NewScanner(c); in.Scan(); {
					m.lines <- line{in.Text(), c}
					if strings.Contains(in.Text(), "-thaw") {
						m.thaws.Add(1)
					}
				}
			}()
		}
	}()
	go m.work()
	return freeze.Spec{Kind: freeze.GuestAgent, Socket: socket}
}

func (m *slow) work() {
	first := sync.OnceFunc(func() { <-m.release })
	for l := range m.lines {
		answer := "1"
		switch {
		case strings.Contains(l.text, "sync"):
			_, id, _ := strings.Cut(l.text, `"id":`)
			_, _ = fmt.Fprintf(l.from, "\xff{\"return\":%s}\n", strings.TrimRight(id, "}"))
			continue
		case strings.Contains(l.text, "status"):
			answer = `"thawed"`
			if m.frozen.Load() {
				answer = `"frozen"`
			}
		case strings.Contains(l.text, "freeze-freeze"):
			first()
			m.frozen.Store(true)
			for m.forgets && len(m.lines) > 0 {
				_ = (<-m.lines).from.Close()
			}
			select {
			case <-m.froze:
			default:
				close(m.froze)
			}
		case strings.Contains(l.text, "thaw"):
			m.frozen.Store(false)
		}
		_, _ = fmt.Fprintf(l.from, "{\"return\":%s}\n", answer)
	}
}

// releaseAndWait releases the machine, which then freezes, and waits until it is thawed.
func (m *slow) releaseAndWait(t *testing.T) {
	t.Helper()
	close(m.release)
	<-m.froze
	require.Eventually(t, func() bool { return !m.frozen.Load() }, testenv.Timeout(), 20*time.Millisecond)
}

// lateFreeze starts a guard for a machine that does not freeze in time, and drops the guard.
func lateFreeze(t *testing.T, forgets bool) (m *slow, g *Guard, dir string, spec freeze.Spec) {
	t.Helper()
	testenv.Widen(t, 500*time.Millisecond, func(patience time.Duration) error {
		m, dir = &slow{forgets: forgets}, t.TempDir()
		spec = m.listen(t)
		spec.Timeout = patience
		t.Setenv("GUARD_TEST_PATIENCE", patience.String())
		var err error
		g, err = Start(t.Context(), dir, request(spec))
		require.NoError(t, err)
		require.True(t, g.Stopped)
		o := g.Cancel()[0]
		require.False(t, m.frozen.Load(), "not yet")
		if !o.ThawFailed || !strings.Contains(o.Error, "may be frozen") || m.thaws.Load() == 0 {
			g.kill()
			close(m.release)
			return fmt.Errorf("the agent got no command to thaw: %+v", o)
		}
		return nil
	})
	return m, g, dir, spec
}

// TestLateFreezeIsThawed expects that a machine that freezes after the timeout is thawed.
// Its queued command, the watchdog after its last message to the run, or the next run after a
// killed watchdog thaws it.
func TestLateFreezeIsThawed(t *testing.T) {
	notes := func(dir string) []string {
		names, err := filepath.Glob(filepath.Join(dir, notePrefix+"*"))
		require.NoError(t, err)
		return names
	}

	queued, g, _, _ := lateFreeze(t, false)
	g.kill()
	queued.releaseAndWait(t)

	outlasting, _, dir, _ := lateFreeze(t, true)
	outlasting.releaseAndWait(t)
	require.Eventually(t, func() bool {
		s, err := os.Stat(notes(dir)[0])
		return err == nil && s.Size() == 0
	}, testenv.Timeout(), 20*time.Millisecond, "the note is empty after the thaw")

	killed, g, dir, spec := lateFreeze(t, true)
	g.kill()
	require.Eventually(t, func() bool { // its note is unlocked, and the agent has read what it sent
		f, err := os.Open(notes(dir)[0])
		require.NoError(t, err)
		defer f.Close()
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && killed.readers.Load() == 0
	}, testenv.Timeout(), 20*time.Millisecond)
	close(killed.release)
	<-killed.froze
	require.True(t, killed.frozen.Load())
	spec.Timeout = testenv.Timeout()
	t.Setenv("GUARD_TEST_PATIENCE", testenv.Timeout().String())
	g, err := Start(t.Context(), dir, request(spec))
	require.NoError(t, err)
	require.False(t, g.Stopped, g.Outcomes)
	require.Empty(t, g.Finish()[0].Error)
	require.False(t, killed.frozen.Load())
	require.Empty(t, notes(dir))
}
