package agent

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
)

// Protocol is the version of what an agent and its client say to each other.
// Both must have the same.
const Protocol = 2

// helloWord begins the line that an agent starts with:
//
//	zxfer-agent PROTOCOL VERSION
//
// An empty line comes before it: a login shell may leave its last line open.
const helloWord = "zxfer-agent"

// maxNoise is what a login shell may print before the hello line, in bytes.
const maxNoise = 64 << 10

func hello(version string) string {
	version = strings.Join(strings.Fields(version), "-")
	if version == "" {
		version = "unknown"
	}
	return fmt.Sprintf("\n%s %d %s\n", helloWord, Protocol, version)
}

// readHello passes over what a login shell printed and returns the agent's
// version. Lines before it are given to noise. The reader's buffer bounds the
// length of a line.
func readHello(r *bufio.Reader, noise func(string)) (version string, err error) {
	for read := 0; read < maxNoise; {
		line, err := r.ReadSlice('\n')
		read += len(line)
		var protocol int
		if n, _ := fmt.Sscanf(string(line), helloWord+" %d %s\n", &protocol, &version); n == 2 {
			if protocol != Protocol {
				return version, &mismatch{protocol, version}
			}
			return version, nil
		}
		if text := strings.TrimSpace(string(line)); text != "" {
			noise(text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
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
