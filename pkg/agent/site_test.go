package agent_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/site"
	"zxfer/pkg/site/sitetest"
)

// pipes is a Transport to an agent in this process, over real pipes.
type pipes struct {
	in, out *os.File
	ended   chan struct{}
	close   func() error
}

func (p *pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pipes) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p *pipes) Close() error                { return p.close() }

func TestRemoteIsASite(t *testing.T) {
	sitetest.Run(t, func(t *testing.T) site.Full {
		requestsR, requestsW, err := os.Pipe()
		require.NoError(t, err)
		answersR, answersW, err := os.Pipe()
		require.NoError(t, err)
		p := &pipes{in: answersR, out: requestsW, ended: make(chan struct{})}
		p.close = sync.OnceValue(func() error {
			_ = requestsW.Close()
			<-p.ended
			return answersR.Close()
		})
		server := &agent.Server{Version: "test"}
		server.Site = site.NewLocal("test", server.Log)
		go func() {
			defer close(p.ended)
			if err := server.Serve(context.Background(), requestsR, answersW); err != nil {
				t.Errorf("agent: %v", err)
			}
			_ = requestsR.Close()
			_ = answersW.Close()
		}()
		r, err := agent.NewRemote(t.Context(), "beta", p, func(line string) { t.Log(line) })
		require.NoError(t, err)
		return r
	})
}
