package guard

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/freeze"
)

// slow is a machine whose agent carries out one command after the other, as the real one
// does, and whose first freeze takes longer than anybody waits.
type slow struct {
	frozen atomic.Bool
	lines  chan line
	// forgets what came meanwhile, and hangs up.
	forgets bool
}

type line struct {
	text string
	from net.Conn
}

const slowly = 2500 * time.Millisecond

func (m *slow) listen(t *testing.T) freeze.Spec {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "qga")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	m.lines = make(chan line, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				for in := bufio.NewScanner(c); in.Scan(); {
					m.lines <- line{in.Text(), c}
				}
			}()
		}
	}()
	go m.work()
	return freeze.Spec{Kind: freeze.GuestAgent, Socket: socket, Within: 500 * time.Millisecond}
}

func (m *slow) work() {
	wait := slowly
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
			time.Sleep(wait)
			wait = 0
			m.frozen.Store(true)
			for m.forgets && len(m.lines) > 0 {
				_ = (<-m.lines).from.Close()
			}
		case strings.Contains(l.text, "thaw"):
			m.frozen.Store(false)
		}
		_, _ = fmt.Fprintf(l.from, "{\"return\":%s}\n", answer)
	}
}

func (m *slow) thaws(t *testing.T) {
	t.Helper()
	time.Sleep(slowly) // it froze
	require.Eventually(t, func() bool { return !m.frozen.Load() }, 10*time.Second, 20*time.Millisecond)
}

// A machine that freezes when nobody waits for that any more is thawed: by what its agent
// was told already, by the watchdog, which outlasts its word to the run, and by the next
// run, where that was killed.
func TestMachineThatFreezesTooLate(t *testing.T) {
	t.Setenv("GUARD_TEST_PATIENCE", "500ms")
	start := func(dir string, spec freeze.Spec) *Guard {
		g, err := Start(t.Context(), dir, request(spec))
		require.NoError(t, err)
		return g
	}
	notes := func(dir string) []string {
		names, err := filepath.Glob(filepath.Join(dir, notePrefix+"*"))
		require.NoError(t, err)
		return names
	}
	late := func(m *slow, dir string) (*Guard, freeze.Spec) {
		spec := m.listen(t)
		g := start(dir, spec)
		require.True(t, g.Stopped)
		begun := time.Now()
		o := g.Drop()[0]
		require.Less(t, time.Since(begun), slowly/2, "the run is told in time")
		require.True(t, o.Left, o)
		require.Contains(t, o.Error, "may be frozen")
		require.False(t, m.frozen.Load(), "not yet")
		return g, spec
	}

	queued, dir := &slow{}, t.TempDir()
	g, _ := late(queued, dir)
	g.kill()
	queued.thaws(t)

	outlasting, dir := &slow{forgets: true}, t.TempDir()
	late(outlasting, dir)
	outlasting.thaws(t)
	require.Eventually(t, func() bool {
		s, err := os.Stat(notes(dir)[0])
		return err == nil && s.Size() == 0
	}, 5*time.Second, 20*time.Millisecond, "nobody need thaw it again")

	killed, dir := &slow{forgets: true}, t.TempDir()
	g, spec := late(killed, dir)
	g.kill()
	time.Sleep(slowly)
	require.True(t, killed.frozen.Load())
	g = start(dir, spec)
	require.False(t, g.Stopped, g.Outcomes)
	require.Empty(t, g.Take()[0].Error)
	require.False(t, killed.frozen.Load())
	require.Empty(t, notes(dir))
}
