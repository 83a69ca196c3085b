package netcat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"zxfer/pkg/fault"
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
	// acceptTimeout is how long an accepted connection may wait for its handshake after the
	// script ended.
	acceptTimeout = 2 * time.Second
	// exitTimeout is how long a broken connection waits for the script's error.
	exitTimeout = 10 * time.Second
)

// OpenTo opens a sink on the host. offer configures the local listener. buffer is the memory of
// the host's mbuffer in bytes, if it has one. The sink ends with Commit or Abort.
func (h *Host) OpenTo(ctx context.Context, dst hosts.To, offer tcp.Offer, buffer int64) (transfer.Sink, error) {
	switch to := dst.(type) {
	case hosts.ReceiveStream:
		return h.openReceive(ctx, to.Spec, offer, buffer)
	case hosts.Nowhere:
		s, err := h.openSink(ctx, "cat >/dev/null", zfs.Failure{Op: "cat", Subject: "/dev/null", Argv: []string{"sh", "-c", "exec cat >/dev/null"}}, offer, 0)
		if err != nil {
			return nil, err
		}
		return &nullSink{s}, nil
	}
	return nil, hosts.Unsupported(h.name, hosts.OpInspectDevice)
}

func (h *Host) openReceive(ctx context.Context, r zfs.ReceiveSpec, offer tcp.Offer, buffer int64) (transfer.Sink, error) {
	args, err := zfs.ReceiveArgs(r)
	if err == nil && r.KeepKey && r.Arrival.Raw {
		err = fault.Refusef("make the copy an encryption root: zfs change-key "+zfs.CommandLine([]string{r.Target}), "%s: cannot check without zxfer whether %s keeps its key", h.name, r.Target)
	}
	if err != nil {
		return nil, err
	}
	return h.openSink(ctx, "zfs receive "+r.Target, zfs.Failure{Op: zfs.OpReceive, Subject: r.Target, Argv: append([]string{"zfs"}, args...),
		Properties: slices.Collect(maps.Keys(r.Set)), Rollback: r.Rollback}, offer, buffer)
}

// openSink starts a command that reads the stream. failed describes the command in errors.
func (h *Host) openSink(ctx context.Context, name string, failed zfs.Failure, offer tcp.Offer, buffer int64) (*sink, error) {
	f, err := h.open(ctx, offer, buffer, h.name+": "+name, false, func(d dialer) string { return d.receive(failed.Argv) })
	if err != nil {
		return nil, err
	}
	s := &sink{scriptConn: f, failed: failed}
	go f.interruptWhenDone(0, func() bool { return true })
	return s, nil
}

// sink is a zfs receive on the host.
type sink struct {
	*scriptConn
	failed zfs.Failure
	broken atomic.Bool // the connection broke; the tools may not have noticed
}

// Write sends bytes. If zfs receive failed, it returns the cause.
func (s *sink) Write(b []byte) (int, error) {
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
		s.run.End(s.host.endTimeout)
		return s.cutError(err)
	}
	select {
	case <-s.run.Done():
	case <-ctx.Done():
		s.run.End(s.host.endTimeout)
	}
	return s.result()
}

// Abort ends the stream early and waits until zfs receive has saved its resumable state.
func (s *sink) Abort(error) error {
	_ = s.conn.Close() // the stream ends without its END record
	switch {
	case s.broken.Load():
		s.run.End(s.host.endTimeout)
	case !s.waitEnd(s.host.endTimeout):
		s.run.End(sendEndTimeout)
	}
	err := s.result()
	switch {
	case err == nil:
		return fmt.Errorf("%s: the stream was aborted, but it was complete and is stored", s.name)
	case errors.Is(err, &zfs.Error{Kind: zfs.Incomplete}), errors.Is(err, tcp.ErrConnectionLost):
		return nil
	}
	return err
}

// result returns the error of the ended command, nil if it succeeded.
func (s *sink) result() error {
	_, stderr, status, lost := s.run.Result()
	switch {
	case lost != nil:
		return s.cutError(lost)
	case status != 0:
		return cli.RunResult{Stderr: stderr, Status: status}.Err(s.failed, remoteRunner{s.host})
	}
	for line := range strings.Lines(stderr) {
		s.host.log(s.name + ": " + strings.TrimSpace(line))
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
		n.run.End(sendEndTimeout)
	}
	return nil
}

// OpenFrom opens a source on the host, see OpenTo. It ends with Close.
func (h *Host) OpenFrom(ctx context.Context, src hosts.From, offer tcp.Offer, buffer int64) (transfer.Source, error) {
	switch from := src.(type) {
	case hosts.SendStream:
		return h.openSend(ctx, from.Spec, offer, buffer)
	case hosts.Noise:
		s, err := h.openSource(ctx, "cat /dev/zero", zfs.Failure{Op: "cat", Subject: "/dev/zero", Argv: []string{"cat", "/dev/zero"}}, offer, 0)
		if err != nil {
			return nil, err
		}
		return &zeroSource{s, time.Now().Add(from.Time)}, nil
	}
	return nil, hosts.Unsupported(h.name, hosts.OpInspectDevice)
}

func (h *Host) openSend(ctx context.Context, spec zfs.SendSpec, offer tcp.Offer, buffer int64) (transfer.Source, error) {
	args, err := zfs.SendArgs(spec)
	if err != nil {
		return nil, err
	}
	subject := spec.Dataset + "@" + spec.To
	return h.openSource(ctx, "zfs send "+subject, zfs.Failure{Op: zfs.OpSend, Subject: subject, Argv: append([]string{"zfs"}, args...)}, offer, buffer)
}

// openSource starts a command that writes the stream. failed describes the command in errors.
func (h *Host) openSource(ctx context.Context, name string, failed zfs.Failure, offer tcp.Offer, buffer int64) (*source, error) {
	f, err := h.open(ctx, offer, buffer, h.name+": "+name, true, func(d dialer) string { return d.send(failed.Argv) })
	if err != nil {
		return nil, err
	}
	s := &source{scriptConn: f, failed: failed}
	// Data in transit may still arrive, and the end of a complete stream does.
	go f.interruptWhenDone(exitTimeout, func() bool { return s.result() != nil })
	return s, nil
}

// source is a zfs send on the host.
type source struct {
	*scriptConn
	failed  zfs.Failure
	readErr error // the error that Read returned last, and returns again
}

// Read reads from the stream. io.EOF means that zfs send exited 0 and that nc passed on all its
// output, as far as nc reports it.
func (s *source) Read(b []byte) (n int, err error) {
	if s.readErr == nil {
		n, s.readErr = s.read(b)
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
		s.run.End(sendEndTimeout)
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
	_, stderr, _, lost := s.run.Result()
	if lost == nil && cli.SendCaused(stderr, err) {
		return cli.RunResult{Stderr: stderr}.Err(s.failed, remoteRunner{s.host})
	}
	return err
}

// Close ends the tools if they still run.
func (s *source) Close() error {
	_ = s.conn.Close() // pending Reads fail, as intended
	if !s.waitEnd(0) {
		s.run.End(sendEndTimeout)
	}
	return nil
}

// result returns the error of the ended script, nil if it succeeded. If nc fails, zfs send fails
// too, but without a useful message.
func (s *source) result() error {
	out, stderr, status, lost := s.run.Result()
	sent, reported := sentStatus(out)
	switch {
	case lost != nil:
		return s.cutError(lost)
	case reported && sent != 0 && status == 0:
		return cli.RunResult{Stderr: stderr, Status: sent}.Err(s.failed, remoteRunner{s.host})
	case !reported || status != 0:
		return s.cutError(fmt.Errorf("%s: exit status %d: %s", s.host.tools.nc, status, stderrText(stderr)))
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

// scriptConn is a connection to the host's tools and the script that runs them.
type scriptConn struct {
	host *Host
	name string
	conn *net.TCPConn
	run  *sshexec.Script
}

// open starts a script that dials in, and waits for its connection. offer configures the local
// listener.
func (h *Host) open(ctx context.Context, offer tcp.Offer, buffer int64, name string, sends bool, script func(dialer) string) (f *scriptConn, err error) {
	l, err := tcp.ListenUnauthenticated(ctx, offer, h.log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = l.Close() // no caller will
		}
	}()
	address, port, err := splitAddress(l.Address())
	if err != nil {
		return nil, err
	}
	args, ok := dialArgs(h.tools.dialect, address, port, sends)
	if !ok {
		return nil, fmt.Errorf("%s: unknown variant of nc %q", h.name, h.tools.dialect)
	}
	d := dialer{nc: append([]string{h.tools.nc}, args...), secret: l.Secret(), beatTimeout: h.beatTimeout}
	if h.tools.mbuffer {
		d.buffer = buffer
	}
	f = &scriptConn{host: h, name: name}
	// Not ctx: Abort and Close let the script end gracefully.
	if f.run, err = sshexec.Run(context.WithoutCancel(ctx), h.held.Options, script(d)); err != nil {
		return nil, err
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-f.run.Done():
			// A short stream may end before its connection is accepted.
			select {
			case <-time.After(acceptTimeout):
			case <-waiting.Done():
			}
			stop()
		case <-waiting.Done():
		}
	}()
	if f.conn, err = l.Accept(waiting); err == nil {
		return f, nil
	}
	f.run.End(sendEndTimeout)
	if ctx.Err() != nil || errors.Is(err, tcp.ErrNoPeer) {
		return nil, err
	}
	_, stderr, _, lost := f.run.Result()
	if lost != nil {
		return nil, f.cutError(lost)
	}
	return nil, fault.Failf("open ports in the firewall and name them: {{port-range LOW-HIGH}}\nor send through ssh: zfs send … | ssh … zfs receive …",
		"%s: %s could not connect to %s: %s", h.name, h.tools.nc, l.Address(), stderrText(stderr))
}

func splitAddress(s string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	port, err = net.LookupPort("tcp", text)
	return host, port, err
}

func stderrText(stderr string) string {
	if stderr == "" {
		return "no error message"
	}
	return strings.ReplaceAll(stderr, "\n", "; ")
}

// cutError wraps why as an error that a retry may cure.
func (f *scriptConn) cutError(why error) error {
	return fmt.Errorf("%s: %w: %w", f.name, tcp.ErrConnectionLost, why)
}

// waitEnd waits for the script's end. It reports whether that came in time.
func (f *scriptConn) waitEnd(within time.Duration) (ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-f.run.Done():
		return true
	case <-timer.C:
		return false
	}
}

// interruptWhenDone ends reads and writes of the connection after the script ended and if returns
// true. Over a broken network they would block.
func (f *scriptConn) interruptWhenDone(after time.Duration, only func() bool) {
	<-f.run.Done()
	if only() {
		_ = f.conn.SetDeadline(time.Now().Add(after))
	}
}

// Name returns the name for messages.
func (f *scriptConn) Name() string { return f.name }
