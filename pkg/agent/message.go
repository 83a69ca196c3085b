package agent

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Limits of what one end takes from the other, in bytes of JSON.
const (
	maxRequest = 16 << 20 // to the agent: names of some 100,000 snapshots
	maxAnswer  = 64 << 20 // to the client: a listing of some 200,000 versions
)

// kind says what a message is.
type kind string

const (
	call     kind = "call"     // client: ID, Op, Body = arguments
	cancel   kind = "cancel"   // client: ID of a call
	ping     kind = "ping"     // client: ID, which the pong has too
	result   kind = "result"   // agent: ID, Body or Error
	progress kind = "progress" // agent: ID, Body
	logged   kind = "log"      // agent: Text
	pong     kind = "pong"     // agent: ID
)

// message is one message; four bytes of length, big-endian, come before its
// JSON.
type message struct {
	Kind  kind            `json:"kind"`
	ID    uint64          `json:"id,omitempty"`
	Op    string          `json:"op,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
	Error *failure        `json:"error,omitempty"`
	Text  string          `json:"text,omitempty"`
}

// encode returns a message as it crosses, at most limit bytes of JSON.
func encode(m *message, limit int) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(text) > limit {
		return nil, &oversize{len(text), limit}
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text))), text...), nil
}

// readMessage takes at most limit bytes of JSON. It returns io.EOF only
// between two messages.
func readMessage(r io.Reader, limit int) (*message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if uint64(n) > uint64(limit) {
		return nil, &oversize{int(n), limit}
	}
	// Memory grows with what really arrives, not with what was announced.
	text, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return nil, err
	}
	if len(text) < int(n) {
		return nil, io.ErrUnexpectedEOF
	}
	m := &message{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("malformed message: %w", err)
	}
	return m, nil
}

// sign is an input every byte of which is a sign of life: a large message on a
// slow line takes longer to cross than a silent end is waited for.
type sign struct {
	io.Reader
	heard func()
}

func (s sign) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if n > 0 {
		s.heard()
	}
	return n, err
}

// decodeStrictly takes one JSON value. What it does not know it refuses: an
// agent that passed over a field would do something else than was asked.
func decodeStrictly(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// oversize is a message that is too long to be sent or taken.
type oversize struct{ size, limit int }

func (e *oversize) Error() string {
	return fmt.Sprintf("message of %d bytes, at most %d are allowed", e.size, e.limit)
}
