package probe

import (
	"testing"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
)

func TestNoiseIsASource(t *testing.T) {
	t.Parallel()
	transfertest.SourceConforms(t, transfertest.Sources{Endless: func(*testing.T) transfer.Source { return Noise(time.Hour) }})
}

// TestDiscardIsASink expects Discard to discard its data.
func TestDiscardIsASink(t *testing.T) {
	t.Parallel()
	stream := transfertest.Random(3_000_000)
	transfertest.SinkConforms(t, transfertest.Sinks{
		Stream: stream,
		Final:  true,
		Sink: func(*testing.T) (transfer.Sink, func() ([]byte, bool)) {
			return Discard(), func() ([]byte, bool) { return stream, true }
		},
	})
}
