package rsh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"zxfer/pkg/fault"
)

// maxNoise bounds what a login shell may print before the agent answers, and
// the length of a line.
const maxNoise = 64 << 10

// Conn is the way to a program on another host: its standard output and
// input. Close returns how the remote shell failed, if it did.
type Conn struct {
	*process
	in *bufio.Reader
}

func (c *Conn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Agent starts the agent on a host. Where the host lacks this very zxfer, it
// is copied there first, if Bootstrap allows. A host whose ssh account always
// starts an agent (a forced command) works too.
//
// Refusals (fault.Refused): no Bootstrap, another system or architecture, a
// cache directory that takes no executable file.
func Agent(ctx context.Context, o Options) (*Conn, error) { return connect(ctx, o, "") }

// connect starts the agent with a further argument, "" for none. It ends
// whatever it started when it fails.
func connect(ctx context.Context, o Options, argument string) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	self, err := ThisBinary()
	if err != nil {
		return nil, fmt.Errorf("read this zxfer: %w", err)
	}
	p, err := o.start(command(self, argument))
	if err != nil {
		return nil, err
	}
	a := &arrival{Conn: &Conn{process: p, in: bufio.NewReaderSize(p.out, maxNoise)}, o: &o, self: self, relay: argument != ""}
	var late atomic.Bool
	a.patience = time.AfterFunc(o.patience(), func() { late.Store(true); p.interrupt() })
	defer a.patience.Stop()
	stop := context.AfterFunc(ctx, p.interrupt)
	err = a.wait()
	if stop() && err == nil && !late.Load() {
		return a.Conn, nil
	}
	why := p.end(quitWithin)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case late.Load():
		err = fmt.Errorf("no agent answered within %s", o.patience())
	case errors.As(err, new(*fault.Error)):
	case why != nil && a.said != "" && p.stderr.String() == "":
		// Such as a login shell that is none: it says so on standard output.
		err = fmt.Errorf("%w, but its shell: %s", why, a.said)
	case why != nil:
		err = why
	case a.said != "":
		err = fmt.Errorf("%w; its shell said: %s", err, a.said)
	}
	return nil, fmt.Errorf("%s: %w", o.Host, err)
}

// arrival is the time until the program on the other host is there.
type arrival struct {
	*Conn
	o        *Options
	self     Self
	relay    bool
	patience *time.Timer
	said     string // last of what the login shell printed
}

// wait reads up to the line that says that the program is there.
func (a *arrival) wait() error {
	for read := 0; read < maxNoise; {
		peek, err := a.in.Peek(len(agentWord))
		if string(peek) == agentWord {
			if a.relay {
				return fault.Refusef("choose another wire, or let the account start a shell",
					"its account always starts an agent, which cannot relay connections")
			}
			return nil // the line is the agent's client's to read
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("no agent answered: %w", err)
		}
		raw, err := a.in.ReadSlice('\n')
		read += len(raw)
		line := strings.TrimSpace(string(raw))
		switch {
		case a.relay && line == relayWord:
			return nil
		case strings.HasPrefix(line, needWord):
			if err := a.bootstrap(strings.Fields(line[len(needWord):])); err != nil {
				return err
			}
		case line != "":
			a.said = line[:min(len(line), keptLine)]
			a.o.log(a.said)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return errors.New("no agent answered")
		}
	}
	return fmt.Errorf("no agent answered in the first %d bytes of its output", maxNoise)
}

// bootstrap copies this binary to the other host.
func (a *arrival) bootstrap(uname []string) error {
	if len(uname) != 2 {
		return fmt.Errorf("its uname answered %q", uname)
	}
	if a.relay {
		return errors.New("zxfer is not there any more, or is another build")
	}
	if !a.o.Bootstrap {
		return fault.Refusef("install this zxfer there, or leave {{no-bootstrap}} out: it is then copied to ~/.cache/zxfer",
			"zxfer is not there, or is another build, and {{no-bootstrap}} forbids copying this one")
	}
	if err := runsOn(uname[0], uname[1]); err != nil {
		return err
	}
	a.o.log(fmt.Sprintf("copying zxfer there (%d bytes)", a.self.Size))
	f, err := os.Open(selfPath)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(a, io.MultiReader(strings.NewReader(sendWord+"\n"), f))
	return err
}

// Write renews the patience: a slow network is no reason to give up.
func (a *arrival) Write(b []byte) (int, error) {
	n, err := a.process.Write(b)
	a.patience.Reset(a.o.patience())
	return n, err
}
