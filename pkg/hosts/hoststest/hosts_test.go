package hoststest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/agentless"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs/zfstest"
)

func TestLocalIsAHost(t *testing.T) {
	conforms(t, func(t *testing.T) hosts.Host { return hosts.NewLocal("test", func(line string) { t.Log(line) }) })
}

// pipes is a Transport to an agent in this process, over real pipes.
type pipes struct {
	*os.File // replies of the agent
	requests *os.File
	ended    chan struct{}
}

func (p *pipes) Write(b []byte) (int, error) { return p.requests.Write(b) }

func (p *pipes) Close() error {
	_ = p.requests.Close()
	<-p.ended
	return p.File.Close()
}

func TestRemoteIsAHost(t *testing.T) {
	conforms(t, func(t *testing.T) hosts.Host {
		requests, requestsW, err := os.Pipe()
		require.NoError(t, err)
		answers, answersW, err := os.Pipe()
		require.NoError(t, err)
		p := &pipes{answers, requestsW, make(chan struct{})}
		server := &agent.Server{Version: "test"}
		server.Host = hosts.NewLocal("test", server.Log)
		go func() {
			defer close(p.ended)
			if err := server.Serve(context.Background(), requests, answersW); err != nil {
				t.Errorf("agent: %v", err)
			}
			_ = requests.Close()
			_ = answersW.Close()
		}()
		r, err := agent.NewRemote(t.Context(), "beta", p, func(line string) { t.Log(line) })
		require.NoError(t, err)
		return r
	})
}

// TestShellHostIsAHost expects that a host reached through a local shell passes the suite for all hosts.
func TestShellHostIsAHost(t *testing.T) {
	zfstest.Require(t)
	login := filepath.Join(t.TempDir(), "login")
	testenv.WriteProgram(t, login, "#!/bin/sh\nexec sh -c \"$2\"\n")
	shared, err := sshexec.StartMaster(t.Context(), sshexec.Options{Host: "beta", Command: "/bin/sh " + shellquote.Join(login)})
	require.NoError(t, err)
	h, err := agentless.Open(t.Context(), shared, false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	run(t, &suite{host: h}, datasets(), newRealPool)
}
