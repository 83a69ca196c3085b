package transfer

import (
	"io"

	"zxfer/pkg/transport/tcp"
)

// tail passes a stream on but for its last keep bytes.
type tail struct {
	keep int
	held []byte
}

// newTail asks a sink what it must not see too soon.
func newTail(s Sink) tail {
	if w, ok := s.(TailHolder); ok {
		n := max(0, w.Withhold())
		return tail{keep: n, held: make([]byte, 0, n)}
	}
	return tail{}
}

// write writes what a block brought and what was held, but for the last keep
// bytes of both. The block, which has room for that in front of it, makes it
// one write.
func (t *tail) write(w io.Writer, b *tcp.Block) error {
	if len(t.held)+len(b.Payload()) <= t.keep {
		t.held = append(t.held, b.Payload()...)
		return nil
	}
	p := b.Prepend(t.held)
	cut := len(p) - t.keep
	err := writeAll(w, p[:cut])
	t.held = append(t.held[:0], p[cut:]...)
	return err
}

// flush writes the first n bytes of what is held.
func (t *tail) flush(w io.Writer, n int) error {
	err := writeAll(w, t.held[:n])
	t.held = t.held[:copy(t.held, t.held[n:])]
	return err
}

// extend lengthens what is held by n bytes, to be filled.
func (t *tail) extend(n int) []byte {
	have := len(t.held)
	t.held = t.held[:have+n]
	return t.held[have:]
}

func writeAll(w io.Writer, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	n, err := w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return err
}
