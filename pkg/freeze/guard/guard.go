// Package guard freezes applications while a snapshot is taken.
//
// Its nouns:
//
//	watchdog  a process that freezes and thaws, even if the run that started it dies
//	Guard     the run's handle on its watchdog
//	app       one application, with freeze, prove and thaw
//	keeper    the watchdog's goroutine for one frozen application
//	note      a file that lists frozen applications, for recovery after a crash
//
// The package takes no snapshots and knows nothing of jobs.
package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"zxfer/pkg/freeze"
	"zxfer/pkg/zfs/cli"
)

// Verb is the hidden verb of zxfer that calls Serve.
const Verb = "freeze-guard"

// messageTaken is the message that the snapshots are taken.
const messageTaken = "taken"

// Guard is the handle on a running watchdog.
type Guard struct {
	FreezeResult

	request *freeze.Request
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  *cli.Tail
	note    *os.File // nil if it could not be written
	ended   chan []freeze.Outcome
}

// FreezeResult is the result of freezing.
type FreezeResult struct {
	Outcomes []freeze.Outcome
	DataDirs [][]string // data directories of each, as far as known
	Stopped  bool       // a required application could not be frozen
}

// grace is added to the watchdog's own timeouts before it is killed.
const grace = 5 * time.Second

// Start starts a watchdog, which is this program again, and returns when all applications are
// frozen or have failed. The caller must call Finish or Cancel.
//
// dir holds the notes until the host reboots. If it is not writable, nothing thaws the
// applications after the run and its watchdog are both killed.
func Start(ctx context.Context, dir string, q *freeze.Request) (*Guard, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	thawNotes(dir)
	g := &Guard{request: q, stderr: &cli.Tail{}, ended: make(chan []freeze.Outcome, 1)}
	// A separate session survives the end of the run's terminal or process group.
	g.cmd = &exec.Cmd{Path: "/proc/self/exe", Args: []string{"zxfer", Verb}, Dir: "/", Env: append(os.Environ(), "LC_ALL=C"),
		Stderr: g.stderr, SysProcAttr: &syscall.SysProcAttr{Setsid: true}, WaitDelay: grace}
	var err error
	if g.stdin, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if g.note, err = writeNote(dir, q); err == nil {
		g.cmd.ExtraFiles = []*os.File{g.note} // noteFD
	}
	if err := g.cmd.Start(); err != nil {
		g.closeNote(false)
		return nil, fmt.Errorf("freeze watchdog: %w", err)
	}
	first := make(chan *freezeMessage, 1)
	go g.read(stdout, first)
	if err := json.NewEncoder(g.stdin).Encode(q); err != nil {
		g.Cancel()
		return nil, fmt.Errorf("freeze watchdog: %w: %s", err, strings.TrimSpace(g.stderr.String()))
	}
	limit := grace
	for i := range q.Applications { // applications are frozen one after the other
		limit += q.Applications[i].Timeout + waitDelay
	}
	timer := time.AfterFunc(limit, g.kill)
	defer timer.Stop()
	select {
	case b := <-first:
		if b == nil {
			outcomes := g.Cancel()
			return nil, fmt.Errorf("freeze watchdog ended: %s", outcomes[0].Error)
		}
		g.FreezeResult = FreezeResult{Outcomes: b.Outcomes, Stopped: b.Stopped, DataDirs: make([][]string, len(b.Frozen))}
		for i, f := range b.Frozen {
			g.DataDirs[i] = f.DataDirs
		}
		return g, nil
	case <-ctx.Done():
		g.Cancel()
		return nil, context.Cause(ctx)
	}
}

// read receives the watchdog's messages. If the watchdog ends without its last message, read thaws
// the applications itself.
func (g *Guard) read(out io.Reader, first chan<- *freezeMessage) {
	messages := json.NewDecoder(out)
	b, e := &freezeMessage{}, &thawMessage{}
	err := messages.Decode(b)
	if n := len(g.request.Applications); err != nil || len(b.Outcomes) != n || len(b.Frozen) != n {
		b = nil
	}
	if b != nil {
		first <- b
		err = messages.Decode(e)
	}
	if b == nil || err != nil || len(e.Outcomes) != len(g.request.Applications) {
		g.kill()
		e.Outcomes = g.rescue(b)
	}
	if b == nil {
		first <- nil
	}
	g.ended <- e.Outcomes
	_ = g.cmd.Wait() // it has reported its result, and may retry a thaw
}

// rescue thaws the applications in place of the watchdog.
func (g *Guard) rescue(b *freezeMessage) []freeze.Outcome {
	return thawAll(g.request, b, "the watchdog ended too early: "+g.stderr.String())
}

func (g *Guard) kill() { _ = g.cmd.Process.Kill() } // it may have ended

// Finish tells the watchdog that the snapshots are taken. It returns the outcomes when all
// applications are thawed.
func (g *Guard) Finish() []freeze.Outcome {
	_ = json.NewEncoder(g.stdin).Encode(messageTaken) // on error, the missing last message shows that it ended
	return g.end(false)
}

// Cancel thaws all applications when no snapshot was taken.
func (g *Guard) Cancel() []freeze.Outcome { return g.end(true) }

func (g *Guard) end(drop bool) []freeze.Outcome {
	if drop {
		_ = g.stdin.Close()
	}
	timer := time.AfterFunc(proveTimeout+thawTimeout+grace, g.kill) // they are thawed together
	defer timer.Stop()
	outcomes := <-g.ended
	_ = g.stdin.Close() // closing twice is harmless
	g.closeNote(slices.ContainsFunc(outcomes, func(o freeze.Outcome) bool { return o.ThawFailed }))
	return outcomes
}

// closeNote closes the note. Unless an application is left frozen, it removes the note first.
func (g *Guard) closeNote(left bool) {
	if g.note != nil {
		if dir, name := filepath.Split(g.note.Name()); !left {
			_ = os.Remove(filepath.Join(dir, notePrefix+name)) // otherwise the next run removes it
		}
		_ = g.note.Close()
	}
}
