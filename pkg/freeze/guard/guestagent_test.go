package guard

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/freeze"
	"zxfer/pkg/testenv"
)

// machine simulates an agent. A test in a virtual machine covers the real one.
type machine struct {
	mu       sync.Mutex
	asked    []string
	status   string
	answer   func(command string) string // "" = like the real agent
	leftover string                      // output that an earlier client did not read
}

func (m *machine) listen(t *testing.T) freeze.Spec {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "qga")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	m.status = "thawed"
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			m.serve(c)
		}
	}()
	return freeze.Spec{Kind: freeze.GuestAgent, Socket: socket, Timeout: testenv.Timeout()}
}

func (m *machine) serve(c net.Conn) {
	defer c.Close()
	_, _ = fmt.Fprint(c, m.leftover)
	for in := bufio.NewScanner(c); in.Scan(); {
		var q struct {
			Execute   string
			Arguments struct{ ID int }
		}
		_ = json.Unmarshal([]byte(strings.TrimPrefix(in.Text(), "\xff")), &q)
		if q.Execute == "guest-sync-delimited" {
			_, _ = fmt.Fprintf(c, "\xff{\"return\": %d}\n", q.Arguments.ID)
			continue
		}
		_, _ = fmt.Fprint(c, m.carryOut(strings.TrimPrefix(q.Execute, "guest-fsfreeze-")))
	}
}

func (m *machine) carryOut(command string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, command)
	if m.answer != nil {
		if a := m.answer(command); a != "" {
			return a
		}
	}
	switch command {
	case "freeze":
		m.status = "frozen"
		return `{"return": 1}` + "\n"
	case "thaw":
		m.status = "thawed"
		return `{"return": 1}` + "\n"
	}
	return fmt.Sprintf("{\"return\": %q}\n", m.status)
}

func (m *machine) done() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

func TestGuestAgent(t *testing.T) {
	t.Parallel()
	m := &machine{leftover: "{\"return\": \"frozen\"}\nhalf a line "}
	spec := m.listen(t)
	g := begin(t, request(spec))
	require.False(t, g.Stopped, g.Outcomes)
	require.Empty(t, g.Finish()[0].Error)
	require.Equal(t, []string{"status", "freeze", "status", "thaw"}, m.done())
}

// TestMisbehavingGuestAgent expects that a machine that thawed by itself does not count as
// frozen, and that a machine frozen by others is not touched. A machine that hangs or sends
// nonsense is thawed if it accepts the command.
func TestMisbehavingGuestAgent(t *testing.T) {
	t.Parallel()
	m := &machine{}
	spec := m.listen(t)
	g := begin(t, request(spec))
	m.mu.Lock()
	m.status = "thawed"
	m.mu.Unlock()
	require.Contains(t, g.Finish()[0].Error, `after the snapshot its filesystems were`)

	m = &machine{}
	spec = m.listen(t)
	m.status = "frozen"
	g = begin(t, request(spec))
	require.True(t, g.Stopped)
	require.Contains(t, g.Cancel()[0].Error, "already")
	require.Equal(t, []string{"status"}, m.done(), "frozen by another program")

	for name, answer := range map[string]string{
		"an error":     `{"error": {"class": "GenericError", "desc": "failed to freeze /: ` + `\u001b[2J"}}` + "\n",
		"not an error": `{"return": 0}` + "\n",
		"another type": `{"return": "one"}` + "\n",
		"not JSON":     "\x00\x01\n",
		"too long":     strings.Repeat("x", 2*maxReply),
		"silence":      " ",
	} {
		freeze := func(timeout time.Duration) error {
			m := &machine{answer: func(command string) string {
				if command == "freeze" {
					return answer
				}
				return ""
			}}
			spec := m.listen(t)
			spec.Timeout = timeout
			g := begin(t, request(spec))
			require.True(t, g.Stopped, name)
			why := g.Cancel()[0].Error
			require.NotEmpty(t, why, name)
			require.NotContains(t, why, "\x1b")
			require.LessOrEqual(t, len(why), 2048)
			asked := m.done()
			if !slices.Contains(asked, "freeze") {
				return fmt.Errorf("the agent got only %q within %s", asked, timeout)
			}
			require.Equal(t, name != "an error", asked[len(asked)-1] == "thaw", name)
			return nil
		}
		if name == "silence" { // only this one reaches its timeout
			testenv.Widen(t, time.Second, freeze)
		} else {
			require.NoError(t, freeze(testenv.Timeout()))
		}
	}
}
