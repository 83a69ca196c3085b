package agent

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Protocol is the version of what an agent and its client say to each other.
// Both must have the same.
const Protocol = 1

// helloWord begins the line that an agent starts with:
//
//	zxfer-agent PROTOCOL VERSION
const helloWord = "zxfer-agent"

// Limits of what one end takes from the other.
const (
	maxMessage = 64 << 20 // a listing of some 200,000 versions
	maxNoise   = 64 << 10 // what a login shell may print before the hello line
)

// kind says what a message is.
type kind string

const (
	call     kind = "call"     // client: ID, Op, Body = arguments
	cancel   kind = "cancel"   // client: ID of a call
	ping     kind = "ping"     // client
	result   kind = "result"   // agent: ID, Body or Error
	progress kind = "progress" // agent: ID, Body
	logged   kind = "log"      // agent: Text
	pong     kind = "pong"     // agent
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

func encode(m *message) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(text) > maxMessage {
		return nil, fmt.Errorf("message of %d bytes, at most %d are allowed", len(text), maxMessage)
	}
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(text)), uint32(len(text))), text...), nil
}

// readMessage returns io.EOF only between two messages.
func readMessage(r io.Reader) (*message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxMessage {
		return nil, fmt.Errorf("message of %d bytes, at most %d are allowed", n, maxMessage)
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

func hello(version string) string {
	return fmt.Sprintf("%s %d %s\n", helloWord, Protocol, strings.ReplaceAll(version, " ", "-"))
}

// readHello passes over what a login shell printed and returns the agent's
// version. Lines before it are given to noise.
func readHello(r *bufio.Reader, noise func(string)) (version string, err error) {
	for read := 0; read < maxNoise; {
		line, err := r.ReadString('\n')
		read += len(line)
		var protocol int
		if n, _ := fmt.Sscanf(line, helloWord+" %d %s\n", &protocol, &version); n == 2 {
			if protocol != Protocol {
				return version, &mismatch{protocol, version}
			}
			return version, nil
		}
		if text := strings.TrimSpace(line); text != "" {
			noise(text)
		}
		if err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("no answer of an agent in the first %d bytes", maxNoise)
}

// mismatch is an agent of another protocol.
type mismatch struct {
	protocol int
	version  string
}

func (m *mismatch) Error() string {
	return fmt.Sprintf("zxfer there is %s and speaks protocol %d, this one speaks %d", m.version, m.protocol, Protocol)
}
