package zfs

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// FuzzStreamReader expects that reading a stream ends, counts each byte, and needs no more memory
// than the input has. Only after an END record is the end of the input the end of the stream.
func FuzzStreamReader(f *testing.F) {
	for _, name := range samples {
		b := sampled(f, name+".source")
		f.Add(b[:min(len(b), 8<<10)])
		f.Add(b[max(0, len(b)-8<<10):])
	}
	swapped := make([]byte, 2*RecordSize)
	copy(swapped[8:], []byte{0, 0, 0, 2, 0xf5, 0xba, 0xcb, 0xac})
	swapped[RecordSize+3] = byte(RecordEnd)
	f.Add(swapped)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewStreamReader(bytes.NewReader(b))
		at := uint64(0)
		var last RecordType
		for {
			r, err := s.Next()
			require.LessOrEqual(t, s.Offset(), uint64(len(b)))
			if err == io.EOF {
				require.Equal(t, RecordEnd, last)
				require.Equal(t, uint64(len(b)), at)
				return
			}
			if err != nil {
				require.ErrorContains(t, err, "send stream at byte")
				return
			}
			require.Equal(t, at+RecordSize, s.Offset())
			require.Equal(t, b[at:at+RecordSize], r.Header)
			require.LessOrEqual(t, len(r.ToName()), RecordSize)
			last = r.Type
			size := r.PayloadSize()
			payload, err := s.Payload()
			require.Equal(t, at+RecordSize+uint64(len(payload)), s.Offset())
			if err != nil {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				return
			}
			require.EqualValues(t, size, len(payload))
			at = s.Offset()
		}
	})
}

// FuzzClassify expects that any error text of a remote zfs becomes a bounded error, always of the
// same kind.
func FuzzClassify(f *testing.F) {
	files, err := filepath.Glob(testenv.Data(f, "zfs-*", "stderr.txt"))
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(OpReceive, string(text), "tank/out of space")
	}
	f.Fuzz(func(t *testing.T, op, stderr, subject string) {
		k := Classify(op, stderr, subject)
		require.Equal(t, k, Classify(op, stderr, subject))
		e := Failure{Op: op, Subject: subject, Stderr: stderr}.Err()
		require.NotNil(t, e)
		require.LessOrEqual(t, len(e.Error()), 4*(len(op)+len(stderr)+len(subject))+4<<10)
		require.NotPanics(t, func() { _ = e.Hint })
	})
}
