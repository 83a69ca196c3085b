package transfer_test

import (
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
)

// hold stops one part of a transfer until the test releases it. So the test, not the machine,
// decides what limits the transfer.
type hold struct {
	open chan struct{}
	once sync.Once
}

// newHold returns a hold that is released at the end of the test at the latest.
func newHold(t *testing.T) *hold {
	h := &hold{open: make(chan struct{})}
	t.Cleanup(h.release)
	return h
}

func (h *hold) release() { h.once.Do(func() { close(h.open) }) }
func (h *hold) wait()    { <-h.open }

// heldAfter is the number of bytes that pass before a part is held.
const heldAfter = 1 << 20

// heldSource stops after some bytes.
type heldSource struct {
	*transfertest.Source
	*hold
	after, given int
}

func (s *heldSource) Read(p []byte) (int, error) {
	if s.given >= s.after {
		s.wait()
	}
	n, err := s.Source.Read(p)
	s.given += n
	return n, err
}

// endlessSource yields bytes until its hold is released.
type endlessSource struct{ *hold }

func (s endlessSource) Read(p []byte) (int, error) {
	select {
	case <-s.open:
		return 0, io.EOF
	default:
		return len(p), nil
	}
}

func (s endlessSource) Close() error { return nil }
func (s endlessSource) Name() string { return "endless source" }

// heldSink stops after heldAfter bytes, and stores nothing.
type heldSink struct {
	*memorySink
	*hold
}

func newHeldSink(h *hold) heldSink {
	s := heldSink{newSink(), h}
	s.Drop = true
	return s
}

func (s heldSink) Write(p []byte) (int, error) {
	if s.Len() >= heldAfter {
		s.wait()
	}
	return s.memorySink.Write(p)
}

// requireLimit runs a transfer of which h holds one part, until the reports of both ends name
// that part as the limit. The longer the hold, the larger its share of the time, on any
// machine.
func requireLimit(t *testing.T, want string, h *hold, run func(sender, receiver func(transfer.Progress))) {
	t.Helper()
	var mu sync.Mutex
	var sent, received transfer.Progress
	named := false
	look := func(latest *transfer.Progress) func(transfer.Progress) {
		return func(p transfer.Progress) {
			mu.Lock()
			defer mu.Unlock()
			*latest = p
			both := sent.Elapsed > 0 && received.Elapsed > 0
			if both && strings.HasPrefix(transfer.LimitedBy(sent.Stages, received.Stages, sent.Network), want) {
				named = true
				h.release()
			}
		}
	}
	defer time.AfterFunc(testenv.Timeout(), h.release).Stop()
	run(look(&sent), look(&received))
	require.True(t, named, "expected %q: %+v %+v", want, sent, received)
}
