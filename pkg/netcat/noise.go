package netcat

import (
	"io"
	"time"
)

// noise is a command of the host that writes without end, to measure the way
// from there; it is zeros, as no tool there makes noise as fast, and nc packs
// nothing.
type noise struct {
	*source
	until time.Time
}

// Read ends when the time is up.
func (n *noise) Read(b []byte) (int, error) {
	if time.Now().After(n.until) {
		return 0, io.EOF
	}
	return n.source.Read(b)
}

// nowhere is a command of the host that reads and keeps nothing.
type nowhere struct{ *sink }

// Abort has nothing to save.
func (n *nowhere) Abort(error) error {
	_ = n.conn.Close() // nothing is left to be said
	if !n.ended(0) {
		n.run.End(quitWithin)
	}
	return nil
}
