package transfer_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// tailSize is the tail of the test sinks: the size of a ZFS stream's END record.
const tailSize = 312

// outcome holds the results of both ends.
type outcome struct {
	sent, received      transfer.Result
	sendErr, receiveErr error
}

// move runs both ends.
func move(t testing.TB, sender, receiver *tcp.Link, src transfer.Source, sink transfer.Sink, opt transfer.Options) outcome {
	t.Helper()
	return moveWithContexts(t, context.Background(), context.Background(), sender, receiver, src, sink, opt)
}

func moveWithContexts(t testing.TB, sctx, rctx context.Context, sender, receiver *tcp.Link, src transfer.Source, sink transfer.Sink, opt transfer.Options) (o outcome) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.received, o.receiveErr = transfer.Receive(rctx, receiver, sink, opt, nil)
	}()
	o.sent, o.sendErr = transfer.Send(sctx, src, sender, opt, nil)
	select {
	case <-done:
	case <-time.After(testenv.Timeout()):
		require.Fail(t, "the receiver did not end")
	}
	return o
}

// requireNoEffect fails if the stream took effect or the sink received its tail.
func requireNoEffect(t testing.TB, sink *memorySink, stream []byte) {
	t.Helper()
	p, committed := sink.Stored()
	require.False(t, committed, "a broken stream was committed")
	require.Error(t, sink.Aborted(), "the sink was not aborted")
	require.LessOrEqual(t, len(p), max(0, len(stream)-tailSize), "the sink got bytes that were not authentic")
}

// waitStored waits until the sink has stored bytes.
func waitStored(sink *memorySink) {
	for sink.Len() == 0 {
		time.Sleep(time.Millisecond)
	}
}

// afterStored calls f once the sink has stored bytes.
func afterStored(sink *memorySink, f func()) {
	go func() {
		waitStored(sink)
		f()
	}()
}

// requireClean returns a check that the test left no goroutines and no descriptors. The test
// must not run in parallel with others.
func requireClean(t *testing.T) (check func()) {
	t.Helper()
	goroutines, descriptors := runtime.NumGoroutine(), openFiles(t)
	return func() {
		t.Helper()
		var g int
		var f []string
		for began := time.Now(); time.Since(began) < testenv.Timeout(); time.Sleep(10 * time.Millisecond) {
			g, f = runtime.NumGoroutine(), openFiles(t)
			if g <= goroutines && len(f) <= len(descriptors) {
				return
			}
		}
		buf := make([]byte, 1<<20)
		require.Failf(t, "leak", "goroutines %d -> %d, descriptors %v -> %v\n%s", goroutines, g, descriptors, f, buf[:runtime.Stack(buf, true)])
	}
}

func openFiles(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		// the directory's own descriptor is closed by now
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.Contains(to, "anon_inode") {
			out = append(out, fmt.Sprintf("%s:%s", e.Name(), to))
		}
	}
	return out
}
