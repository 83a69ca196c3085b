package agent

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"zxfer/pkg/budget"
)

// Protocol is the protocol version. Agent and client must have the same.
const Protocol = 6

// helloWord starts the agent's first line:
//
//	zxfer-agent PROTOCOL VERSION
//
// An empty line precedes it, because a login shell may leave its last line open. Package
// sshexec skips other output of the shell.
const helloWord = "zxfer-agent"

func hello(version string) string {
	return fmt.Sprintf("\n%s %d %s\n", helloWord, Protocol, cmp.Or(strings.Join(strings.Fields(version), "-"), "unknown"))
}

// readHello reads the hello line and returns the agent's version.
func readHello(r *bufio.Reader) (version string, err error) {
	for {
		line, err := r.ReadSlice('\n')
		var protocol int
		n, _ := fmt.Sscanf(string(line), helloWord+" %d %s\n", &protocol, &version)
		switch text := strings.TrimSpace(string(line)); {
		case n == 2 && protocol != Protocol:
			return version, &Mismatch{protocol, version}
		case n == 2:
			return version, nil
		case text != "":
			return "", fmt.Errorf("its message: %s", clip(text, maxLine))
		case err != nil:
			return "", err
		}
	}
}

// Mismatch reports an agent with a different protocol version.
type Mismatch struct {
	protocol int
	version  string
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("zxfer there is %s and speaks protocol %d, the local one speaks %d", m.version, m.protocol, Protocol)
}

// kind is the kind of a message.
type kind string

const (
	call     kind = "call"     // client: ID, Op, Body = arguments
	cancel   kind = "cancel"   // client: ID of a call
	ping     kind = "ping"     // client: ID, repeated by the pong
	result   kind = "result"   // agent: ID, Body or Error
	progress kind = "progress" // agent: ID, Body
	logged   kind = "log"      // agent: Text
	pong     kind = "pong"     // agent: ID
	alive    kind = "alive"    // agent: a sign of life
)

// message is one message of the protocol, preceded by its length. The agent compresses its messages,
// because answers repeat names and properties: less data needs fewer round trips, until the congestion
// window of TCP has grown. The client does not compress its messages, which are small.
type message struct {
	Kind  kind            `json:"kind"`
	ID    uint64          `json:"id,omitempty"`
	Op    string          `json:"op,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
	Error *failure        `json:"error,omitempty"`
	Text  string          `json:"text,omitempty"`

	cost     int   // memory to decode it, in bytes
	rejected error // why it was skipped; only Kind, ID and Op are set
}

// lengthSize is the size of the big-endian length, in bytes.
const lengthSize = 4

// encode returns a message with its length, or an oversize error if the JSON exceeds limit
// bytes.
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

// readMessage reads a message of at most limit bytes of JSON. allow returns the maximum cost of
// a message, given its Kind, ID and Op. A message that costs more is skipped before decoding,
// and rejected is set. io.EOF is returned only between messages.
func readMessage(r io.Reader, limit int, allow func(*message) int) (*message, error) {
	var length [lengthSize]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(length[:]))
	if n > limit {
		return nil, &oversize{n, limit}
	}
	text, err := grow(r, nil, min(n, headSize))
	if err != nil {
		return nil, err
	}
	head := parseHead(text)
	most := budget.Limit(allow(head), n)
	if n > most {
		head.rejected = &oversize{n, most}
		_, err := io.CopyN(io.Discard, r, int64(n-len(text)))
		return head, unexpectedEOF(err)
	} else if text, err = grow(r, text, n); err != nil {
		return nil, err
	} else if head.cost = budget.Cost(text); head.cost > most {
		head.rejected = fmt.Errorf("message needs %d bytes of memory, more than %d", head.cost, most)
		return head, nil
	}
	m := &message{cost: head.cost}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("malformed message: %w", err)
	}
	if m.Kind != head.Kind || m.ID != head.ID || m.Op != head.Op {
		return nil, errors.New("malformed message: its type does not match its start")
	}
	return m, nil
}

// headSize is the number of bytes that contain Kind, ID and Op.
const headSize = 512

// parseHead decodes Kind, ID and Op, which encode writes first.
func parseHead(text []byte) *message {
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

// grow reads until text has n bytes. Memory grows with the data received, not with the
// announced length.
func grow(r io.Reader, text []byte, n int) ([]byte, error) {
	for len(text) < n {
		have := len(text)
		more := min(n-have, max(64<<10, have))
		text = slices.Grow(text, more)[:have+more]
		if _, err := io.ReadFull(r, text[have:]); err != nil {
			return nil, unexpectedEOF(err)
		}
	}
	return text, nil
}

// unexpectedEOF turns io.EOF within a message into io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// activityReader calls onData for any data, not only whole messages: a large message on a slow
// link takes longer than the silence timeout.
type activityReader struct {
	io.Reader
	onData func()
}

func (s activityReader) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if n > 0 {
		s.onData()
	}
	return n, err
}

// oversize reports a message that is too long.
type oversize struct{ size, limit int }

func (e *oversize) Error() string {
	return fmt.Sprintf("message of %d bytes, more than %d", e.size, e.limit)
}
