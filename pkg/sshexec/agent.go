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

// maxBanner limits, in bytes, the output of a login shell before the agent answers, and the length
// of a line.
const maxBanner = 64 << 10

// Conn is a connection to a program on another host. It reads the program's standard output and
// writes its standard input. Close returns the failure of the remote shell, if any.
type Conn struct {
	*process
	in *bufio.Reader
}

func (c *Conn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Agent starts the agent on a host. If the host lacks the same build or release and Bootstrap is
// set, Agent first copies zxfer there, for another architecture from a file. It also works if the
// ssh account always starts an agent (a forced command).
//
// It returns a refusal (fault.Refused) if Bootstrap is not set, the host's system or architecture
// is not supported, or no cache directory can hold an executable.
func Agent(ctx context.Context, o Options) (*Conn, error) { return connect(ctx, o, "") }

// connect starts the agent with an additional argument, "" for none. If it fails, it ends
// everything that it started.
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
	a := &handshake{Conn: &Conn{process: p, in: bufio.NewReaderSize(p.out, maxBanner)}, o: &o, wanted: own, relay: argument != "", endActivity: func() {}}
	defer func() { a.endActivity() }()
	var late atomic.Bool
	a.timer = time.AfterFunc(o.connectTimeout(), func() { late.Store(true); p.interrupt() })
	defer a.timer.Stop()
	stop := context.AfterFunc(ctx, p.interrupt)
	err = a.wait()
	if stop() && err == nil && !late.Load() {
		return a.Conn, nil
	}
	why := p.shutdown(quitTimeout)
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case late.Load():
		err = fmt.Errorf("no agent answered within %s", o.connectTimeout())
	case errors.As(err, new(*fault.Error)):
	case why != nil && a.banner != "" && p.stderr.String() == "":
		// For example, a login shell that permits no login prints that on standard output.
		err = fmt.Errorf("%w, but its shell: %s", why, a.banner)
	case why != nil:
		err = why
	case a.banner != "":
		err = fmt.Errorf("%w; its shell said: %s", err, a.banner)
	}
	return nil, fmt.Errorf("%s: %w", o.Host, err)
}

// handshake is the exchange with the bootstrap script until the program on the other host runs.
type handshake struct {
	*Conn
	o       *Options
	wanted  *build // the build that the script looks for
	foreign bool   // wanted is not the running one
	relay   bool
	timer   *time.Timer
	banner  string // last line that the login shell printed

	copied      bool         // wanted was sent
	sent        atomic.Int64 // bytes
	endActivity func()       // ends the progress display of the copy
}

// wait reads until the program reports that it runs.
func (a *handshake) wait() error {
	for read := 0; read < maxBanner; {
		peek, err := a.in.Peek(len(agentWord))
		if string(peek) == agentWord {
			if a.relay {
				return fault.Refusef("choose another wire, or let the account start a shell",
					"its account always starts an agent, which cannot relay connections")
			}
			return nil // the agent's client reads this line
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
			if err := a.handleNeed(strings.Fields(line[len(needWord):])); err != nil {
				return err
			}
		case line != "":
			a.banner = line[:min(len(line), maxTailLine)]
			a.o.log(a.banner)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return errors.New("no agent answered")
		}
	}
	return fmt.Errorf("no agent answered in the first %d bytes of its output", maxBanner)
}

// handleNeed answers a host that lacks the wanted build. words are the host's system, machine and
// coding, and the installed version, if any.
func (a *handshake) handleNeed(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("its uname answered %q", words)
	}
	if a.copied {
		return errors.New("it asked for zxfer a second time")
	}
	if !a.foreign {
		fits, err := a.o.binaryFor(words[0], words[1])
		switch {
		case err != nil && a.o.Bootstrap && !a.relay:
			return err
		case err == nil && fits != nil:
			a.wanted, a.foreign = fits, true
			_, err = io.WriteString(a, tryWord+" "+fits.id+"\n")
			return err
		}
	}
	if a.relay {
		return errors.New("zxfer is not there any more, or is another build")
	}
	if !a.o.Bootstrap {
		message := "zxfer is not there, or is another build,"
		if len(words) > 3 && a.o.Release != "" && isVersion(words[3]) {
			message = fmt.Sprintf("zxfer there is %s, this one is %s,", words[3], a.o.Release)
		}
		return fault.Refusef("install this zxfer there, or leave {{no-bootstrap}} out: it is then copied to ~/.cache/zxfer",
			"%s and {{no-bootstrap}} forbids copying this one", message)
	}
	return a.sendBuild(words[2])
}

// isVersion reports whether word has the form VERSION/PROTOCOL. The word is untrusted.
func isVersion(word string) bool {
	version, protocol, ok := strings.Cut(word, "/")
	return ok && len(word) < 64 && strings.Trim(version, "0123456789abcdefghijklmnopqrstuvwxyz.+-") == "" && strings.Trim(protocol, "0123456789") == ""
}

// sendBuild sends the wanted build in a coding that the host supports.
func (a *handshake) sendBuild(coding string) error {
	text, err := a.wanted.encode(coding)
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
	if a.o.Activity != nil {
		a.endActivity = a.o.Activity(func() string {
			return fmt.Sprintf("copying zxfer to %s, %d %% of %s", a.o.Host, 100*a.sent.Load()/total, size.Text(uint64(total)))
		})
	}
	// Write resets the timeout for each piece.
	_, err = io.Copy(a, io.LimitReader(bytes.NewReader(text), total))
	return err
}

// Write resets the timeout, so that a slow network does not end the copy.
func (a *handshake) Write(b []byte) (int, error) {
	n, err := a.process.Write(b)
	a.sent.Add(int64(n))
	a.timer.Reset(a.o.connectTimeout())
	return n, err
}
