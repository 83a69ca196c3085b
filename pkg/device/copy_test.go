package device

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
	"lukechampine.com/blake3"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

// deviceBlock is the block size of these tests.
const deviceBlock = MinBlock

// mixed returns size bytes: alternating zeros, text and noise, not aligned to
// blocks.
func mixed(size int) []byte {
	p := make([]byte, size)
	const turn = 3*deviceBlock + 777
	for off, k := 0, 0; off < size; off, k = off+turn, k+1 {
		part := p[off:min(size, off+turn)]
		switch k % 3 {
		case 0:
			copy(part, transfertest.Random(len(part)))
		case 1:
			copy(part, transfertest.Text(len(part)))
		}
	}
	return p
}

// digest returns the digest that b3sum prints.
func digest(p []byte) string {
	sum := blake3.Sum256(p)
	return hex.EncodeToString(sum[:])
}

func deviceOptions(change ...func(*Options)) Options {
	o := Options{Options: transfer.Options{Block: deviceBlock, Compress: "off"}}
	for _, f := range change {
		f(&o)
	}
	return o
}

// copyOverLink runs both ends over a link.
func copyOverLink(t testing.TB, mode tcp.Mode, streams int, via func(string) string, src *memoryDevice, dst *memoryDevice, j blockJournal, opt Options) (o outcome) {
	t.Helper()
	sender, receiver := transfertest.Links(t, mode, streams, via)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.received, o.receiveErr = receive(context.Background(), receiver, dst, j, src.Size(), opt, nil)
	}()
	o.sent, o.sendErr = send(context.Background(), src, sender, opt, nil)
	<-done
	require.True(t, src.Closed)
	require.True(t, dst.Closed)
	return o
}

// outcome holds the results of both ends of a copy.
type outcome struct {
	sent, received      Result
	sendErr, receiveErr error
}

// local runs a local copy.
func local(src *memoryDevice, dst *memoryDevice, j blockJournal, opt Options) (o outcome) {
	o.received, o.receiveErr = copyLocal(context.Background(), src, dst, j, opt, nil)
	o.sent, o.sendErr = o.received, o.receiveErr
	return o
}

func sizes() []int {
	return []int{0, 1, 4096, deviceBlock - 1, deviceBlock, deviceBlock + 1, 2 * deviceBlock, 40*deviceBlock + 12345}
}

// quickDigest returns the xxh3-128 of the sums of all blocks: xxh3-128 padded with
// zeros.
func quickDigest(p []byte, block int) string {
	var sums []byte
	for part := range slices.Chunk(p, block) {
		m := xxh3.Hash128(part).Bytes()
		sums = append(append(sums, m[:]...), make([]byte, 16)...)
	}
	return fmt.Sprintf("%x", xxh3.Hash128(sums).Bytes())
}

func TestCopyIsComplete(t *testing.T) {
	t.Parallel()
	type way struct {
		mode    tcp.Mode // "" is a local copy
		streams int
		change  func(*Options)
	}
	for name, w := range map[string]way{
		"local":                    {change: func(*Options) {}},
		"local, delta":             {change: func(o *Options) { o.Delta = true }},
		"signed":                   {tcp.Signed, 1, func(*Options) {}},
		"tls, 3":                   {tcp.TLS, 3, func(*Options) {}},
		"plain, 2":                 {tcp.Plain, 2, func(*Options) {}},
		"local, without read-back": {change: func(o *Options) { o.NoVerify = true }},
		"delta, without read-back": {tcp.Signed, 1, func(o *Options) { o.NoVerify, o.Delta = true, true }},
		"plain, without read-back": {tcp.Plain, 1, func(o *Options) { o.NoVerify = true }},
		"signed, delta":            {tcp.Signed, 2, func(o *Options) { o.Delta = true }},
		"signed, zstd":             {tcp.Signed, 2, func(o *Options) { o.Compress = "zstd:3" }},
		"tls, auto":                {tcp.TLS, 1, func(o *Options) { o.Compress = "auto"; o.CompressThreads = 1 }},
		"local, xxh3":              {change: func(o *Options) { o.Quick = true }},
		"signed, xxh3":             {tcp.Signed, 2, func(o *Options) { o.Quick = true }},
		"xxh3, delta":              {tcp.Signed, 1, func(o *Options) { o.Quick, o.Delta = true, true }},
		"signed, verified later":   {tcp.Signed, 1, func(o *Options) { o.VerifyLater = true }},
		"signed, limited":          {tcp.Signed, 2, func(o *Options) { o.BandLimit = 64 << 20 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, size := range sizes() {
				for _, holes := range []int64{0, 4096} {
					data := mixed(size)
					src, dst, j := newMemoryDevice(data), newMemoryDevice(transfertest.Random(size)), &memoryJournal{}
					src.Holes = holes
					opt := deviceOptions(w.change)
					o := local
					if w.mode != "" {
						o = func(src, dst *memoryDevice, j blockJournal, opt Options) outcome {
							return copyOverLink(t, w.mode, w.streams, nil, src, dst, j, opt)
						}
					}
					got := o(src, dst, j, opt)
					require.NoError(t, got.sendErr, size)
					require.NoError(t, got.receiveErr, size)
					require.True(t, bytes.Equal(data, dst.Bytes()), "%d bytes", size)
					require.True(t, dst.Committed)
					require.True(t, j.Removed)
					if opt.NoVerify && !opt.Delta {
						require.Empty(t, got.sent.Device.SourceDigest)
						require.Empty(t, got.received.Device.TargetDigest)
						continue
					}
					want := digest(data)
					if opt.Digest() == XXH3 {
						want = quickDigest(data, opt.Block)
					}
					require.Equal(t, want, got.sent.Device.SourceDigest)
					if !opt.NoVerify {
						require.Equal(t, want, got.received.Device.TargetDigest)
						require.EqualValues(t, size, got.received.Device.Verified)
					}
					d := got.received.Device
					require.EqualValues(t, size, d.Data+d.Zeros+d.Present)
				}
			}
		})
	}
}

func TestZerosAreNotSent(t *testing.T) {
	t.Parallel()
	data := make([]byte, 16<<20)
	copy(data[10<<20:], transfertest.Random(deviceBlock))
	for _, holes := range []int64{0, 4096} {
		src, dst := newMemoryDevice(data), newMemoryDevice(transfertest.Random(len(data)))
		src.Holes = holes
		o := copyOverLink(t, tcp.Signed, 1, nil, src, dst, nil, deviceOptions())
		require.NoError(t, o.sendErr)
		require.NoError(t, o.receiveErr)
		require.True(t, bytes.Equal(data, dst.Bytes()))
		require.EqualValues(t, deviceBlock, dst.Written)
		require.Less(t, o.sent.WireBytes, int64(3*deviceBlock))
		if holes > 0 {
			require.EqualValues(t, deviceBlock, src.Reads, "holes are not read")
		}
	}
}

func TestDeltaSendsOnlyDifferences(t *testing.T) {
	t.Parallel()
	data := transfertest.Random(400 * deviceBlock)
	old := bytes.Clone(data)
	for i := range 4 { // 1 %
		copy(old[(100*i+7)*deviceBlock:], transfertest.Random(4096))
	}
	src, dst := newMemoryDevice(data), newMemoryDevice(old)
	o := copyOverLink(t, tcp.Signed, 1, nil, src, dst, nil, deviceOptions(func(o *Options) { o.Delta = true }))
	require.NoError(t, o.sendErr)
	require.NoError(t, o.receiveErr)
	require.True(t, bytes.Equal(data, dst.Bytes()))
	require.EqualValues(t, 4*deviceBlock, dst.Written)
	require.Less(t, o.sent.WireBytes, int64(len(data)*15/1000))
	require.Equal(t, digest(data), o.received.Device.TargetDigest)
}

// TestDeltaOfEqualDevices copies a delta onto an identical target with holes.
func TestDeltaOfEqualDevices(t *testing.T) {
	t.Parallel()
	data := mixed(100*deviceBlock + 5)
	src, dst := newMemoryDevice(data), newMemoryDevice(data)
	src.Holes, dst.Holes = 4096, 4096
	o := copyOverLink(t, tcp.Plain, 1, nil, src, dst, nil, deviceOptions(func(o *Options) { o.Delta = true }))
	require.NoError(t, o.sendErr)
	require.NoError(t, o.receiveErr)
	require.Zero(t, dst.Written)
	require.EqualValues(t, len(data), o.received.Device.Present)
	require.EqualValues(t, len(data), o.sent.Device.Present)
	require.EqualValues(t, len(data), o.received.Device.Verified)
}

// TestDeviceResumes expects that blocks stored before an interruption are not sent again, but that
// blocks not synced before a power failure are.
func TestDeviceResumes(t *testing.T) {
	t.Parallel()
	data := mixed(300*deviceBlock + 99)
	for name, power := range map[string]bool{"interruption": false, "interruption and power failure": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dst, j := newMemoryDevice(transfertest.Random(len(data))), &memoryJournal{}
			// The proxy closes the connection in the middle of the data.
			cut := transfertest.Proxied(t, func(int) transfertest.Tamper {
				return transfertest.At(4<<20, func(before, _ []byte) ([]byte, bool) { return before, true })
			})
			o := copyOverLink(t, tcp.Signed, 1, cut, newMemoryDevice(data), dst, j, deviceOptions())
			require.ErrorIs(t, o.sendErr, tcp.ErrConnectionLost)
			require.ErrorIs(t, o.receiveErr, tcp.ErrConnectionLost)
			require.False(t, dst.Committed)
			require.NotZero(t, j.Len(), "received blocks are recorded")
			if power {
				dst.PowerCut()
			}
			before := j.Len()
			dst.Closed, dst.Written = false, 0
			o = copyOverLink(t, tcp.Signed, 1, nil, newMemoryDevice(data), dst, j, deviceOptions())
			require.NoError(t, o.sendErr)
			require.NoError(t, o.receiveErr)
			require.True(t, bytes.Equal(data, dst.Bytes()))
			require.EqualValues(t, before, o.received.Device.Present/deviceBlock, "every block of the journal was used")
			require.Equal(t, o.received.Device.Present, o.received.Device.Resumed)
			require.EqualValues(t, len(data), o.received.Device.Verified, "resumed blocks are also read back")
			require.Equal(t, digest(data), o.received.Device.TargetDigest)
		})
	}
}

// TestResumeWithChangedSource expects that if the source has changed, only different blocks are sent
// again.
func TestResumeWithChangedSource(t *testing.T) {
	t.Parallel()
	data := mixed(50 * deviceBlock)
	j := &memoryJournal{}
	dst := newMemoryDevice(make([]byte, len(data)))
	var writes atomic.Int64
	dst.FailWrite = func(int64) bool { return writes.Add(1) > 20 }
	o := local(newMemoryDevice(data), dst, j, deviceOptions())
	require.ErrorIs(t, o.sendErr, errDisk)
	require.NotZero(t, j.Len())
	dst.FailWrite = nil
	copy(data, "changed")
	o = local(newMemoryDevice(data), dst, j, deviceOptions())
	require.NoError(t, o.sendErr)
	require.True(t, bytes.Equal(data, dst.Bytes()))
	require.NotZero(t, o.received.Device.Resumed)
}

func TestDeviceFaults(t *testing.T) {
	t.Parallel()
	data := mixed(100 * deviceBlock)
	broken := func(off int64) bool { return off == 60*deviceBlock }
	for name, c := range map[string]struct {
		src, dst func(*memoryDevice)
		is       error
	}{
		"the source cannot be read":    {src: func(d *memoryDevice) { d.FailRead = broken }, is: errDisk},
		"the source changed":           {src: func(d *memoryDevice) { d.Changed = errors.New("it changed") }},
		"the target cannot be written": {dst: func(d *memoryDevice) { d.FailWrite = broken }, is: errDisk},
		"the target cannot be read":    {dst: func(d *memoryDevice) { d.FailRead = broken }, is: errDisk},
		"the target holds another byte": {dst: func(d *memoryDevice) {
			d.Flip = func(off int64, p []byte) {
				if broken(off) {
					p[17] ^= 1
				}
			}
		}, is: ErrCorrupt},
	} {
		for _, mode := range []tcp.Mode{"", tcp.Signed, tcp.Plain} {
			t.Run(fmt.Sprintf("%s, %s", name, mode), func(t *testing.T) {
				t.Parallel()
				src, dst, j := newMemoryDevice(data), newMemoryDevice(make([]byte, len(data))), &memoryJournal{}
				if c.src != nil {
					c.src(src)
				}
				if c.dst != nil {
					c.dst(dst)
				}
				var o outcome
				if mode == "" {
					o = local(src, dst, j, deviceOptions())
				} else {
					o = copyOverLink(t, mode, 1, nil, src, dst, j, deviceOptions())
				}
				require.Error(t, o.sendErr)
				require.Error(t, o.receiveErr)
				require.False(t, dst.Committed)
				own, echo := o.sendErr, o.receiveErr
				if c.dst != nil {
					own, echo = echo, own
				}
				if c.is != nil {
					require.ErrorIs(t, own, c.is)
				}
				// A sender that aborts within a frame cannot send its reason.
				torn := c.src != nil && errors.Is(echo, tcp.ErrConnectionLost)
				if mode != "" && !torn {
					require.ErrorAs(t, echo, new(*transfer.PeerError), "%v", own)
				}
				if errors.Is(own, ErrCorrupt) {
					require.Zero(t, j.Len(), "no record may cover corrupt bytes")
				} else if c.dst != nil {
					require.NotZero(t, j.Len())
				}
			})
		}
	}
}

// TestCopyOverTamperedPlainLink expects that changed data on a plain link, which does not
// authenticate frames, is detected. The read-back detects it, or without it the mark that is sent
// with each block.
func TestCopyOverTamperedPlainLink(t *testing.T) {
	t.Parallel()
	data := transfertest.Random(100 * deviceBlock)
	for _, unread := range []bool{false, true} {
		src, dst := newMemoryDevice(data), newMemoryDevice(make([]byte, len(data)))
		flip := transfertest.Proxied(t, func(int) transfertest.Tamper {
			return transfertest.At(3<<20, func(before, after []byte) ([]byte, bool) {
				out := append(bytes.Clone(before), after...)
				out[len(before)] ^= 0x80
				return out, false
			})
		})
		o := copyOverLink(t, tcp.Plain, 1, flip, src, dst, nil, deviceOptions(func(o *Options) { o.NoVerify = unread }))
		require.Error(t, o.receiveErr)
		require.Error(t, o.sendErr)
		require.False(t, dst.Committed)
	}
}

func TestHashAll(t *testing.T) {
	t.Parallel()
	for _, size := range sizes() {
		data := mixed(size)
		src := newMemoryDevice(data)
		src.Holes = 4096
		res, sums, err := hashAll(context.Background(), src, deviceOptions(), nil)
		require.NoError(t, err)
		require.Equal(t, digest(data), res.Device.SourceDigest)
		require.Len(t, sums, (size+deviceBlock-1)/deviceBlock)
		require.True(t, src.Closed)
	}
}
