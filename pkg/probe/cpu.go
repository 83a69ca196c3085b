package probe

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"
)

const (
	// block is the size of a transport frame, in bytes.
	block = 1 << 20
	// area exceeds the processor's cache, in bytes.
	area = 64 << 20
)

func memory(ctx context.Context, d time.Duration) (tally, error) {
	from, to := make([]byte, area), make([]byte, area)
	for i := range from {
		from[i] = byte(i) // otherwise all pages are the shared zero page
	}
	at := 0
	return repeat(ctx, d, block, func() error {
		copy(to[at:at+block], from[at:at+block])
		at = (at + block) % area
		return nil
	})
}

func zeroNull(ctx context.Context, d time.Duration) (tally, error) {
	zero, err := os.Open("/dev/zero")
	if err != nil {
		return tally{}, err
	}
	defer zero.Close()
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		return tally{}, err
	}
	defer null.Close()
	p := make([]byte, block)
	return repeat(ctx, d, block, func() error {
		if _, err := io.ReadFull(zero, p); err != nil {
			return err
		}
		_, err := null.Write(p)
		return err
	})
}

func hash(ctx context.Context, d time.Duration) (tally, error) {
	p := noise(block)
	h := xxh3.New()
	return repeat(ctx, d, block, func() error { _, err := h.Write(p); return err })
}

func aesGCM(ctx context.Context, d time.Duration) (tally, error) {
	b, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		return tally{}, err
	}
	g, err := cipher.NewGCM(b)
	if err != nil {
		return tally{}, err
	}
	p, out := noise(block), make([]byte, 0, block+g.Overhead())
	var nonce [12]byte // sealed data is neither stored nor sent
	return repeat(ctx, d, block, func() error { out = g.Seal(out[:0], nonce[:], p, nil); return nil })
}

func compress(ctx context.Context, d time.Duration) (tally, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return tally{}, err
	}
	defer z.Close()
	// Half of it compresses, like typical data of a file system.
	p := noise(block)
	clear(p[:block/2])
	var out []byte
	t, err := repeat(ctx, d, block, func() error { out = z.EncodeAll(p, out[:0]); return nil })
	t.note = "of data with half zeros"
	return t, err
}

// noise returns n incompressible bytes.
func noise(n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(p) // never fails
	return p
}
