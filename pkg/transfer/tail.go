package transfer

import (
	"io"

	"zxfer/pkg/transport/tcp"
)

// tail passes on a stream and withholds its last keep bytes.
type tail struct {
	keep int
	held []byte
}

// newTail returns the tail that a sink asks for; the zero tail withholds nothing.
func newTail(s Sink) tail {
	if w, ok := s.(TailHolder); ok {
		n := max(0, w.Withhold())
		return tail{keep: n, held: make([]byte, 0, n)}
	}
	return tail{}
}

// write writes the held bytes and the block, except for the last keep bytes. It needs only one
// write, because the block has room for the held bytes before its payload.
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

// flush writes the first n held bytes.
func (t *tail) flush(w io.Writer, n int) error {
	err := writeAll(w, t.held[:n])
	t.held = t.held[:copy(t.held, t.held[n:])]
	return err
}

// extend adds n bytes to the held bytes and returns them for the caller to fill.
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
