package agentless

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

const (
	// receiveEndTimeout limits how long the host's tools may take to end after their connection:
	// an interrupted receive saves its state first.
	receiveEndTimeout = time.Minute
	// sendEndTimeout is the same for a sender, which saves nothing.
	sendEndTimeout = 10 * time.Second
	// exitTimeout is how long a broken connection waits for the script's error.
	exitTimeout = 10 * time.Second
)

// path is how the data of a stream reaches the host.
type path struct {
	nc     *tcp.Offer // configures the local listener for the host's nc; nil = through the remote shell
	buffer int64      // memory of the host's mbuffer in bytes, if it has one
}

// Through returns the ends of streams on the host. If nc is nil, their data passes through the remote
// shell. Otherwise it configures the local listener for the host's nc. buffer is the memory of the host's
// mbuffer in bytes, if it has one.
func (h *Host) Through(nc *tcp.Offer, buffer int64) hosts.Ends { return ends{h, path{nc, buffer}} }

// ends has the ends of streams over a path.
type ends struct {
	*Host
	path path
}

// OpenTo opens a sink, which ends with Commit or Abort.
func (h ends) OpenTo(ctx context.Context, dst hosts.To) (transfer.Sink, error) {
	switch to := dst.(type) {
	case hosts.ReceiveStream:
		return h.openReceive(ctx, to.Spec, h.path)
	case hosts.Nowhere:
		if !h.shell {
			return nil, hosts.Unsupported(h.name, hosts.OpMeasure)
		}
		s, err := h.openSink(ctx, "cat >/dev/null",
			zfs.Failure{Op: "cat", Subject: "/dev/null", Argv: []string{"sh", "-c", "exec cat >/dev/null"}}, path{nc: h.path.nc})
		if err != nil {
			return nil, err
		}
		return &nullSink{s}, nil
	}
	return nil, hosts.Unsupported(h.name, hosts.OpInspectDevice)
}

func (h *Host) openReceive(ctx context.Context, r zfs.ReceiveSpec, path path) (transfer.Sink, error) {
	if r.Corrective { // OpenReceive of package cli has checks that need zxfer there
		return nil, hosts.Unsupported(h.name, hosts.OpScrub)
	}
	args, err := zfs.ReceiveArgs(r)
	if err != nil {
		return nil, err
	}
	gate, err := h.cli.Gate(ctx, r)
	if err != nil {
		return nil, err
	}
	s, err := h.openSink(ctx, "zfs receive "+r.Target, zfs.Failure{Op: zfs.OpReceive, Subject: r.Target,
		Argv: append([]string{"zfs"}, args...), Properties: slices.Collect(maps.Keys(r.Set))}, path)
	if err != nil {
		return nil, err
	}
	s.gate = gate
	return s, nil
}

// openSink starts a command that reads the stream. failed describes the command in errors.
func (h *Host) openSink(ctx context.Context, name string, failed zfs.Failure, path path) (*sink, error) {
	c, err := h.open(ctx, path, h.name+": "+name, failed.Argv, false)
	if err != nil {
		return nil, err
	}
	c.target = failed.Argv[len(failed.Argv)-1]
	s := &sink{command: c, failed: failed}
	go c.interruptWhenDone(0, func() bool { return true })
	return s, nil
}

// open starts a command that sends or receives on the host.
func (h *Host) open(ctx context.Context, path path, name string, argv []string, sends bool) (*command, error) {
	if path.nc != nil {
		return h.openNC(ctx, path, name, argv, sends)
	}
	return h.openPipe(ctx, path, name, argv, sends)
}

// sink is a zfs receive on the host.
type sink struct {
	*command
	gate    *zfs.Gate // nil if the command is not zfs receive
	failed  zfs.Failure
	broken  atomic.Bool // the connection broke; the tools may not have noticed
	refused atomic.Bool // the gate refused the stream
}

// Write checks bytes and sends them. If zfs receive failed, it returns the cause.
func (s *sink) Write(b []byte) (int, error) {
	if s.gate != nil {
		if refused := cli.CheckStream(s.gate, s.failed.Subject, b); refused != nil {
			s.refused.Store(true)
			return 0, refused
		}
	}
	n, err := s.conn.Write(b)
	if err == nil {
		return n, nil
	}
	s.broken.Store(true)
	if s.waitEnd(exitTimeout) {
		if failed := s.result(); failed != nil {
			return n, failed
		}
	}
	return n, s.cutError(err)
}

// Commit ends the stream and waits until zfs receive has stored it, or ctx ends.
func (s *sink) Commit(ctx context.Context) error {
	defer s.conn.Close()
	if err := s.conn.CloseWrite(); err != nil && !s.waitEnd(exitTimeout) {
		s.process.End(s.host.endTimeout)
		return s.cutError(err)
	}
	select {
	case <-s.process.Done():
	case <-ctx.Done():
		s.process.End(s.host.endTimeout)
	}
	return s.result()
}

// Abort ends the stream early and waits until zfs receive has saved its resumable state.
func (s *sink) Abort(error) error {
	_ = s.conn.Close() // the stream ends without its END record
	switch {
	case s.broken.Load():
		s.process.End(s.host.endTimeout)
	case !s.waitEnd(s.host.endTimeout):
		s.process.End(sendEndTimeout)
	}
	err := s.result()
	switch {
	case s.refused.Load():
		return nil // the gate's error is the cause
	case err == nil:
		return fmt.Errorf("%s: the stream was aborted, but it was complete and is stored", s.name)
	case errors.Is(err, &zfs.Error{Kind: zfs.Incomplete}), errors.Is(err, tcp.ErrConnectionLost):
		return nil
	}
	return err
}

// result returns the error of the ended command, nil if it succeeded.
func (s *sink) result() error {
	e, lost := s.exit()
	switch {
	case lost != nil:
		return s.cutError(lost)
	case e.status != 0:
		return cli.RunResult{Stderr: e.stderr, Status: e.status}.Err(s.failed, s.host.runner())
	}
	for i, line := range strings.Split(strings.TrimSpace(e.stderr), "\n") {
		switch {
		case i == maxLogged:
			s.host.log(fmt.Sprintf("%s: more than %d messages, the others are not shown", s.name, maxLogged))
		case i < maxLogged && line != "":
			s.host.log(s.name + ": " + strings.TrimSpace(line))
		}
	}
	return nil
}

// Withhold returns the number of bytes at the stream's end that must be held back until the
// source ended without error.
func (s *sink) Withhold() int { return zfs.TailSize }

var (
	_ transfer.Sink       = (*sink)(nil)
	_ transfer.TailHolder = (*sink)(nil)
)

// nullSink is a command on the host that reads and discards.
type nullSink struct{ *sink }

// Abort ends the command; it has no state to save.
func (n *nullSink) Abort(error) error {
	_ = n.conn.Close() // the caller already has an error
	if !n.waitEnd(0) {
		n.process.End(sendEndTimeout)
	}
	return nil
}

// OpenFrom opens a source. It ends with Close.
func (h ends) OpenFrom(ctx context.Context, src hosts.From) (transfer.Source, error) {
	switch from := src.(type) {
	case hosts.SendStream:
		s, err := h.openSend(ctx, from.Spec, h.path)
		if err != nil {
			return nil, err
		}
		return hosts.SelectBlocks(s, from.Only), nil // in this process, which relays the stream
	case hosts.Noise:
		if !h.shell {
			return nil, hosts.Unsupported(h.name, hosts.OpMeasure)
		}
		s, err := h.openSource(ctx, "cat /dev/zero",
			zfs.Failure{Op: "cat", Subject: "/dev/zero", Argv: []string{"cat", "/dev/zero"}}, path{nc: h.path.nc})
		if err != nil {
			return nil, err
		}
		return &zeroSource{s, time.Now().Add(from.Time)}, nil
	}
	return nil, hosts.Unsupported(h.name, hosts.OpInspectDevice)
}

func (h *Host) openSend(ctx context.Context, spec zfs.SendSpec, path path) (cli.Stream, error) {
	args, err := zfs.SendArgs(spec)
	if err != nil {
		return nil, err
	}
	subject := spec.Dataset + "@" + spec.To
	return h.openSource(ctx, "zfs send "+subject,
		zfs.Failure{Op: zfs.OpSend, Subject: subject, Argv: append([]string{"zfs"}, args...)}, path)
}

// openSource starts a command that writes the stream. failed describes the command in errors.
func (h *Host) openSource(ctx context.Context, name string, failed zfs.Failure, path path) (*source, error) {
	c, err := h.open(ctx, path, h.name+": "+name, failed.Argv, true)
	if err != nil {
		return nil, err
	}
	s := &source{command: c, failed: failed, ctx: ctx}
	s.stop = context.AfterFunc(ctx, s.end)
	// Data in transit may still arrive, and the end of a complete stream does.
	go c.interruptWhenDone(exitTimeout, func() bool { return s.result() != nil })
	return s, nil
}

// source is a zfs send on the host. It ends with ctx.
type source struct {
	*command
	ctx     context.Context
	stop    func() bool // ctx no longer ends the source
	failed  zfs.Failure
	readErr error // the error that Read returned last, and returns again
}

// Read reads from the stream. io.EOF means that zfs send exited 0 and that nc passed on all its
// output, as far as nc reports it.
func (s *source) Read(b []byte) (n int, err error) {
	if s.readErr == nil {
		n, s.readErr = s.read(b)
		if s.readErr != nil && s.readErr != io.EOF && s.ctx.Err() != nil {
			s.readErr = context.Cause(s.ctx)
		}
	}
	return n, s.readErr
}

func (s *source) read(b []byte) (int, error) {
	n, err := s.conn.Read(b)
	if n > 0 || err == nil {
		return n, nil
	}
	_ = s.conn.Close() // some nc wait for it
	if !s.waitEnd(exitTimeout) {
		s.process.End(sendEndTimeout)
	}
	if failed := s.result(); failed != nil {
		return 0, failed
	}
	if !errors.Is(err, io.EOF) {
		return 0, s.cutError(err)
	}
	return 0, io.EOF
}

// Cause returns the cause of a transfer's failure err, after the source was closed. If zfs send
// aborted, its message replaces the receiver's.
func (s *source) Cause(err error) error {
	if e, lost := s.exit(); lost == nil && cli.SendCaused(e.stderr, err) {
		return cli.RunResult{Stderr: e.stderr}.Err(s.failed, s.host.runner())
	}
	return err
}

// Close ends the tools if they still run.
func (s *source) Close() error {
	s.stop()
	s.end()
	return nil
}

func (s *source) end() {
	_ = s.conn.Close() // pending Reads fail, as intended
	if !s.waitEnd(0) {
		s.process.End(sendEndTimeout)
	}
}

// result returns the error of the ended command, nil if it succeeded. If nc or mbuffer fails, zfs send
// fails too, but without a useful message.
func (s *source) result() error {
	e, lost := s.exit()
	switch {
	case lost != nil:
		return s.cutError(lost)
	case e.status > 0 && e.toolStatus == 0:
		return cli.RunResult{Stderr: e.stderr, Status: e.status}.Err(s.failed, s.host.runner())
	case e.status < 0 || e.toolStatus != 0:
		return s.cutError(fmt.Errorf("%s: exit status %d: %s", s.tool, e.toolStatus, stderrText(e.stderr)))
	}
	return nil
}

var _ cli.Stream = (*source)(nil)

// zeroSource is an endless command on the host, to measure the link. It sends zeros, because no
// tool there produces random data as fast, and nc does not compress.
type zeroSource struct {
	*source
	until time.Time
}

// Read returns io.EOF after the measurement time.
func (n *zeroSource) Read(b []byte) (int, error) {
	if time.Now().After(n.until) {
		return 0, io.EOF
	}
	return n.source.Read(b)
}

// command is a running zfs send or zfs receive on the host, with the connection that its data passes.
type command struct {
	host    *Host
	name    string
	target  string // of a receive
	sends   bool
	tool    string // passes a sender's data to zxfer
	conn    conn
	process *sshexec.Pipe
}

// conn carries the data of a command: a *net.TCPConn or a pipe.
type conn interface {
	io.ReadWriteCloser
	CloseWrite() error
	SetDeadline(t time.Time) error
}

// exit is how a command ended.
type exit struct {
	stderr     string
	status     int // exit status of zfs; -1 = unknown
	toolStatus int // exit status of command.tool
}

// exit waits for the end of the command. It returns an error if the outcome is unknown. It remembers a
// receive that may still run then.
func (c *command) exit() (exit, error) {
	stderr, status, err := c.process.Result()
	if err != nil {
		if _, _, pid := parseStderr(c.process.Stderr()); pid != "" && !c.sends {
			c.host.receives.add(c.host.name, receive{pid, c.target})
		}
		return exit{}, err
	}
	if !c.host.shell {
		return exit{stderr: c.host.withoutNoise(stderr), status: status}, nil
	}
	stderr, sent, _ := parseStderr(stderr)
	if c.sends {
		return exit{stderr, sent, status}, nil
	}
	return exit{stderr: stderr, status: status}, nil
}

// maxLogged limits the messages of one successful zfs receive that are logged: zfs prints one for each
// property that it cannot set.
const maxLogged = 100

// maxQuoted limits the lines of a host's standard error in an error.
const maxQuoted = 5

// stderrText returns the last lines of a standard error.
func stderrText(stderr string) string {
	lines := strings.Split(stderr, "\n")
	return cmp.Or(strings.Join(lines[max(0, len(lines)-maxQuoted):], "; "), "no error message")
}

// cutError wraps why as an error that a retry may cure.
func (c *command) cutError(why error) error {
	return fmt.Errorf("%s: %w: %w", c.name, tcp.ErrConnectionLost, why)
}

// waitEnd waits for the command's end. It reports whether that came in time.
func (c *command) waitEnd(within time.Duration) (ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-c.process.Done():
		return true
	case <-timer.C:
		return false
	}
}

// interruptWhenDone ends reads and writes of the connection after the command ended, if need returns
// true. Over a broken network they would block.
func (c *command) interruptWhenDone(after time.Duration, need func() bool) {
	<-c.process.Done()
	if need() {
		_ = c.conn.SetDeadline(time.Now().Add(after))
	}
}

// Name returns the name for messages.
func (c *command) Name() string { return c.name }
