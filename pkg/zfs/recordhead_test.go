package zfs

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// zeroes is an endless reader.
type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestLargeHeadIsRefused expects that every reader of a stream refuses a BEGIN record with a larger payload
// than any stream of one snapshot has. A heal once kept 256 MiB of it in memory, several times.
func TestLargeHeadIsRefused(t *testing.T) {
	t.Parallel()
	header := beginOf(0, osFilesystem)
	for size, accepted := range map[uint32]bool{0: true, maxBeginPayload: true, maxBeginPayload + 1: false, 256 << 20: false} {
		binary.LittleEndian.PutUint32(header[4:], size)
		stream := func() io.Reader { return io.MultiReader(bytes.NewReader(header), io.LimitReader(zeroes{}, 2<<20)) }
		gate := &Gate{arrival: Arrival{Snapshots: []SnapshotID{{Name: "x", GUID: 1}}}}
		_, digest := ContentDigest(stream(), DigestRange{}, 0)
		_, filter := io.Copy(io.Discard, NewBlockFilter(stream(), Blocks{{Object: 1, Count: 1}}))
		_, next := NewStreamReader(stream()).Next()
		_, key := WrappedKey(stream())
		for reader, err := range map[string]error{"gate": gate.Check(bytes.Clone(header)), "digest": digest, "filter": filter, "reader": next, "key": key} {
			if accepted {
				if err != nil {
					require.NotContains(t, err.Error(), "expected at most 1048576", "%s, %d bytes", reader, size)
				}
				continue
			}
			require.ErrorContains(t, err, "expected at most 1048576", "%s, %d bytes", reader, size)
		}
	}
}
