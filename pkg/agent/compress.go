package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// compressionWindow is the maximum distance between equal data that the agent's messages use, in bytes.
// Both hosts need about as much memory.
const compressionWindow = 256 << 10

// compressor compresses the messages of an agent. They are one zstd stream (RFC 8878), so that an answer
// can refer to the names of earlier answers. Each Write ends with a whole block, which the client can
// decode without waiting for the next one.
type compressor struct{ z *zstd.Encoder }

func newCompressor(w io.Writer) (compressor, error) {
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
		zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(compressionWindow),
		zstd.WithAllLitEntropyCompression(true)) // for small streams, which are base64
	return compressor{z}, err
}

func (c compressor) Write(p []byte) (int, error) {
	n, err := c.z.Write(p)
	return n, cmp.Or(err, c.z.Flush())
}

// decompressor reads the messages of an agent.
type decompressor struct{ z *zstd.Decoder }

func newDecompressor(r io.Reader) (decompressor, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(compressionWindow))
	return decompressor{z}, err
}

func (d decompressor) Read(p []byte) (int, error) {
	n, err := d.z.Read(p)
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return n, err
	}
	return n, fmt.Errorf("read its messages: %w", err)
}
