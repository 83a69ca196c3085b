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
	// endWithin is how long the tools of the host may take to end by the end
	// of their connection: a receive that was cut off saves its state first.
	endWithin = time.Minute
	// quitWithin is the same for a sender, which has nothing to save.
	quitWithin = 10 * time.Second
	// acceptWithin is how long a connection that was made may wait for its
	// handshake after the other end is done.
	acceptWithin = 2 * time.Second
	// tellWithin is how long a broken connection waits for the host to tell
	// why.
	tellWithin = 10 * time.Second
)

// far is a connection to the tools of the host, and the script that runs them.
type far struct {
	host *Host
	name string
	conn *net.TCPConn
	run  *sshexec.Script
}

// open starts a script that dials in, and waits for its connection. offer is
// of the listener here.
func (h *Host) open(ctx context.Context, offer tcp.Offer, buffer int64, name string, sends bool, script func(dialer) string) (f *far, err error) {
	l, err := tcp.ListenUnauthenticated(ctx, offer, h.log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = l.Close() // nobody uses it
		}
	}()
	address, port, err := splitAddress(l.Address())
	if err != nil {
		return nil, err
	}
	args, ok := dialArgs(h.tools.dialect, address, port, sends)
	if !ok {
		return nil, fmt.Errorf("%s: nc of the dialect %q", h.name, h.tools.dialect)
	}
	d := dialer{nc: append([]string{h.tools.nc}, args...), secret: l.Secret(), silence: h.silence}
	if h.tools.mbuffer {
		d.buffer = buffer
	}
	f = &far{host: h, name: name}
	// It is ended by Abort and Close, which let it wind down.
	if f.run, err = sshexec.Run(context.WithoutCancel(ctx), h.held.Options, script(d)); err != nil {
		return nil, err
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-f.run.Done():
			// A short stream is over before its connection was accepted.
			select {
			case <-time.After(acceptWithin):
			case <-waiting.Done():
			}
			stop()
		case <-waiting.Done():
		}
	}()
	if f.conn, err = l.Accept(waiting); err == nil {
		return f, nil
	}
	f.run.End(quitWithin)
	if ctx.Err() != nil || errors.Is(err, tcp.ErrNobody) {
		return nil, err
	}
	_, stderr, _, lost := f.run.Result()
	if lost != nil {
		return nil, f.cut(lost)
	}
	return nil, fault.Failf("a firewall between the two hosts? Open ports for it and name them: {{port-range LOW-HIGH}}\nor let the data take the remote shell's connection: zfs send … | ssh … zfs receive …",
		"%s: %s did not reach %s: %s", h.name, h.tools.nc, l.Address(), orNothing(stderr))
}

func orNothing(said string) string {
	if said == "" {
		return "it said nothing"
	}
	return strings.ReplaceAll(said, "\n", "; ")
}

// cut is an error that another try may cure.
func (f *far) cut(why error) error { return fmt.Errorf("%s: %w: %w", f.name, tcp.ErrCut, why) }

// ended waits a while for the script's end; ok tells that it came.
func (f *far) ended(within time.Duration) (ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-f.run.Done():
		return true
	case <-timer.C:
		return false
	}
}

// wake ends reads and writes of the connection once the tools are gone: over a
// network that was cut no word of that would come.
func (f *far) wake(after time.Duration, only func() bool) {
	<-f.run.Done()
	if only() {
		_ = f.conn.SetDeadline(time.Now().Add(after))
	}
}

// Name says what runs there.
func (f *far) Name() string { return f.name }

// sink is a zfs receive of the host.
type sink struct {
	*far
	failed zfs.Failure
	broken atomic.Bool // the connection; of that the tools there may know nothing
}

var (
	_ transfer.Sink       = (*sink)(nil)
	_ transfer.TailHolder = (*sink)(nil)
)

// OpenTo opens an end there. offer is of the listener here; buffer is the memory
// of the host's mbuffer in bytes, if it has one. What was opened ends by Commit
// or Abort.
func (h *Host) OpenTo(ctx context.Context, what hosts.To, offer tcp.Offer, buffer int64) (transfer.Sink, error) {
	switch to := what.(type) {
	case hosts.ReceiveStream:
		return h.openReceive(ctx, to.Spec, offer, buffer)
	case hosts.Nowhere:
		s, err := h.openSink(ctx, "cat >/dev/null", zfs.Failure{Op: "cat", Subject: "/dev/null", Argv: []string{"sh", "-c", "exec cat >/dev/null"}}, offer, 0)
		if err != nil {
			return nil, err
		}
		return &nowhere{s}, nil
	}
	_, err := hosts.RoleOf[hosts.Devices](h)
	return nil, err
}

func (h *Host) openReceive(ctx context.Context, r zfs.ReceiveSpec, offer tcp.Offer, buffer int64) (transfer.Sink, error) {
	args, err := zfs.ReceiveArgs(r)
	if err == nil && r.KeepKey && r.Arrival.Raw {
		err = fault.Refusef("there, have it be an encryption root of its own: zfs change-key "+zfs.CommandLine([]string{r.Target}), "%s: whether %s keeps its key cannot be seen without zxfer there", h.name, r.Target)
	}
	if err != nil {
		return nil, err
	}
	return h.openSink(ctx, "zfs receive "+r.Target, zfs.Failure{Op: zfs.OpReceive, Subject: r.Target, Argv: append([]string{"zfs"}, args...),
		Properties: slices.Collect(maps.Keys(r.Set)), Rollback: r.Rollback}, offer, buffer)
}

// openSink starts a command that reads, and whose failure is told so.
func (h *Host) openSink(ctx context.Context, name string, failed zfs.Failure, offer tcp.Offer, buffer int64) (*sink, error) {
	f, err := h.open(ctx, offer, buffer, h.name+": "+name, false, func(d dialer) string { return d.receive(failed.Argv) })
	if err != nil {
		return nil, err
	}
	s := &sink{far: f, failed: failed}
	go f.wake(0, func() bool { return true })
	return s, nil
}

// Withhold is how many bytes of the stream's end must not be written before
// the source ended well.
func (s *sink) Withhold() int { return zfs.TailSize }

// Write passes bytes on. Where zfs receive failed, it says how.
func (s *sink) Write(b []byte) (int, error) {
	n, err := s.conn.Write(b)
	if err == nil {
		return n, nil
	}
	s.broken.Store(true)
	if s.ended(tellWithin) {
		if failed := s.result(); failed != nil {
			return n, failed
		}
	}
	return n, s.cut(err)
}

// result is how zfs receive ended; nil if well.
func (s *sink) result() error {
	_, stderr, status, lost := s.run.Result()
	switch {
	case lost != nil:
		return s.cut(lost)
	case status != 0:
		return cli.Ran{Stderr: stderr, Status: status}.Err(s.failed, elsewhere{s.host})
	}
	for line := range strings.Lines(stderr) {
		s.host.log(s.name + ": " + strings.TrimSpace(line))
	}
	return nil
}

// Commit ends the stream and waits for zfs receive to have stored it, as long
// as that takes, but not beyond ctx.
func (s *sink) Commit(ctx context.Context) error {
	defer s.conn.Close()
	if err := s.conn.CloseWrite(); err != nil && !s.ended(tellWithin) {
		s.run.End(s.host.ending)
		return s.cut(err)
	}
	select {
	case <-s.run.Done():
	case <-ctx.Done():
		s.run.End(s.host.ending)
	}
	return s.result()
}

// Abort ends the stream early and waits for zfs receive to save its resumable
// state.
func (s *sink) Abort(error) error {
	_ = s.conn.Close() // the end of the stream, but without its END record
	switch {
	case s.broken.Load():
		s.run.End(s.host.ending)
	case !s.ended(s.host.ending):
		s.run.End(quitWithin)
	}
	err := s.result()
	switch {
	case err == nil:
		return fmt.Errorf("%s: the stream was given up, but it was whole and is stored", s.name)
	case errors.Is(err, &zfs.Error{Kind: zfs.Incomplete}), errors.Is(err, tcp.ErrCut):
		return nil
	}
	return err
}

// source is a zfs send of the host.
type source struct {
	*far
	failed zfs.Failure
	over   error // what Read ended with, and ends with
}

var _ cli.Stream = (*source)(nil)

// OpenFrom opens an end there; see OpenTo. What was opened ends by Close.
func (h *Host) OpenFrom(ctx context.Context, what hosts.From, offer tcp.Offer, buffer int64) (transfer.Source, error) {
	switch from := what.(type) {
	case hosts.SendStream:
		return h.openSend(ctx, from.Spec, offer, buffer)
	case hosts.Noise:
		s, err := h.openSource(ctx, "cat /dev/zero", zfs.Failure{Op: "cat", Subject: "/dev/zero", Argv: []string{"cat", "/dev/zero"}}, offer, 0)
		if err != nil {
			return nil, err
		}
		return &noise{s, time.Now().Add(from.Time)}, nil
	}
	_, err := hosts.RoleOf[hosts.Devices](h)
	return nil, err
}

func (h *Host) openSend(ctx context.Context, spec zfs.SendSpec, offer tcp.Offer, buffer int64) (transfer.Source, error) {
	args, err := zfs.SendArgs(spec)
	if err != nil {
		return nil, err
	}
	subject := spec.Dataset + "@" + spec.To
	return h.openSource(ctx, "zfs send "+subject, zfs.Failure{Op: zfs.OpSend, Subject: subject, Argv: append([]string{"zfs"}, args...)}, offer, buffer)
}

// openSource starts a command that writes, and whose failure is told so.
func (h *Host) openSource(ctx context.Context, name string, failed zfs.Failure, offer tcp.Offer, buffer int64) (*source, error) {
	f, err := h.open(ctx, offer, buffer, h.name+": "+name, true, func(d dialer) string { return d.send(failed.Argv) })
	if err != nil {
		return nil, err
	}
	s := &source{far: f, failed: failed}
	// What is on its way comes yet, and where all went well its end does.
	go f.wake(tellWithin, func() bool { return s.result() != nil })
	return s, nil
}

// Read reads from the stream. io.EOF means that zfs send exited 0, and that nc
// passed on all that it wrote, as far as nc can tell.
func (s *source) Read(b []byte) (n int, err error) {
	if s.over == nil {
		n, s.over = s.read(b)
	}
	return n, s.over
}

func (s *source) read(b []byte) (int, error) {
	n, err := s.conn.Read(b)
	if n > 0 || err == nil {
		return n, nil
	}
	_ = s.conn.Close() // some nc wait for it
	if !s.ended(tellWithin) {
		s.run.End(quitWithin)
	}
	if failed := s.result(); failed != nil {
		return 0, failed
	}
	if !errors.Is(err, io.EOF) {
		return 0, s.cut(err)
	}
	return 0, io.EOF
}

// result is how the tools ended; nil if well. Without nc, zfs send fails too,
// but has nothing to say.
func (s *source) result() error {
	out, stderr, status, lost := s.run.Result()
	sent, told := sentStatus(out)
	switch {
	case lost != nil:
		return s.cut(lost)
	case told && sent != 0 && status == 0:
		return cli.Ran{Stderr: stderr, Status: sent}.Err(s.failed, elsewhere{s.host})
	case !told || status != 0:
		return s.cut(fmt.Errorf("%s ended with status %d: %s", s.host.tools.nc, status, orNothing(stderr)))
	}
	return nil
}

// Cause is why a transfer of the stream failed with err, once the source is closed:
// where zfs send gave a snapshot up, what the receiver says of the stream explains
// nothing.
func (s *source) Cause(err error) error {
	_, stderr, _, lost := s.run.Result()
	if lost == nil && cli.Explains(stderr, err) {
		return cli.Ran{Stderr: stderr}.Err(s.failed, elsewhere{s.host})
	}
	return err
}

// Close ends the tools, if they still run.
func (s *source) Close() error {
	_ = s.conn.Close() // its Reads fail; nothing is left to be said
	if !s.ended(0) {
		s.run.End(quitWithin)
	}
	return nil
}

func splitAddress(s string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	port, err = net.LookupPort("tcp", text)
	return host, port, err
}
