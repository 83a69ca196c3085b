package transfer

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"zxfer/pkg/transport/tcp"
)

// The zero-copy path splices one connection of mode plain to a Sink's pipe. It has no ring and no digest: only withheld
// and inspected bytes enter user space. The sender copies: a splice from its pipe costs more processor time.

// rawPipe returns the raw connection of a pipe.
func rawPipe(f *os.File) (syscall.RawConn, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("%s cannot be spliced: %w", f.Name(), err)
	}
	return raw, nil
}

// splice moves frames from the only connection to the sink's pipe. It reads the last bytes of
// each frame and writes them before the next one. So the tail of the stream stays out of the
// pipe until the end is verified.
func (r *receiveEngine) splice() (tcp.Account, error) {
	sink := r.pipe
	pipe, err := rawPipe(sink.Pipe())
	if err != nil {
		return tcp.Account{}, &TargetError{err}
	}
	c := r.link.Conns()[0]
	full := r.spliced
	b := r.ring.get()
	for {
		h, err := c.ReadHeader(b)
		if err != nil {
			return tcp.Account{}, err
		}
		if h.Kind != tcp.Data || h.Flags != 0 {
			if err := c.ReadPayload(h, b); err != nil {
				return tcp.Account{}, err
			}
		}
		switch {
		case h.Kind != tcp.Data:
			return parseEnd(c, h, b)
		case h.Position != r.writer.frames:
			return tcp.Account{}, fmt.Errorf("%w: received frame %d instead of %d", ErrTotalsMismatch, h.Position, r.writer.frames)
		case h.Flags&^tcp.Compressed != 0:
			return tcp.Account{}, fmt.Errorf("%w: a device frame in a stream", tcp.ErrTampered)
		case h.Flags != 0:
			p := &piece{block: b, header: h}
			if r.decompress.decompress(p); p.err != nil {
				return tcp.Account{}, p.err
			}
			full.Start()
			err := r.writer.tail.write(sink, p.block)
			full.Stop()
			if err != nil {
				return tcp.Account{}, &TargetError{err}
			}
			b = p.block
		default:
			if err := r.splicePayload(c, sink, pipe, h.Payload, full); err != nil {
				return tcp.Account{}, err
			}
		}
		r.writer.frames++
		r.in.meter.bytes.Add(int64(h.Raw))
		r.writer.write.bytes.Add(int64(h.Raw))
	}
}

// splicePayload moves a payload of n bytes, except for the tail.
func (r *receiveEngine) splicePayload(c *tcp.Conn, sink PipeSink, pipe syscall.RawConn, n int, full *tcp.WaitTimer) error {
	// The new tail is the end of this payload. If the payload is short, it starts with part of
	// the old tail.
	own := min(n, r.writer.tail.keep)
	old := len(r.writer.tail.held) + own - r.writer.tail.keep
	if old > 0 {
		full.Start()
		err := r.writer.tail.flush(sink, old)
		full.Stop()
		if err != nil {
			return &TargetError{err}
		}
	}
	for left, chunk := n-own, minInspect; left > 0; {
		m := int(min(int64(left), sink.Bypassable()))
		if m < min(left, minSplice) {
			// Copy small chunks first. They grow while hardly any bytes may pass uninspected.
			m, chunk = min(left, chunk), min(2*chunk, maxInspect)
			if err := r.inspect(c, sink, m, full); err != nil {
				return err
			}
		} else {
			if err := c.SpliceTo(pipe, m, full); err != nil {
				if errors.Is(err, tcp.ErrPipe) {
					return &TargetError{sink.Explain(err)}
				}
				return err
			}
			sink.Bypassed(int64(m))
			chunk = minInspect
		}
		left -= m
	}
	return c.ReadPart(r.writer.tail.extend(own))
}

// Sizes in bytes for bytes that the sink inspects, such as records of 312 bytes between blocks.
const (
	minInspect = 1 << 10
	maxInspect = 256 << 10
	minSplice  = 16 << 10
)

// inspect copies the next n bytes of a payload to the sink.
func (r *receiveEngine) inspect(c *tcp.Conn, sink PipeSink, n int, full *tcp.WaitTimer) error {
	if cap(r.inspectBuf) < n {
		r.inspectBuf = make([]byte, n)
	}
	b := r.inspectBuf[:n]
	if err := c.ReadPart(b); err != nil {
		return err
	}
	full.Start()
	err := writeAll(sink, b)
	full.Stop()
	if err != nil {
		return &TargetError{err}
	}
	return nil
}
