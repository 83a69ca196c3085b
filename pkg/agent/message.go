package agent

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"zxfer/pkg/budget"
)

// Limits of what one end takes from the other, in bytes of JSON. What a single
// message may come to is in package budget.
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

// lengthSize is the size of a message's length, big-endian, in bytes.
const lengthSize = 4

// message is one message; its length comes before its JSON.
type message struct {
	Kind  kind            `json:"kind"`
	ID    uint64          `json:"id,omitempty"`
	Op    string          `json:"op,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
	Error *failure        `json:"error,omitempty"`
	Text  string          `json:"text,omitempty"`

	cost    int   // of taking it in
	tooMuch error // it was passed over, all but Kind, ID and Op
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
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, lengthSize+len(text)), uint32(len(text))), text...), nil
}

// beginning is how much of a message tells Kind, ID and Op, in bytes.
const beginning = 512

// readMessage takes at most limit bytes of JSON. allow says, of a message's
// Kind, ID and Op, what it may cost at most: one that costs more is passed over
// before it is decoded, and says so. It returns io.EOF only between two
// messages.
func readMessage(r io.Reader, limit int, allow func(*message) int) (*message, error) {
	var length [lengthSize]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(length[:]))
	if n > limit {
		return nil, &oversize{n, limit}
	}
	text, err := grow(r, nil, min(n, beginning))
	if err != nil {
		return nil, err
	}
	head := headOf(text)
	most := budget.Within(allow(head), n)
	if n > most {
		head.tooMuch = &oversize{n, most}
		_, err := io.CopyN(io.Discard, r, int64(n-len(text)))
		return head, whole(err)
	} else if text, err = grow(r, text, n); err != nil {
		return nil, err
	} else if head.cost = budget.Of(text); head.cost > most {
		head.tooMuch = fmt.Errorf("message that takes %d bytes of memory, at most %d are allowed", head.cost, most)
		return head, nil
	}
	m := &message{cost: head.cost}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("malformed message: %w", err)
	}
	if m.Kind != head.Kind || m.ID != head.ID || m.Op != head.Op {
		return nil, errors.New("malformed message: it is not what it begins as")
	}
	return m, nil
}

// grow reads until text has n bytes. Memory grows with what really arrives, not
// with what was announced.
func grow(r io.Reader, text []byte, n int) ([]byte, error) {
	for len(text) < n {
		have := len(text)
		more := min(n-have, max(64<<10, have))
		text = slices.Grow(text, more)[:have+more]
		if _, err := io.ReadFull(r, text[have:]); err != nil {
			return nil, whole(err)
		}
	}
	return text, nil
}

// whole is the error of an input that ends within a message.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// headOf finds out what a message is by its beginning, which encode makes so.
func headOf(text []byte) *message {
	m := &message{}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return m
	}
	for {
		key, err := d.Token()
		if err != nil {
			return m
		}
		var into any
		switch key {
		case "kind":
			into = &m.Kind
		case "id":
			into = &m.ID
		case "op":
			into = &m.Op
		default:
			return m
		}
		if d.Decode(into) != nil {
			return m
		}
	}
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

// oversize is a message that is too long to be sent or taken.
type oversize struct{ size, limit int }

func (e *oversize) Error() string {
	return fmt.Sprintf("message of %d bytes, at most %d are allowed", e.size, e.limit)
}
