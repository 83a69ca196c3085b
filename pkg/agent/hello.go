package agent

import (
	"bufio"
	"cmp"
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
// An empty line comes before it: a login shell may leave its last line open. What
// that printed is package rsh's to pass over.
const helloWord = "zxfer-agent"

func hello(version string) string {
	return fmt.Sprintf("\n%s %d %s\n", helloWord, Protocol, cmp.Or(strings.Join(strings.Fields(version), "-"), "unknown"))
}

// readHello reads the hello line, and returns the agent's version.
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
			return "", fmt.Errorf("it said: %s", clip(text, maxLine))
		case err != nil:
			return "", err
		}
	}
}

// Mismatch is an agent of another protocol.
type Mismatch struct {
	protocol int
	version  string
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("zxfer there is %s and speaks protocol %d, this one speaks %d", m.version, m.protocol, Protocol)
}
