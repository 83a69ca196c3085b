package lzc

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A line of the helper's is that line, and no longer than a reply may be.
func FuzzReadLine(f *testing.F) {
	f.Add([]byte("{\"ok\":null}\n{\"error\":{}}\n"))
	f.Add([]byte("no end"))
	f.Add(append(bytes.Repeat([]byte{'x'}, 200), '\n'))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(b), 16)
		var all []byte
		for {
			line, err := readLine(r)
			all = append(all, line...)
			if err != nil {
				break
			}
			require.Equal(t, 1, bytes.Count(line, []byte{'\n'}))
		}
		require.Equal(t, string(b), string(all))
	})
}
