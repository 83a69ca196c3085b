package device

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
)

func TestStandardInputIsASource(t *testing.T) {
	t.Parallel()
	whole := transfertest.Random(3_000_000)
	opened := func(t *testing.T, in io.Reader) transfer.Source {
		src, err := Task{Source: Facts{Path: Standard}}.streamSource(t.Context(), Streams{In: in})
		require.NoError(t, err)
		return src
	}
	transfertest.SourceConforms(t, transfertest.Sources{
		Whole: func(t *testing.T) (transfer.Source, []byte) { return opened(t, transfertest.NewSource(whole)), whole },
		Failing: func(t *testing.T) (transfer.Source, error) {
			in := transfertest.NewSource(whole)
			in.Err = errors.New("read /dev/stdin: input/output error")
			return opened(t, in), in.Err
		},
		Endless: func(t *testing.T) transfer.Source {
			in := transfertest.NewSource(whole)
			in.Hang = true
			t.Cleanup(func() { _ = in.Close() })
			return opened(t, in)
		},
	})
}

func TestSequentialReaderIsASource(t *testing.T) {
	t.Parallel()
	whole := transfertest.Random(3_000_000)
	opened := func(t *testing.T, size int64) (transfer.Source, string) {
		name := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(name, whole, 0o600))
		require.NoError(t, os.Truncate(name, size))
		f, err := Inspect(t.Context(), name)
		require.NoError(t, err)
		task := Task{Source: f}
		task.Options.Block = 64 << 10
		src, err := task.streamSource(t.Context(), Streams{})
		require.NoError(t, err)
		return src, name
	}
	transfertest.SourceConforms(t, transfertest.Sources{
		Whole: func(t *testing.T) (transfer.Source, []byte) {
			src, _ := opened(t, int64(len(whole)))
			return src, whole
		},
		Failing: func(t *testing.T) (transfer.Source, error) {
			src, name := opened(t, int64(len(whole)))
			require.NoError(t, os.Truncate(name, 1_000_000))
			return src, io.ErrUnexpectedEOF
		},
		Endless: func(t *testing.T) transfer.Source {
			src, _ := opened(t, 1<<40)
			return src
		},
	})
}

func TestSequentialWriterIsASink(t *testing.T) {
	t.Parallel()
	transfertest.SinkConforms(t, transfertest.Sinks{
		Stream: transfertest.Random(3_000_000),
		Sink: func(t *testing.T) (transfer.Sink, func() ([]byte, bool)) {
			name := filepath.Join(t.TempDir(), "image")
			f, err := Inspect(t.Context(), name)
			require.NoError(t, err)
			task := Task{Source: Facts{Path: Standard, Kind: KindStream}, Target: f}
			task.Options.Block = 64 << 10
			sink, err := task.streamSink(t.Context(), Streams{})
			require.NoError(t, err)
			return sink, func() ([]byte, bool) {
				b, err := os.ReadFile(name)
				return b, err == nil
			}
		},
	})
}

// TestStandardOutputIsASink expects that data written to standard output is available immediately.
func TestStandardOutputIsASink(t *testing.T) {
	t.Parallel()
	opened := func(t *testing.T, out io.Writer) transfer.Sink {
		sink, err := Task{Target: Facts{Path: Standard}}.streamSink(t.Context(), Streams{Out: out})
		require.NoError(t, err)
		return sink
	}
	transfertest.SinkConforms(t, transfertest.Sinks{
		Stream: transfertest.Random(3_000_000),
		Final:  true,
		Sink: func(t *testing.T) (transfer.Sink, func() ([]byte, bool)) {
			var out bytes.Buffer
			return opened(t, &out), func() ([]byte, bool) { return out.Bytes(), true }
		},
		Full: func(t *testing.T) (transfer.Sink, error) {
			r, w := io.Pipe()
			require.NoError(t, r.Close())
			return opened(t, w), io.ErrClosedPipe
		},
	})
}
