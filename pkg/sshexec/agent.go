// Package sshexec runs programs on other hosts through a remote shell: ssh, or a command that the
// user names.
//
// Nouns:
//   - Options: how to reach a host.
//   - Conn: a connection to zxfer's agent on a host. The bootstrap script starts the agent.
//   - Build: a zxfer binary. If the host lacks it, the bootstrap script stores it in the host's cache
//     directory (CacheDir).
//   - Script: a shell script that runs on a host without zxfer.
//   - Master: an ssh connection that several scripts share.
//
// The package does not speak the agent's protocol.
package sshexec

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kballard/go-shellquote"

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
// It returns a *NoAgentError if the host permits a login but cannot run zxfer: its system or
// architecture is not supported, no cache directory can hold an executable, Bootstrap is not set, or
// the account runs no shell.
//
// If it fails, it ends everything that it started.
func Agent(ctx context.Context, o Options) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Host, err)
	}
	own, err := o.self()
	if err != nil {
		return nil, fmt.Errorf("read the local zxfer binary: %w", err)
	}
	p, err := o.start(replaceShell, command(own.id, o.Release), &tail{log: o.log, maxLines: tailLines, hold: true})
	if err != nil {
		return nil, err
	}
	a := &handshake{Conn: &Conn{process: p, in: bufio.NewReaderSize(p.out, maxBanner)}, o: &o, wanted: own, endActivity: func() {}}
	defer func() { a.endActivity() }()
	var late atomic.Bool
	a.timer = time.AfterFunc(o.connectTimeout(), func() { late.Store(true); p.interrupt() })
	defer a.timer.Stop()
	stop := context.AfterFunc(ctx, p.interrupt)
	err = a.wait()
	if stop() && err == nil && !late.Load() {
		p.stderr.release()
		a.logBanner()
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
	if ctx.Err() == nil && !strings.Contains(err.Error(), p.stderr.String()) {
		p.stderr.release()
	}
	if ctx.Err() == nil && !strings.Contains(err.Error(), a.banner) {
		a.logBanner()
	}
	status := p.cmd.ProcessState.ExitCode() // 255: a remote shell could not connect
	loggedIn := status >= 0 && status != 255 && !p.forced.Load()
	if ctx.Err() == nil && !late.Load() && (loggedIn || fault.ClassOf(err) == fault.Refused) {
		return nil, &NoAgentError{o.Host, err}
	}
	return nil, fmt.Errorf("%s: %w", o.Host, err)
}

// NoAgentError means that a host permits a login but cannot run zxfer.
type NoAgentError struct {
	Host   string
	Reason error
}

func (e *NoAgentError) Error() string { return e.Host + ": " + e.Reason.Error() }

func (e *NoAgentError) Unwrap() error { return e.Reason }

// handshake is the exchange with the bootstrap script until the program on the other host runs.
type handshake struct {
	*Conn
	o       *Options
	wanted  *build // the build that the script looks for
	foreign bool   // wanted is not the running one
	timer   *time.Timer
	banner  string // last line that the login shell printed

	copied      bool         // wanted was sent
	sent        atomic.Int64 // bytes
	endActivity func()       // ends the progress display of the copy
}

// logBanner logs the last line of the login shell. An error of the connection may contain it instead.
func (a *handshake) logBanner() {
	if a.banner != "" {
		a.o.log(a.banner)
	}
}

// wait reads until the program reports that it runs.
func (a *handshake) wait() error {
	for read := 0; read < maxBanner; {
		peek, err := a.in.Peek(len(agentWord))
		if string(peek) == agentWord {
			return nil // the agent's client reads this line
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("no agent answered: %w", err)
		}
		raw, err := a.in.ReadSlice('\n')
		read += len(raw)
		line := strings.TrimSpace(string(raw))
		switch {
		case strings.HasPrefix(line, needWord):
			if err := a.handleNeed(strings.Fields(line[len(needWord):])); err != nil {
				return err
			}
		case line != "":
			a.logBanner()
			a.banner = line[:min(len(line), maxTailLine)]
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return errors.New("no agent answered")
		}
	}
	return fault.Failf(QuietLogin, "no agent answered in the first %d bytes of its output", maxBanner)
}

// handleNeed answers a host that lacks the wanted build. words are the host's system, machine and
// coding, and the installed version, if any.
func (a *handshake) handleNeed(words []string) error {
	if len(words) < 3 {
		return fmt.Errorf("its uname printed %q", words)
	}
	if a.copied {
		return errors.New("it requested zxfer a second time")
	}
	if !a.foreign {
		fits, err := a.o.binaryFor(words[0], words[1])
		switch {
		case err != nil && a.o.Bootstrap:
			return err
		case err == nil && fits != nil:
			a.wanted, a.foreign = fits, true
			_, err = io.WriteString(a, tryWord+" "+fits.id+"\n")
			return err
		}
	}
	if !a.o.Bootstrap {
		message := "zxfer is missing there, or is another build,"
		if len(words) > 3 && a.o.Release != "" && isVersion(words[3]) {
			message = fmt.Sprintf("zxfer there is %s, the local one is %s,", words[3], a.o.Release)
		}
		return fault.Refusef("install the same zxfer there, or omit {{no-bootstrap}} to copy it to ~/.cache/zxfer",
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

// exitRefused is the script's exit status if the host cannot store zxfer.
const exitRefused = 93

// Lines from the other host. They follow the output of the login shell. An empty line precedes
// each, because that output may end in the middle of a line.
const (
	agentWord = "zxfer-agent " // an agent started
	// The script did not find the wanted build: "zxfer-need SYSTEM MACHINE CODING VERSION". CODING
	// is "gzip" if the host has gzip. VERSION is the VERSION/PROTOCOL of the zxfer in its PATH, if
	// any.
	needWord = "zxfer-need "
)

// Replies to needWord.
const (
	tryWord  = "try"  // "try ID": look for this build, which fits the machine
	sendWord = "send" // "send N CODING": N bytes of the build follow
)

// cacheDirs is a shell script that sets "$@" to the directories that may hold the binary. bootstrap follows
// it, and starts the agent. Both files are commented.
var (
	//go:embed cachedirs.sh
	cacheDirsFile string
	cacheDirs     = oneLine(cacheDirsFile)
	//go:embed bootstrap.sh
	bootstrapFile string
	bootstrap     = `i="$1"; r="$2"; o="$(pwd)"; ` + cacheDirs + oneLine(bootstrapFile)
)

// oneLine joins the lines of a shell script, without comments. Each command of the script ends with a
// semicolon, unless the shell continues it on the next line.
func oneLine(script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			b.WriteString(line + " ")
		}
	}
	return b.String()
}

// command returns the command line for the login shell of the other host.
func command(id, release string) string {
	return "exec sh -c '" + bootstrap + "' zxfer " + shellquote.Join(id, release)
}
