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
	f.Add([]byte("motd\n\nzxfer-agent 1 x\n"), false)
	f.Add([]byte("\n"+needWord+"Linux x86_64 gzip 0.9.0/2\n"), false)
	f.Add([]byte("\n"+needWord+"Linux aarch64 -\n"), false)
	f.Add([]byte("\n"+needWord+"\n"), true)
	f.Add([]byte(relayWord+"\n"), true)
	f.Add(bytes.Repeat([]byte("x"), maxBanner+10), false)
	f.Fuzz(func(t *testing.T, b []byte, relay bool) {
		in := bytes.NewReader(b)
		var logged []string
		o := &Options{Host: "h", Release: "1/2", binaryDirs: []string{"/none"}, Log: func(s string) { logged = append(logged, s) }} // no bootstrap: nothing is written
		a := &handshake{Conn: &Conn{in: bufio.NewReaderSize(in, 4096)}, o: o, relay: relay, timer: time.NewTimer(time.Minute)}
		err := a.wait()
		require.LessOrEqual(t, len(a.banner), maxTailLine)
		for _, l := range logged {
			require.LessOrEqual(t, len(l), maxTailLine+len("h: "))
		}
		switch {
		case err == nil && relay:
			require.Contains(t, string(b), relayWord)
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

// FuzzRelayChunks expects that chunks of a relay arrive unchanged.
func FuzzRelayChunks(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, sendChunks(&b, strings.NewReader("some bytes")))
	f.Add(b.Bytes(), []byte("some bytes"))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, []byte{})
	f.Add([]byte{0, 0, 0, 0, 1}, make([]byte, 1000))
	f.Fuzz(func(t *testing.T, wire, plain []byte) {
		var out bytes.Buffer
		if err := receiveChunks(&out, bytes.NewReader(wire)); err == nil {
			require.True(t, bytes.Contains(wire, make([]byte, 4)), "only an empty chunk is the end")
		}
		require.LessOrEqual(t, out.Len(), len(wire))
		var message, back bytes.Buffer
		require.NoError(t, sendChunks(&message, bytes.NewReader(plain)))
		require.NoError(t, receiveChunks(&back, &message))
		require.Equal(t, string(plain), back.String())
	})
}
