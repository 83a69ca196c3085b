package cli

import (
	"bytes"
	"sync"
)

// maxStderr bounds what is kept of a child's stderr: the end of it.
const maxStderr = 64 << 10

// Tail is a writer that keeps the last maxStderr bytes written to it, whole lines only once
// something had to go.
type Tail struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

// Write never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - maxStderr; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.cut = true
	}
	return len(b), nil
}

// String returns what was kept.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.buf
	if t.cut {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}
