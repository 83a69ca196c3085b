package agentless

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

func offer() tcp.Offer { return tcp.Offer{Address: "127.0.0.1", Deadline: testenv.Timeout()} }

func ncPath(o tcp.Offer, buffer int64) path { return path{&o, buffer} }

// openSink starts a zfs receive that gets any data, without a gate.
func openSink(ctx context.Context, h *Host, p path) (transfer.Sink, error) {
	return h.openSink(ctx, "zfs receive pool/a", zfs.Failure{Op: zfs.OpReceive, Subject: "pool/a", Argv: []string{"zfs", "receive", "pool/a"}}, p)
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// The fake zfs stores a received stream in a file, and sends that file.
const storeScript = `case $1 in receive) cat >stream;; send) cat stream;; esac`

// freebsd is a command like FreeBSD's nc: OpenBSD's without the first line of its help.
const freebsd = `sh -c 'nc=$0; [ "$1" != -h ] || { "$nc" -h 2>&1 | sed 1d; exit; }; exec "$nc" "$@"' `

func TestDialects(t *testing.T) {
	t.Parallel()
	for name, nc := range map[string]string{"nc.openbsd": "nc.openbsd", "nc.traditional": "nc.traditional", "ncat": "ncat", "busybox nc": "busybox nc", "FreeBSD's": freebsd} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if nc == freebsd {
				nc += inPath(t, "nc.openbsd")
			}
			dir, h := openNCHost(t, nc, storeScript)
			for _, size := range []int{0, 1, 3_000_000} {
				data := random(size)
				sink, err := openSink(t.Context(), h, ncPath(offer(), 4<<20))
				require.NoError(t, err)
				_, err = sink.Write(data)
				require.NoError(t, err)
				require.NoError(t, sink.Commit(t.Context()))
				stored, err := os.ReadFile(filepath.Join(dir, "stream"))
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, stored), "%d bytes arrived, %d were sent", len(stored), size)

				src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, ncPath(offer(), 4<<20))
				require.NoError(t, err)
				got, err := io.ReadAll(src)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got), "%d bytes came, %d were sent", len(got), size)
				require.NoError(t, src.Close())
			}
		})
	}
}

// installedNC returns an nc that is installed.
func installedNC(t *testing.T) string {
	t.Helper()
	for _, nc := range []string{"nc.openbsd", "nc.traditional", "ncat", "busybox"} {
		if _, err := exec.LookPath(nc); err == nil {
			return strings.Replace(nc, "busybox", "busybox nc", 1)
		}
	}
	t.Skip("no nc is installed")
	return ""
}

func TestFailedReceiveReportsCause(t *testing.T) {
	t.Parallel()
	_, h := openNCHost(t, installedNC(t), deniedScript)
	requireDenied(t, h, ncPath(offer(), 0))
}

// deniedScript is a fake zfs receive that fails while its stream arrives.
const deniedScript = `[ "$1" != receive ] || { head -c 1000 >/dev/null; echo "cannot receive new filesystem stream: permission denied" >&2; exit 1; }`

// requireDenied expects the cause of a failed receive from Write and Abort.
func requireDenied(t *testing.T, h *Host, p path) {
	t.Helper()
	sink, err := openSink(t.Context(), h, p)
	require.NoError(t, err)
	for err == nil {
		_, err = sink.Write(random(1 << 20))
	}
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Permission})
	require.ErrorContains(t, err, "beta: ")
	require.ErrorIs(t, sink.Abort(err), &zfs.Error{Kind: zfs.Permission})
}

// TestAbortedReceive expects zfs receive to get an aborted stream as one that ends early.
func TestAbortedReceive(t *testing.T) {
	t.Parallel()
	dir, h := openNCHost(t, installedNC(t), `cat >stream; echo "cannot receive resume stream: incomplete stream" >&2; exit 1`)
	sink, err := openSink(t.Context(), h, ncPath(offer(), 0))
	require.NoError(t, err)
	_, err = sink.Write(random(1000))
	require.NoError(t, err)
	require.NoError(t, sink.Abort(errors.New("the source failed")))
	stored, err := os.ReadFile(filepath.Join(dir, "stream"))
	require.NoError(t, err)
	require.Len(t, stored, 1000)
}

// TestReceiveAfterLocalReset simulates a firewall that lost its state and resets the
// local connection while the host's nc still waits. It expects that the script is ended and that
// zfs receive saves its state.
func TestReceiveAfterLocalReset(t *testing.T) {
	t.Parallel()
	dir, h := openNCHost(t, installedNC(t), `cat >stream; echo "cannot receive resume stream: incomplete stream" >&2; exit 1`)
	nc := filepath.Join(dir, "nc")
	text, err := os.ReadFile(nc)
	require.NoError(t, err)
	text = append(bytes.Replace(text, []byte("exec "), nil, 1), "exec sleep 100000\n"...)
	h.endTimeout = 24 * time.Hour // no wait for it
	testenv.WriteProgram(t, nc, text)
	opened, err := openSink(t.Context(), h, ncPath(offer(), 0))
	require.NoError(t, err)
	_, err = opened.Write(random(1000))
	require.NoError(t, err)
	require.NoError(t, opened.(*sink).conn.Close())
	_, err = opened.Write(random(1000))
	require.ErrorIs(t, err, tcp.ErrConnectionLost)
	require.NoError(t, opened.Abort(err))
	stored, err := os.ReadFile(filepath.Join(dir, "stream"))
	require.NoError(t, err)
	require.Len(t, stored, 1000)
}

// TestFailedSendIsError expects that the end of data is not the end of the stream if its producer
// failed.
func TestFailedSendIsError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		zfs  string
		want error
	}{
		"fails":     {`head -c 5000 /dev/zero; echo "warning: cannot send 'pool/a@x': Input/output error" >&2; exit 1`, &zfs.Error{Kind: zfs.PoolFault}},
		"killed":    {`head -c 5000 /dev/zero; kill -9 $$`, &zfs.Error{Kind: zfs.Killed}},
		"at once":   {`echo "cannot open 'pool/a@x': dataset does not exist" >&2; exit 1`, &zfs.Error{Kind: zfs.NotFound}},
		"nc killed": {`head -c 5000 /dev/zero; while [ ! -e connected ]; do sleep 0.01; done; kill -9 $(cat nc.pid); exec yes`, tcp.ErrConnectionLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, h := openNCHost(t, installedNC(t), "case $1 in send) "+c.zfs+"\nesac")
			nc := filepath.Join(dir, "nc")
			text, err := os.ReadFile(nc)
			require.NoError(t, err)
			testenv.WriteProgram(t, nc, bytes.Replace(text, []byte("exec"), []byte("echo $$ >"+filepath.Join(dir, "nc.pid")+"\nexec"), 1))
			src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, ncPath(offer(), 0))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "connected"), nil, 0o600))
			_, err = io.ReadAll(src)
			require.ErrorIs(t, err, c.want)
			require.NoError(t, src.Close())
		})
	}
}

// TestKilledNCPrintsNothing expects that the shell's message about a killed nc is not part
// of the command's error.
func TestKilledNCPrintsNothing(t *testing.T) {
	t.Parallel()
	d := dialer{nc: []string{"sleep", "60"}, secret: "00", beatTimeout: time.Second}
	for name, script := range map[string]string{"send": d.send([]string{"true"}), "receive": d.receive([]string{"cat"})} {
		var said strings.Builder
		sh := exec.CommandContext(t.Context(), "sh", "-c", script)
		sh.Stdin, sh.Stderr = strings.NewReader(""), &said
		_ = sh.Run()
		stderr, _, _ := parseStderr(said.String())
		require.Empty(t, stderr, name)
	}
}

// TestFailedSendReplacesReceiverError expects that an error of zfs send replaces the
// receiver's error, but not a refusal of the receiver. zfs send -I continues after a snapshot that
// it could not send.
func TestFailedSendReplacesReceiverError(t *testing.T) {
	t.Parallel()
	_, h := openNCHost(t, installedNC(t), `echo "warning: cannot send 'pool/a@b': signal received" >&2; head -c 1000000 /dev/zero; exit 1`)
	src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", From: "@a", Through: []string{"b"}, To: "c"}, ncPath(offer(), 0))
	require.NoError(t, err)
	_, err = io.ReadFull(src, make([]byte, 1000))
	require.NoError(t, err)
	require.NoError(t, src.Close())
	cut, short := errors.New("cut"), &zfs.Error{Kind: zfs.BadStream, Op: zfs.OpReceive}
	gate := &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive, Detail: "not planned", Hint: "look"}
	require.ErrorIs(t, hosts.CauseOf(src, cut), cut)
	err = hosts.CauseOf(src, short)
	require.ErrorContains(t, err, "beta: zfs send pool/a@c: warning: cannot send 'pool/a@b': signal received") // nc may add its own
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Killed})
	err = hosts.CauseOf(src, gate)
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Killed})
	require.ErrorContains(t, err, "signal received")
	require.ErrorContains(t, err, "; target: zfs receive: not planned")
	require.Equal(t, "look", fault.HintOf(err))
}

// TestMissingBeatsEndTools expects that without zxfer's keep-alive messages, the host ends its
// commands.
func TestMissingBeatsEndTools(t *testing.T) {
	t.Parallel()
	timeout, err := exec.LookPath("timeout")
	if err != nil {
		t.Skip("timeout is not installed")
	}
	dir, h := openNCHost(t, installedNC(t), `cat >stream; echo "cannot receive: failed to read from stream" >&2; exit 1`)
	h.beatTimeout = time.Second // beats come every five seconds
	// The time starts when nc is connected.
	moving := filepath.Join(dir, "moving")
	testenv.WriteProgram(t, filepath.Join(dir, "timeout"), "#!/bin/sh\nwhile [ -e "+dir+" ] && [ ! -e "+moving+" ]; do sleep 0.01; done\nexec "+timeout+` "$@"`+"\n")
	sink, err := openSink(t.Context(), h, ncPath(offer(), 0))
	require.NoError(t, err)
	_, err = sink.Write(random(1000))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(moving, nil, 0o600))
	for err == nil {
		_, err = sink.Write([]byte("x"))
		time.Sleep(10 * time.Millisecond)
	}
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Incomplete})
	require.NoError(t, sink.Abort(err))
	require.FileExists(t, filepath.Join(dir, "stream"))
}

// TestUnauthenticatedClientIsDropped expects that unauthenticated clients are dropped, and that the host's nc
// is still accepted.
func TestUnauthenticatedClientIsDropped(t *testing.T) {
	t.Parallel()
	dir, h := openNCHost(t, installedNC(t), storeScript)
	logged := make(chan string, 1)
	h.log = func(s string) { logged <- s }
	nc := filepath.Join(dir, "nc")
	text, err := os.ReadFile(nc)
	require.NoError(t, err)
	start := filepath.Join(dir, "start")
	testenv.WriteProgram(t, nc, bytes.Replace(text, []byte("exec"), []byte(`for port; do :; done; echo $port >`+dir+`/port.new; mv `+dir+`/port.new `+dir+`/port
while [ ! -e `+start+` ]; do sleep 0.01; done
exec`), 1))
	go func() {
		port := filepath.Join(dir, "port")
		for {
			if text, err := os.ReadFile(port); err == nil {
				c, err := net.Dial("tcp", "127.0.0.1:"+strings.TrimSpace(string(text)))
				if err == nil {
					_, _ = c.Write([]byte(strings.Repeat("0", 64) + "\n"))
					_, _ = io.ReadAll(c) // until it is dropped
				}
				_ = os.WriteFile(start, nil, 0o600)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	sink, err := openSink(t.Context(), h, ncPath(offer(), 0))
	require.NoError(t, err)
	require.NoError(t, sink.Commit(t.Context()))
	require.Contains(t, <-logged, "it does not start with the secret")
}

func TestSourceConformance(t *testing.T) {
	t.Parallel()
	opened := func(t *testing.T, zfsSend string, content []byte) transfer.Source {
		dir, h := openNCHost(t, installedNC(t), "[ $1 != send ] || { "+zfsSend+"; }")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "stream"), content, 0o600))
		src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, ncPath(offer(), 0))
		require.NoError(t, err)
		return src
	}
	whole := random(3_000_000)
	transfertest.SourceConforms(t, transfertest.Sources{
		Whole: func(t *testing.T) (transfer.Source, []byte) { return opened(t, "cat stream", whole), whole },
		Failing: func(t *testing.T) (transfer.Source, error) {
			return opened(t, `head -c 5000 stream; echo "warning: cannot send 'pool/a@x': Input/output error" >&2; exit 1`, whole),
				&zfs.Error{Kind: zfs.PoolFault}
		},
		Endless: func(t *testing.T) transfer.Source { return opened(t, "exec yes", nil) },
	})
}

func TestSinkConformance(t *testing.T) {
	t.Parallel()
	whole := random(3_000_000)
	opened := func(t *testing.T, zfsReceive string) (string, transfer.Sink) {
		dir, h := openNCHost(t, installedNC(t), "[ $1 != receive ] || { "+zfsReceive+"; }")
		sink, err := openSink(t.Context(), h, ncPath(offer(), 0))
		require.NoError(t, err)
		return filepath.Join(dir, "whole"), sink
	}
	transfertest.SinkConforms(t, transfertest.Sinks{
		Stream: whole,
		Sink: func(t *testing.T) (transfer.Sink, func() ([]byte, bool)) {
			stored, sink := opened(t, fmt.Sprintf(`cat >part; [ $(wc -c <part) = %d ] && mv part whole || { echo "cannot receive resume stream: incomplete stream" >&2; exit 1; }`, len(whole)))
			return sink, func() ([]byte, bool) {
				b, err := os.ReadFile(stored)
				return b, err == nil
			}
		},
		Full: func(t *testing.T) (transfer.Sink, error) {
			_, sink := opened(t, `head -c 1000 >/dev/null; echo "cannot receive new filesystem stream: out of space" >&2; exit 1`)
			return sink, &zfs.Error{Kind: zfs.NoSpace}
		},
	})
}

// fakeEnd is an end of a session.
type fakeEnd struct {
	local bool
	host  hosts.Host
}

func (a *fakeEnd) Local() bool                                          { return a.local }
func (a *fakeEnd) Label() string                                        { return a.host.Name() }
func (a *fakeEnd) Do(_ context.Context, f func(hosts.Host) error) error { return f(a.host) }
func (a *fakeEnd) RTT() time.Duration                                   { return 0 }
func (a *fakeEnd) Shell() tcp.Stack                                     { return nil }

// TestNoise expects that noise is sent in both directions for the requested time and leaves nothing
// behind.
func TestNoise(t *testing.T) {
	t.Parallel()
	for _, nc := range []string{"nc.openbsd", "nc.traditional", "ncat", "busybox nc"} {
		t.Run(nc, func(t *testing.T) {
			t.Parallel()
			_, h := openNCHost(t, nc, storeScript)
			local := hosts.NewLocal("test", func(string) {})
			t.Cleanup(func() { _ = local.Close() })
			here, there := &fakeEnd{true, local}, &fakeEnd{false, h}
			search, err := connect.NewSearch(transport.Settings{Wire: transport.NC, DataAddress: "127.0.0.1"}, connect.Side{Host: here}, connect.Side{Host: there}, nil)
			require.NoError(t, err)
			for _, c := range []struct{ from, to *fakeEnd }{{here, there}, {there, here}} {
				testenv.Widen(t, 200*time.Millisecond, func(asked time.Duration) error {
					began := time.Now()
					res, err := search.Run(t.Context(), connect.From{Host: c.from, What: hosts.Noise{Time: asked}},
						connect.To{Host: c.to, What: hosts.Nowhere{}}, connect.Count{}, nil)
					require.NoError(t, err)
					require.Greater(t, time.Since(began), asked)
					require.Equal(t, "nc", res.Wire)
					require.Equal(t, res.Sent.NoiseRate.Bytes, res.Received.NoiseRate.Bytes)
					if p := res.Sent.NoiseRate; p.Bytes == 0 || p.Seconds < asked.Seconds()/2 { // counted from the first byte
						return fmt.Errorf("%d bytes in %.3fs", p.Bytes, p.Seconds)
					}
					return nil
				})
			}
		})
	}
}

// TestUnsupportedEndsAreRefused expects that unsupported sources and targets are refused before anything
// runs on the host.
func TestUnsupportedEndsAreRefused(t *testing.T) {
	t.Parallel()
	_, h := openNCHost(t, installedNC(t), storeScript)
	o := offer()
	_, err := h.Through(&o, 0).OpenFrom(t.Context(), hosts.ReadDevice{})
	require.ErrorContains(t, err, "beta: without zxfer there, zxfer cannot copy devices")
	_, err = h.Through(&o, 0).OpenTo(t.Context(), hosts.WriteDevice{})
	require.ErrorContains(t, err, "beta: without zxfer there, zxfer cannot copy devices")
}
