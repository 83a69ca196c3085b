package sshexec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/size"
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

// Agent starts the agent on a host. Where the host lacks this very zxfer, or that of
// the same release, it is copied there first, if Bootstrap allows: for another
// architecture the one that fits, from a file. A host whose ssh account always
// starts an agent (a forced command) works too.
//
// Refusals (fault.Refused): no Bootstrap, another system, an architecture that there
// is no zxfer for, a cache directory that takes no executable file.
func Agent(ctx context.Context, o Options) (*Conn, error) { return connect(ctx, o, "") }

// connect starts the agent with a further argument, "" for none. It ends
// whatever it started when it fails.
func connect(ctx context.Context, o Options, argument string) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	own, err := o.self()
	if err != nil {
		return nil, fmt.Errorf("read this zxfer: %w", err)
	}
	p, err := o.start(command(own.id, o.Release, argument))
	if err != nil {
		return nil, err
	}
	a := &arrival{Conn: &Conn{process: p, in: bufio.NewReaderSize(p.out, maxNoise)}, o: &o, wanted: own, relay: argument != "", shown: func() {}}
	defer func() { a.shown() }()
	var late atomic.Bool
	a.patience = time.AfterFunc(o.connectTimeout(), func() { late.Store(true); p.interrupt() })
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
		err = fmt.Errorf("no agent answered within %s", o.connectTimeout())
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
	wanted   *build // that the script looks for
	other    bool   // which is another than the running one
	relay    bool
	patience *time.Timer
	said     string // last of what the login shell printed

	copied bool         // the build was sent
	sent   atomic.Int64 // bytes
	shown  func()       // ends what shows the copy
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
			if err := a.needed(strings.Fields(line[len(needWord):])); err != nil {
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

// needed answers a host that has not found the wanted build, with its words on
// itself: system, machine, coding, and the version that is installed, if any.
func (a *arrival) needed(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("its uname answered %q", words)
	}
	if a.copied {
		return errors.New("it asked for zxfer a second time")
	}
	if !a.other {
		fits, err := a.o.binaryFor(words[0], words[1])
		switch {
		case err != nil && a.o.Bootstrap && !a.relay:
			return err
		case err == nil && fits != nil:
			a.wanted, a.other = fits, true
			_, err = io.WriteString(a, tryWord+" "+fits.id+"\n")
			return err
		}
	}
	if a.relay {
		return errors.New("zxfer is not there any more, or is another build")
	}
	if !a.o.Bootstrap {
		there := "zxfer is not there, or is another build,"
		if len(words) > 3 && a.o.Release != "" && isVersion(words[3]) {
			there = fmt.Sprintf("zxfer there is %s, this one is %s,", words[3], a.o.Release)
		}
		return fault.Refusef("install this zxfer there, or leave {{no-bootstrap}} out: it is then copied to ~/.cache/zxfer",
			"%s and {{no-bootstrap}} forbids copying this one", there)
	}
	return a.copy(words[2])
}

// isVersion tells what may be a version and a protocol, as the other host says them.
func isVersion(word string) bool {
	version, protocol, ok := strings.Cut(word, "/")
	return ok && len(word) < 64 && strings.Trim(version, "0123456789abcdefghijklmnopqrstuvwxyz.+-") == "" && strings.Trim(protocol, "0123456789") == ""
}

// copy sends the wanted build to the other host, in a coding that it knows.
func (a *arrival) copy(coding string) error {
	text, err := a.wanted.packed(coding)
	if err != nil {
		return err
	}
	a.copied = true
	total := int64(len(text))
	a.o.log(fmt.Sprintf("copying zxfer there (%s)", size.Text(uint64(total))))
	if _, err := fmt.Fprintf(a, "%s %d %s\n", sendWord, total, coding); err != nil {
		return err
	}
	a.sent.Store(0)
	if a.o.Doing != nil {
		a.shown = a.o.Doing(func() string {
			return fmt.Sprintf("copying zxfer to %s, %d %% of %s", a.o.Host, 100*a.sent.Load()/total, size.Text(uint64(total)))
		})
	}
	// In pieces, each of which renews the patience.
	_, err = io.Copy(a, io.LimitReader(bytes.NewReader(text), total))
	return err
}

// Write renews the patience: a slow network is no reason to give up.
func (a *arrival) Write(b []byte) (int, error) {
	n, err := a.process.Write(b)
	a.sent.Add(int64(n))
	a.patience.Reset(a.o.connectTimeout())
	return n, err
}
