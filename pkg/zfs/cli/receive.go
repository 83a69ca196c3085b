package cli

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/remedy"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

const (
	// abortGrace limits how long a receive may take to save its resumable state after its stream
	// ended. It waits for the pool to sync.
	abortGrace = time.Minute
	// failGrace limits how long a receive that stopped reading may take to report its error.
	failGrace = 10 * time.Second
)

// errAborted ends a receive that does not end with its stream.
var errAborted = errors.New("receive was aborted")

// ReceiveSink is a running zfs receive. A zfs.Gate checks the stream before zfs receive gets it. If
// the child failed, Write returns its error instead of a broken pipe.
type ReceiveSink struct {
	p     *process
	w     *os.File
	reads bool
	name  string
	log   func(string)

	gate    *zfs.Gate
	target  string
	refused atomic.Pointer[zfs.Error] // error of the gate
	kill    context.CancelCauseFunc
}

var _ transfer.Sink = (*ReceiveSink)(nil)

// OpenReceive starts zfs receive. It ends with ctx. If this process dies, it ends by itself and
// keeps its partially received state.
func (c *CLI) OpenReceive(ctx context.Context, r zfs.ReceiveSpec) (transfer.Sink, error) {
	args, err := zfs.ReceiveArgs(r)
	if err != nil {
		return nil, err
	}
	gate, err := c.Gate(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.Corrective {
		if err := c.checkCorrective(ctx, r); err != nil {
			return nil, err
		}
	}
	child, w, err := newPipe(pipePair{write: true})
	if err != nil {
		return nil, err
	}
	defer child.Close()
	if takesLargePipe(sysinfo.ZFSVersion(os.DirFS("/"))) {
		transfer.GrowPipe(w)
	}
	properties := slices.Sorted(maps.Keys(r.Set))
	ctx, kill := context.WithCancelCause(ctx)
	p, err := c.start(ctx, start{
		tool: c.zfs, args: args, stdin: child, orphan: true,
		failure: zfs.Failure{Op: zfs.OpReceive, Subject: r.Target, Properties: properties},
	})
	if err != nil {
		kill(nil)
		w.Close()
		return nil, err
	}
	// Wake a blocked writer even if the child cannot end.
	context.AfterFunc(ctx, func() { _ = w.SetWriteDeadline(time.Unix(1, 0)) })
	return &ReceiveSink{p: p, w: w, reads: isProgram(c.zfs), gate: gate, target: r.Target, name: "zfs receive " + r.Target, log: c.log, kill: kill}, nil
}

// Gate returns the checks for the stream of a receive.
func (c *CLI) Gate(ctx context.Context, r zfs.ReceiveSpec) (*zfs.Gate, error) {
	gate, err := zfs.NewGate(r)
	if err != nil || !r.KeepKey || !r.Arrival.Raw {
		return gate, err
	}
	// An existing target has its own key, even if the request names an origin. A new clone shares
	// its origin's key.
	dataset := r.Target
	key, err := c.wrappedKey(ctx, dataset)
	if err == nil && key == "" && r.Origin != "" {
		dataset, _, _ = strings.Cut(r.Origin, "@")
		key, err = c.wrappedKey(ctx, dataset)
	}
	if err != nil {
		err = fmt.Errorf("receive %s: cannot read the key of %s, which must not change: %w", r.Target, dataset, err)
		if errors.Is(err, &zfs.Error{Kind: zfs.Permission}) {
			return nil, fault.Failf("let the agent's account read it: "+remedy.MarkRoot(zfs.AllowCommand("USER", zfs.Work{Ops: []string{zfs.OpSend}}.Permissions(), dataset)), "%w", err)
		}
		return nil, err
	}
	gate.KeepKey(key)
	return gate, nil
}

// wrappedKey returns the wrapped key of a dataset, or "" if it has no snapshot.
func (c *CLI) wrappedKey(ctx context.Context, dataset string) (string, error) {
	l, err := c.List(ctx, zfs.ListQuery{Dataset: dataset, Newest: true, NoAncestors: true})
	if err != nil {
		return "", err
	}
	d := l.Find(dataset)
	if d == nil {
		return "", nil
	}
	latest, ok := d.Latest()
	if !ok {
		return "", nil
	}
	src, err := c.OpenSend(ctx, zfs.SendSpec{Dataset: dataset, To: latest.Name, Flags: zfs.StreamFlags{Raw: true}})
	if err != nil {
		return "", err
	}
	defer src.Close()
	return zfs.WrappedKey(src)
}

// Name returns "zfs receive DATASET".
func (s *ReceiveSink) Name() string { return s.name }

// Pipe returns the write end of the child's stdin, for splice(2). After EPIPE, call Wait for the
// cause.
func (s *ReceiveSink) Pipe() *os.File { return s.w }

// Reads reports whether the child is zfs itself, which only reads its stdin. A script may start another program that
// splices it.
func (s *ReceiveSink) Reads() bool { return s.reads }

// isProgram reports whether a file is a program of this system, and not a script.
func isProgram(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, len(elf.ELFMAG))
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == elf.ELFMAG
}

// Withhold returns the number of bytes at the end of the stream that must not be written before the
// whole stream was authenticated. Without them, zfs receive does not create the last snapshot.
func (s *ReceiveSink) Withhold() int { return zfs.TailSize }

// Wait waits for the end of the child and returns its error.
func (s *ReceiveSink) Wait() error { return s.p.wait() }

// Bypassable returns how many of the next bytes may be written to the pipe unchecked.
func (s *ReceiveSink) Bypassable() int64 { return s.gate.Bypassable() }

// Bypassed records n bytes that were written to the pipe unchecked.
func (s *ReceiveSink) Bypassed(n int64) { s.gate.Bypassed(n) }

// CheckStream returns the error of the next bytes of a stream for a target, or nil if the gate passes them.
func CheckStream(gate *zfs.Gate, target string, b []byte) *zfs.Error {
	err := gate.Check(b)
	if err == nil {
		return nil
	}
	e := &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive, Subject: target,
		Detail: "the stream is not what was planned: " + err.Error(),
		Hint:   "if the source changed, run the same command again; otherwise do not trust that host"}
	if errors.Is(err, zfs.ErrOtherKey) {
		e.Hint = "if the key change is intended, let the target's administrator add --allow receive-rekey=" + target
	}
	return e
}

// Check checks the next bytes of the stream, which the caller then writes to the pipe.
func (s *ReceiveSink) Check(b []byte) error {
	if e := CheckStream(s.gate, s.target, b); e != nil {
		s.refused.Store(e)
		return e
	}
	return nil
}

// Write checks bytes and then writes them to zfs receive.
func (s *ReceiveSink) Write(b []byte) (int, error) {
	if err := s.Check(b); err != nil {
		return 0, err
	}
	n, err := s.w.Write(b)
	return n, s.Explain(err)
}

// Explain returns the error of zfs receive if it stopped reading, otherwise err.
func (s *ReceiveSink) Explain(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrDeadlineExceeded) {
		return cmp.Or(s.failure(failGrace), err)
	}
	return err
}

// failure waits for the error of a child that stopped reading.
func (s *ReceiveSink) failure(timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-s.p.done:
		return s.p.err
	case <-timer.C:
		return nil
	}
}

// Commit ends the stream and waits until zfs receive has stored it or ctx ends.
func (s *ReceiveSink) Commit(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.kill(context.Cause(ctx)) })
	defer stop()
	defer s.kill(nil)
	_ = s.w.Close() // the exit status shows whether all data arrived
	if err := s.Wait(); err != nil {
		return err
	}
	// If a property cannot be set, zfs receive only prints a warning.
	for line := range strings.Lines(s.p.stderr.String()) {
		s.log(s.name + ": " + strings.TrimSpace(line))
	}
	return nil
}

// Abort ends the stream early and waits for at most abortGrace until zfs receive has saved its
// resumable state. It returns nil if the only errors are cause and the incomplete stream.
func (s *ReceiveSink) Abort(cause error) error {
	defer s.kill(nil)
	_ = s.w.Close()
	timer := time.AfterFunc(abortGrace, func() { s.kill(errAborted) })
	defer timer.Stop()
	err := s.Wait()
	switch {
	case s.refused.Load() != nil:
		return nil // zfs receive only reports the end of the stream
	case err == nil:
		return fmt.Errorf("%s: the stream was aborted, but it was complete and is stored", s.name)
	case errors.Is(err, &zfs.Error{Kind: zfs.Incomplete}):
		return nil
	case cause != nil && !errors.Is(err, errStuck) && errors.Is(err, cause):
		return nil // it ended because of cause's context
	}
	return err
}

// checkCorrective refuses corrective receives that crash the kernel, as seen with 2.3.9. If the
// snapshot is mounted or its device is open, an assertion fails in the thread that syncs the pool.
// If the target is a clone, the kernel dereferences a null pointer. If the list of errors is not in
// memory, the receive deadlocks on a host with one processor; reading the list first prevents that.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (dsl_dataset_own_obj_force in dmu_recv_begin_sync, corrective_read_done)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/zfs_ioctl.c (zfs_destroy_unmount_origin)
func (c *CLI) checkCorrective(ctx context.Context, r zfs.ReceiveSpec) error {
	if len(r.Arrival.Snapshots) != 1 {
		return errors.New("a corrective receive requires one snapshot")
	}
	p, err := c.Properties(ctx, []string{r.Target}, []string{"origin", "snapdev"})
	if err != nil {
		return err
	}
	switch of := p[r.Target]; {
	case of == nil:
		return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpReceive, Subject: r.Target, Detail: "dataset does not exist"}
	case of["origin"].Value != "-" && of["origin"].Value != "":
		return fault.Refusef("", "%s is a clone: a corrective receive into one crashes the kernel (OpenZFS 2.2 to 2.4)", r.Target)
	case of["snapdev"].Value == "visible":
		return fault.Refusef(remedy.Mark(remedy.Command("zfs", "set", "snapdev=hidden", r.Target)),
			"%s has snapdev=visible: a corrective receive into a snapshot whose device is open crashes the kernel (OpenZFS 2.2 to 2.4)", r.Target)
	}
	snapshot := r.Target + "@" + r.Arrival.Snapshots[0].Name
	if at, _ := mountedAt(snapshot); at != "" {
		return &zfs.Error{Kind: zfs.Busy, Op: zfs.OpReceive, Subject: snapshot, Detail: "is mounted at " + at,
			Hint: remedy.Mark(remedy.Command("umount", at))}
	}
	_, err = c.Damage(ctx, zfs.PoolOf(r.Target))
	return err
}
