// Package guard holds applications still while a snapshot is taken, in a process of its
// own: a watchdog, which has them go on whatever becomes of the run that started it.
//
// It takes no snapshot, and knows nothing of jobs.
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

// Verb is zxfer's, which starts Serve.
const Verb = "freeze-guard"

// wordTaken tells the watchdog that the snapshots are there.
const wordTaken = "taken"

// Guard is a watchdog that holds what was wanted.
type Guard struct {
	Began

	request *freeze.Request
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  *cli.Tail
	note    *os.File // nil where none could be written
	ended   chan []freeze.Outcome
}

// Began is how it began.
type Began struct {
	Outcomes []freeze.Outcome
	Places   [][]string // where each has its data, as far as it tells
	Stopped  bool       // what is required could not be held still
}

// grace is how much longer than what it waits for the watchdog may take.
const grace = 5 * time.Second

// Start starts a watchdog, which is this program again, and returns when all that is
// wanted stands still, or was tried. Take or Drop has to follow.
//
// dir is where the processes of this host find each other until it starts anew; where it
// cannot be written, what is killed together with its watchdog stays as it is.
func Start(ctx context.Context, dir string, q *freeze.Request) (*Guard, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	thawLeft(dir)
	g := &Guard{request: q, stderr: &cli.Tail{}, ended: make(chan []freeze.Outcome, 1)}
	// A session of its own: what ends the run's terminal or group does not end it.
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
		g.forget(false)
		return nil, fmt.Errorf("the watchdog of what is frozen: %w", err)
	}
	first := make(chan *began, 1)
	go g.read(stdout, first)
	if err := json.NewEncoder(g.stdin).Encode(q); err != nil {
		g.Drop()
		return nil, fmt.Errorf("the watchdog of what is frozen: %w: %s", err, strings.TrimSpace(g.stderr.String()))
	}
	limit := grace
	for i := range q.Wanted { // they are frozen one after the other
		limit += q.Wanted[i].Within + windDown
	}
	timer := time.AfterFunc(limit, g.kill)
	defer timer.Stop()
	select {
	case b := <-first:
		if b == nil {
			outcomes := g.Drop()
			return nil, fmt.Errorf("the watchdog of what is frozen ended: %s", outcomes[0].Error)
		}
		g.Began = Began{Outcomes: b.Outcomes, Stopped: b.Stopped, Places: make([][]string, len(b.Frozen))}
		for i, f := range b.Frozen {
			g.Places[i] = f.Places
		}
		return g, nil
	case <-ctx.Done():
		g.Drop()
		return nil, context.Cause(ctx)
	}
}

// read takes what the watchdog says. Where it ends without its last word, what it held
// is thawed from here, at once.
func (g *Guard) read(out io.Reader, first chan<- *began) {
	messages := json.NewDecoder(out)
	b, e := &began{}, &ended{}
	err := messages.Decode(b)
	if n := len(g.request.Wanted); err != nil || len(b.Outcomes) != n || len(b.Frozen) != n {
		b = nil
	}
	if b != nil {
		first <- b
		err = messages.Decode(e)
	}
	if b == nil || err != nil || len(e.Outcomes) != len(g.request.Wanted) {
		g.kill()
		e.Outcomes = g.rescue(b)
	}
	if b == nil {
		first <- nil
	}
	g.ended <- e.Outcomes
	_ = g.cmd.Wait() // what it came to it has said; it may go on trying
}

// rescue does the watchdog's duty.
func (g *Guard) rescue(b *began) []freeze.Outcome {
	return thawAll(g.request, b, "the watchdog ended before its time: "+g.stderr.String())
}

func (g *Guard) kill() { _ = g.cmd.Process.Kill() } // it may be gone

// Take reports to the watchdog that the snapshots are taken. When all applications are
// thawed, it returns which are proved to have been frozen until then.
func (g *Guard) Take() []freeze.Outcome {
	_ = json.NewEncoder(g.stdin).Encode(wordTaken) // where it is gone, that shows in the end
	return g.end(false)
}

// Drop has all go on, and is for where nothing was taken.
func (g *Guard) Drop() []freeze.Outcome { return g.end(true) }

func (g *Guard) end(drop bool) []freeze.Outcome {
	if drop {
		_ = g.stdin.Close()
	}
	timer := time.AfterFunc(proving+thawing+grace, g.kill) // they are thawed together
	defer timer.Stop()
	outcomes := <-g.ended
	_ = g.stdin.Close() // twice is no harm
	g.forget(slices.ContainsFunc(outcomes, func(o freeze.Outcome) bool { return o.Left }))
	return outcomes
}

// forget closes the note, and removes it where nothing is left that it could be needed for.
func (g *Guard) forget(left bool) {
	if g.note != nil {
		if dir, name := filepath.Split(g.note.Name()); !left {
			_ = os.Remove(filepath.Join(dir, notePrefix+name)) // an unlocked one is removed by the next
		}
		_ = g.note.Close()
	}
}
