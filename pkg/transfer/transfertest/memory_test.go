package transfertest_test

import (
	"bytes"
	"errors"
	"testing"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
)

func TestMemorySource(t *testing.T) {
	t.Parallel()
	failure := errors.New("producer failed")
	transfertest.SourceConforms(t, transfertest.Sources{
		Whole: func(*testing.T) (transfer.Source, []byte) {
			p := bytes.Repeat([]byte("abc"), 100_000)
			s := transfertest.NewSource(p)
			s.Chunk = -1
			return s, p
		},
		Failing: func(*testing.T) (transfer.Source, error) {
			s := transfertest.NewSource(make([]byte, 1000))
			s.Err = failure
			return s, failure
		},
		Endless: func(*testing.T) transfer.Source {
			s := transfertest.NewSource(make([]byte, 1000))
			s.Hang = true
			return s
		},
	})
}
