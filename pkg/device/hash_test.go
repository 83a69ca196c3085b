package device

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// pattern returns the input of BLAKE3's test vectors: bytes 0 to 250, repeated.
// https://github.com/BLAKE3-team/BLAKE3/blob/1.8.2/test_vectors/test_vectors.json
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

// root hashes blocks.
func root(p []byte, block int) string {
	size := int64(len(p))
	cvs := make([]Sum, (len(p)+block-1)/block)
	for i := range cvs {
		part := p[i*block : min(len(p), (i+1)*block)]
		cvs[i] = LeafHash(part, int64(i*block), size)
	}
	sum := Root(cvs)
	return hex.EncodeToString(sum[:])
}

func TestRootIsBLAKE3(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{
		0:      "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
		1:      "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
		1024:   "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
		1025:   "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
		102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
	} {
		require.Equal(t, want, root(pattern(n), 1024), "%d bytes", n)
		require.Equal(t, want, root(pattern(n), 1<<20), "%d bytes", n)
	}
	for _, block := range []int{1 << 10, 1 << 14, 1 << 16, 1 << 20} {
		for _, n := range []int{block - 1, block, block + 1, 2 * block, 3*block + 1, 7*block - 1, 8 * block} {
			t.Run(fmt.Sprintf("%d bytes in blocks of %d", n, block), func(t *testing.T) {
				t.Parallel()
				want := blake3.Sum256(pattern(n))
				require.Equal(t, hex.EncodeToString(want[:]), root(pattern(n), block))
			})
		}
	}
}

// TestQuickCut expects that quick sums and digests differ for different data, and are not BLAKE3.
func TestQuickCut(t *testing.T) {
	t.Parallel()
	c := BlockHash{Block: 1 << 16, Quick: true}
	a, b := pattern(1<<16), pattern(1<<16)
	b[777]++
	require.Equal(t, c.Sum(a, 0, 1<<20), c.Sum(a, 1<<16, 1<<20), "independent of their position")
	require.NotEqual(t, c.Sum(a, 0, 1<<20), c.Sum(b, 0, 1<<20))
	sum := c.Sum(a, 0, 1<<20)
	require.Equal(t, MarkOf(a), Mark(sum[:16]))
	sums := []Sum{c.Sum(a, 0, 1<<17), c.Sum(b, 1<<16, 1<<17)}
	root := c.Root(sums)
	require.NotEqual(t, root, c.Root([]Sum{sums[1], sums[0]}), "the order matters")
	require.NotEqual(t, root, BlockHash{Block: 1 << 16}.Root(sums))
	require.Equal(t, LeafHash(a, 1<<16, 1<<20), BlockHash{Block: 1 << 16}.Sum(a, 1<<16, 1<<20))
}

func FuzzRoot(f *testing.F) {
	for _, n := range []int{0, 1, 1023, 1024, 1025, 16 << 10, 65<<10 + 7} {
		f.Add(pattern(n), uint8(0))
		f.Add(pattern(n), uint8(4))
	}
	f.Fuzz(func(t *testing.T, p []byte, shift uint8) {
		want := blake3.Sum256(p)
		require.Equal(t, hex.EncodeToString(want[:]), root(p, 1<<(10+shift%8)))
	})
}

func TestIsZero(t *testing.T) {
	t.Parallel()
	require.True(t, IsZero(nil))
	for _, n := range []int{1, 2, 31, 4096, 1 << 20} {
		p := make([]byte, n)
		require.True(t, IsZero(p))
		for _, at := range []int{0, n / 2, n - 1} {
			p[at] = 1
			require.False(t, IsZero(p), "%d of %d", at, n)
			p[at] = 0
		}
	}
}

func TestAlignedBuffer(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 512, 4095, 4096, 1 << 20} {
		p := AlignedBuffer(n)
		require.Len(t, p, n)
		require.Equal(t, n, cap(p))
		require.True(t, aligned(p, int64(tcp.Alignment())))
		if n > 1 {
			require.NotZero(t, uintptr(unsafe.Pointer(&p[1]))%4096)
			require.False(t, aligned(p[1:], 512))
		}
	}
}

func BenchmarkLeafHash(b *testing.B) {
	p := AlignedBuffer(1 << 20)
	copy(p, pattern(1<<20))
	b.SetBytes(1 << 20)
	for b.Loop() {
		LeafHash(p, 1<<20, 1<<30)
	}
}

func BenchmarkIsZero(b *testing.B) {
	p := AlignedBuffer(1 << 20)
	b.SetBytes(1 << 20)
	for b.Loop() {
		IsZero(p)
	}
}

func TestDigestOfFirstBytes(t *testing.T) {
	t.Parallel()
	const block = 1 << 16
	content := make([]byte, 3*block+5000)
	for i := range content {
		content[i] = byte(i % 251)
	}
	clear(content[block : 2*block])
	name := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(name, content, 0o600))
	facts, err := Inspect(t.Context(), name)
	require.NoError(t, err)
	for _, size := range []int64{0, 1, block, 2*block - 1, 2 * block, 3*block + 4097, int64(len(content)), int64(len(content)) + 1} {
		q := DigestQuery{Device: facts, Size: size, Options: Options{Options: transfer.Options{Block: block}}}
		d, err := DigestOf(t.Context(), q, nil)
		require.NoError(t, err)
		part := content
		if size > 0 {
			part = content[:min(size, int64(len(content)))]
		}
		want := blake3.Sum256(part)
		require.Equal(t, hex.EncodeToString(want[:]), d.Result.Device.SourceDigest, "%d", size)
		require.Len(t, d.Parts, (len(part)+block-1)/block)
	}
}
