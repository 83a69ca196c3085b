package zfs

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWrappedKey(t *testing.T) {
	t.Parallel()
	keys := map[string]string{}
	for _, name := range []string{"raw-full.source", "raw-incr.source", "raw-full.target", "raw-incr.target"} {
		key, err := WrappedKey(bytes.NewReader(sampled(t, name)))
		require.NoError(t, err, name)
		keys[name] = key
	}
	require.Equal(t, keys["raw-full.source"], keys["raw-incr.source"], "snapshots of a dataset have one key")
	require.Equal(t, keys["raw-full.source"], keys["raw-full.target"], "the copy has the same key")

	_, err := WrappedKey(bytes.NewReader(sampled(t, "plain-full.source")))
	require.Error(t, err, "no key")
	b := sampled(t, "raw-full.source")
	_, err = WrappedKey(bytes.NewReader(b[:RecordSize+100]))
	require.Error(t, err, "cut")
}

// TestGateKeepsTheKey sends raw streams with a changed or missing wrapped key, and expects a
// refusal. With such a key from a compromised source, the existing snapshots of the copy could
// never be decrypted again.
func TestGateKeepsTheKey(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw-incr", "raw-range"} {
		b := sampled(t, name+".source")
		r := plannedReceive(t, b)
		key, err := WrappedKey(bytes.NewReader(sampled(t, "raw-full.target")))
		require.NoError(t, err)
		through := func(b []byte, key string, size int) error {
			g, err := NewGate(r)
			require.NoError(t, err)
			g.KeepKey(key)
			for p := range slices.Chunk(b, size) {
				if err := g.Check(p); err != nil {
					return err
				}
			}
			return nil
		}
		last := begins(t, b)[len(begins(t, b))-1]
		size := int(binary.LittleEndian.Uint32(b[last+4:]))
		for _, piece := range []int{1, 1000, 1 << 20} {
			require.NoError(t, through(b, key, piece), name)
			require.ErrorIs(t, through(b, strings.Repeat("0", 64), piece), ErrOtherKey, name)
			for _, field := range []string{"DSL_CRYPTO_MASTER_KEY_1", "DSL_CRYPTO_MAC", "pbkdf2salt", "keyformat"} {
				forged := slices.Clone(b)
				at := bytes.Index(forged[last+RecordSize:last+RecordSize+size], []byte(field+"\x00"))
				require.Positive(t, at, field)
				value := last + RecordSize + at + (len(field)+8)&^7
				forged[value] ^= 1
				require.ErrorIs(t, through(forged, key, piece), ErrOtherKey, "%s: %s", name, field)
			}
			none := slices.Clone(b)
			binary.LittleEndian.PutUint32(none[last+4:], 0)
			require.ErrorContains(t, through(none, key, piece), "no key")
		}
	}
}

func FuzzWrappedKey(f *testing.F) {
	b := sampled(f, "raw-full.source")
	f.Add(b[RecordSize : RecordSize+int(binary.LittleEndian.Uint32(b[4:]))])
	f.Fuzz(func(t *testing.T, payload []byte) {
		key, err := wrappedKey(payload)
		if err == nil {
			require.Len(t, key, 64)
		}
	})
}
