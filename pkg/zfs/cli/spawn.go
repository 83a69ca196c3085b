package cli

import (
	"errors"
	"os/exec"
	"runtime"
	"sync"
)

// errClosed is returned for what is started after Close.
var errClosed = errors.New("closed")

// spawner starts children from one thread that lives as long as it does.
// PR_SET_PDEATHSIG fires when the thread that forked ends, not the process,
// and Go ends threads as it likes (https://go.dev/issue/27505). So children
// that must not outlive this process, however it dies, are started from here.
type spawner struct {
	start    sync.Once
	requests chan spawnRequest
	closed   chan struct{}
	stop     sync.Once
}

type spawnRequest struct {
	cmd  *exec.Cmd
	done chan error
}

func newSpawner() *spawner {
	return &spawner{requests: make(chan spawnRequest), closed: make(chan struct{})}
}

// run starts cmd on the spawner's thread.
func (s *spawner) run(cmd *exec.Cmd) error {
	s.start.Do(func() { go s.serve() })
	req := spawnRequest{cmd, make(chan error, 1)}
	select {
	case s.requests <- req:
		return <-req.done
	case <-s.closed:
		return errClosed
	}
}

// serve never unlocks its thread: when it returns, the thread ends, and with
// it every child.
func (s *spawner) serve() {
	runtime.LockOSThread()
	for {
		select {
		case req := <-s.requests:
			req.done <- req.cmd.Start()
		case <-s.closed:
			return
		}
	}
}

func (s *spawner) close() { s.stop.Do(func() { close(s.closed) }) }
