package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
)

// guestAgent is the filesystems of a virtual machine, which its qemu-guest-agent freezes: all
// earlier writes are on its disks, and no program in it writes.
//
// The machine is not trusted. Its replies are bounded, and decide only whether the snapshot counts
// as consistent.
//
// https://www.qemu.org/docs/master/interop/qemu-ga-ref.html
type guestAgent struct {
	spec *freeze.Spec
	// owned reports that this process may have frozen them. It does not undo the freeze of another.
	owned bool
}

// maxReply is the maximum length of a reply line in bytes.
const maxReply = 64 << 10

// agentError is an error reply of an agent.
type agentError struct{ class, text string }

func (e *agentError) Error() string { return freeze.Clean(e.class + ": " + e.text) }

func (g *guestAgent) freeze(ctx context.Context) (f frozen, err error) {
	status := ""
	if err := g.ask(ctx, "guest-fsfreeze-status", &status); err != nil {
		return f, err
	}
	if status != "thawed" {
		return f, fault.Failf("if no other backup is running, thaw the filesystems in the machine: fsfreeze -u MOUNTPOINT", "its filesystems are already %q", freeze.Clean(status))
	}
	n := 0
	g.owned = true
	err = g.ask(ctx, "guest-fsfreeze-freeze", &n)
	var no *agentError
	if errors.As(err, &no) {
		// An agent that fails at one filesystem thaws the others.
		// https://gitlab.com/qemu-project/qemu/-/blob/v7.2.0/qga/commands-posix.c (qmp_guest_fsfreeze_freeze_list)
		g.owned = false
	}
	if err == nil && n < 1 {
		err = errors.New("it froze no filesystem")
	}
	return f, err
}

func (g *guestAgent) prove(ctx context.Context) error {
	status := ""
	err := g.ask(ctx, "guest-fsfreeze-status", &status)
	if err == nil && status != "frozen" {
		err = fmt.Errorf("after the snapshot its filesystems were %q", freeze.Clean(status))
	}
	return err
}

// Timeouts of one attempt to thaw, and pauses between attempts. Both double. An agent runs
// commands in sequence, and a freeze that took too long may still block it.
const (
	firstTimeout = 10 * time.Second
	maxTimeout   = 2 * time.Minute
	firstPause   = 200 * time.Millisecond
)

// thaw retries until it succeeds or ctx ends.
func (g *guestAgent) thaw(ctx context.Context) error {
	if !g.owned {
		return nil
	}
	for try, rest := firstTimeout, firstPause; ; try, rest = min(2*try, maxTimeout), min(2*rest, maxTimeout) {
		n := 0
		within, end := context.WithTimeout(ctx, try)
		err := g.ask(within, thawCommand, &n)
		end()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return fault.Failf("run in the machine: fsfreeze -u MOUNTPOINT (zxfer also retries, at the latest in the next run)", "its filesystems may be frozen: %w", err)
		}
	}
}

const thawCommand = "guest-fsfreeze-thaw"

// ask runs a command of the agent.
func (g *guestAgent) ask(ctx context.Context, command string, answer any) error {
	err := g.exchange(ctx, command, answer)
	if err == nil {
		return nil
	}
	var no *agentError
	if why := context.Cause(ctx); why != nil {
		err = fmt.Errorf("it does not answer: %w", why)
	} else if !errors.As(err, &no) {
		err = fault.Failf("check that the agent runs in the machine, and that no other program (libvirt) uses its socket", "%w", err)
	}
	return fmt.Errorf("%s at %s: %w", command, g.spec.Socket, err)
}

func (g *guestAgent) exchange(ctx context.Context, command string, answer any) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", g.spec.Socket)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	in := bufio.NewReader(c)
	// The mark separates stale replies to other clients.
	id := rand.Int32()
	sync, do := fmt.Sprintf("\xff{\"execute\":\"guest-sync-delimited\",\"arguments\":{\"id\":%d}}\n", id), fmt.Sprintf("{\"execute\":%q}\n", command)
	if command == thawCommand { // the agent must run it even if this client no longer waits
		sync, do = sync+do, ""
	}
	if _, err := io.WriteString(c, sync); err != nil {
		return err
	}
	for marked := false; ; {
		line, err := reply(in)
		if err != nil {
			return err
		}
		if at := strings.LastIndexByte(line, 0xff); at >= 0 {
			line, marked = line[at+1:], true
		}
		var echo int32
		if marked && parse(line, &echo) == nil && echo == id {
			break
		}
	}
	if _, err := io.WriteString(c, do); err != nil {
		return err
	}
	line, err := reply(in)
	if err != nil {
		return err
	}
	return parse(line, answer)
}

// reply reads a line.
func reply(in *bufio.Reader) (string, error) {
	var b strings.Builder
	for b.Len() < maxReply {
		c, err := in.ReadByte()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the agent closed the connection")
			}
			return "", err
		}
		if c == '\n' {
			return b.String(), nil
		}
		b.WriteByte(c)
	}
	return "", fmt.Errorf("the agent's answer is longer than %d bytes", maxReply)
}

// parse decodes a reply.
func parse(line string, answer any) error {
	var r struct {
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Class string `json:"class"`
			Desc  string `json:"desc"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return fmt.Errorf("invalid answer of the agent: %w", err)
	}
	if r.Error != nil {
		return &agentError{r.Error.Class, r.Error.Desc}
	}
	if err := json.Unmarshal(r.Return, answer); err != nil {
		return fmt.Errorf("invalid answer of the agent: %w", err)
	}
	return nil
}
