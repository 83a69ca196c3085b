package sshexec

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzRemoteShellOutput expects that output of a remote shell before the agent starts is limited, and that
// only the bootstrap's request starts a copy.
func FuzzRemoteShellOutput(f *testing.F) {
	f.Add([]byte("motd\n\nzxfer-agent 1 x\n"))
	f.Add([]byte("\n" + needWord + "Linux x86_64 gzip 0.9.0/2\n"))
	f.Add([]byte("\n" + needWord + "Linux aarch64 -\n"))
	f.Add([]byte("\n" + needWord + "\n"))
	f.Add(bytes.Repeat([]byte("x"), maxBanner+10))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		var logged []string
		o := &Options{Host: "h", Release: "1/2", binaryDirs: []string{"/none"}, Log: func(s string) { logged = append(logged, s) }} // no bootstrap: nothing is written
		a := &handshake{Conn: &Conn{in: bufio.NewReaderSize(in, 4096)}, o: o, timer: time.NewTimer(time.Minute)}
		err := a.wait()
		require.LessOrEqual(t, len(a.banner), maxTailLine)
		for _, l := range logged {
			require.LessOrEqual(t, len(l), maxTailLine+len("h: "))
		}
		switch {
		case err == nil:
			rest, readErr := a.in.Peek(len(agentWord))
			require.NoError(t, readErr)
			require.Equal(t, agentWord, string(rest))
		case strings.Contains(err.Error(), "uname"):
			require.Contains(t, string(b), needWord)
		}
		require.LessOrEqual(t, len(b)-in.Len(), maxBanner+2*4096, "reading ends at the limit")
	})
}
