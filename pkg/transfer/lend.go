package transfer

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"zxfer/pkg/transport/tcp"
)

// lender writes a stream to a PipeSink. It lends large blocks to the pipe: vmsplice(2) copies no
// bytes, but lets the pipe refer to the pages of the block. So the block must not change before the
// consumer has read it. The consumer must read(2) the pipe, as zfs receive does, because splice(2)
// would take the pages out of the pipe.
//
// Between the checks of a block and its release, zxfer does not change it. So the consumer reads the
// bytes that were authenticated and checked.
type lender struct {
	sink PipeSink
	pipe syscall.RawConn

	lend    bool  // lend the next bytes
	refused bool  // the kernel refused to lend
	written int64 // bytes written to the pipe
	lent    []lentBlock
}

// lentBlock is a block that the pipe refers to until it was read up to end.
type lentBlock struct {
	block *tcp.Block
	end   int64 // bytes of the stream
}

// newLender returns nil if the sink has no pipe, or one whose pages may stay in use.
func newLender(s Sink) *lender {
	p, ok := s.(PipeSink)
	if !ok || !p.Reads() {
		return nil
	}
	raw, err := rawPipe(p.Pipe())
	if err != nil {
		return nil
	}
	return &lender{sink: p, pipe: raw}
}

// write writes the held tail and a block, except for the new tail. It releases the blocks of r that
// are no longer in use.
func (l *lender) write(t *tail, r *ring, b *tcp.Block) error {
	// Lending a small part of a block would keep too many blocks out of use.
	l.lend = !l.refused && r.mapped() && 2*len(b.Payload()) >= len(b.Buffer())
	if err := t.write(l, b); err != nil {
		return err
	}
	if !l.lend {
		r.release(b)
		return nil
	}
	l.lent = append(l.lent, lentBlock{b, l.written})
	return l.reclaim(r)
}

// reclaim releases the blocks that the consumer has read.
func (l *lender) reclaim(r *ring) error {
	unread, err := 0, error(nil)
	cerr := l.pipe.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // FIONREAD
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("%w: %w", tcp.ErrPipe, err)
	}
	for len(l.lent) > 0 && l.lent[0].end <= l.written-int64(unread) {
		r.release(l.lent[0].block)
		l.lent = l.lent[1:]
	}
	return nil
}

// Write lends p to the pipe, or copies it.
func (l *lender) Write(p []byte) (n int, err error) {
	if !l.lend {
		n, err = l.sink.Write(p)
	} else if err = l.sink.Check(p); err == nil {
		n, err = l.vmsplice(p)
	}
	l.written += int64(n)
	return n, err
}

// vmsplice lends p to the pipe. If the kernel does not allow it, it copies the rest.
func (l *lender) vmsplice(p []byte) (n int, err error) {
	werr := l.pipe.Write(func(fd uintptr) bool {
		for n < len(p) {
			var k int
			k, err = unix.Vmsplice(int(fd), []unix.Iovec{iovec(p[n:])}, unix.SPLICE_F_NONBLOCK)
			switch {
			case err == nil:
				n += k
			case err == unix.EAGAIN: // the pipe is full
				return false
			case err != unix.EINTR:
				return true
			}
		}
		return true
	})
	switch {
	case werr != nil:
		err = werr
	case err == unix.EINVAL, err == unix.ENOSYS, err == unix.EPERM: // as in a sandbox
		l.refused = true
		var k int
		k, err = l.sink.Pipe().Write(p[n:])
		n += k
	}
	if err != nil {
		return n, l.sink.Explain(fmt.Errorf("%w: %w", tcp.ErrPipe, err))
	}
	return n, nil
}

func iovec(p []byte) unix.Iovec {
	v := unix.Iovec{Base: &p[0]}
	v.SetLen(len(p))
	return v
}
