package blockdev_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"zxfer/pkg/blockdev"
)

func random(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

func TestTreeIsThatOfB3sum(t *testing.T) {
	t.Parallel()
	for _, block := range []int{1 << 10, 64 << 10, 1 << 20} {
		for _, size := range []int{0, 1, 63, 64, 1023, 1024, 1025, 16<<10 - 1, 16 << 10, 16<<10 + 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 5*64<<10 + 4097, 1 << 20, 3<<20 + 17} {
			data := random(size)
			tree := blockdev.NewTree(int64(size), block)
			for off := 0; off < size; off += block {
				tree.Set(int64(off/block), blockdev.LeafHash(data[off:min(size, off+block)], int64(off), int64(size)))
			}
			require.Equal(t, blake3.Sum256(data), tree.Root(), "%d bytes in blocks of %d", size, block)
		}
	}
}

func TestIsZero(t *testing.T) {
	t.Parallel()
	p := make([]byte, 70000)
	require.True(t, blockdev.IsZero(nil))
	for _, n := range []int{1, 7, 64, 65, 4096, 70000} {
		require.True(t, blockdev.IsZero(p[:n]))
		for _, i := range []int{0, n / 2, n - 1} {
			p[i] = 1
			require.False(t, blockdev.IsZero(p[:n]), "byte %d of %d", i, n)
			p[i] = 0
		}
	}
}

func BenchmarkLeafHash(b *testing.B) {
	p := random(1 << 20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		blockdev.LeafHash(p, 1<<20, 1<<40)
	}
}

func BenchmarkIsZero(b *testing.B) {
	p := make([]byte, 1<<20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		blockdev.IsZero(p)
	}
}
