package zfs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

const (
	volumeBlock = 16 << 10
	volumeBytes = 64 * volumeBlock
	volumeTo    = uint64(77)
	volumeBase  = uint64(76)
)

// volumeImage is the contents of a volume in memory.
type volumeImage struct {
	data []byte
	fail error
}

func (v *volumeImage) WriteAt(p []byte, off int64) (int, error) {
	if v.fail != nil {
		return 0, v.fail
	}
	return copy(v.data[off:off+int64(len(p))], p), nil
}

func (v *volumeImage) Zero(off, n int64) error {
	clear(v.data[off : off+n])
	return v.fail
}

func volumeArrival(base uint64) zfs.Arrival {
	return zfs.Arrival{Volume: true, Base: base, Snapshots: []zfs.SnapshotID{{Name: "b", GUID: volumeTo}}}
}

// volumeObjects returns the OBJECT records of a volume.
func volumeObjects() []zfstest.Record {
	data, properties := zfstest.Object(1, volumeBlock, volumeTo, false), zfstest.Object(2, 512, volumeTo, false)
	data.Put(16, 23) // DMU_OT_ZVOL, without a bonus
	properties.Put(16, 24)
	return []zfstest.Record{zfstest.FreeObjects(0, 1, volumeTo), data, properties}
}

// volumeWrite returns a WRITE record of one block.
func volumeWrite(object uint64, block int, fill byte) zfstest.Record {
	r := zfstest.Write(object, uint64(block)*volumeBlock, volumeTo)
	r.SetBlock(volumeBlock)
	r.Payload = bytes.Repeat([]byte{fill}, volumeBlock)
	return r
}

// volumeStream returns the stream of a volume with more records.
func volumeStream(base uint64, more ...zfstest.Record) zfstest.Stream {
	s := zfstest.New("tank/vm@b", volumeTo, base, true)
	return append(append(append(zfstest.Stream{s[0]}, volumeObjects()...), more...), s[1])
}

// applyVolume applies a stream in pieces of n bytes.
func applyVolume(t *testing.T, base uint64, to *volumeImage, stream []byte, n int) error {
	t.Helper()
	v, err := zfs.NewVolumeStream(volumeArrival(base), volumeBytes, to)
	require.NoError(t, err)
	for len(stream) > 0 {
		piece := stream[:min(n, len(stream))]
		stream = stream[len(piece):]
		if _, err := v.Write(piece); err != nil {
			require.Equal(t, err, v.End(), "an error remains")
			return err
		}
	}
	return v.End()
}

// TestVolumeStream expects the contents of a snapshot after a full stream and after its changes, in
// both byte orders and in pieces of any size.
func TestVolumeStream(t *testing.T) {
	t.Parallel()
	full := volumeStream(0, volumeWrite(1, 0, 1), volumeWrite(1, 5, 2), volumeWrite(1, 6, 3))
	changes := volumeStream(volumeBase, zfstest.Free(1, volumeBytes, math.MaxUint64, volumeTo), volumeWrite(1, 0, 4), zfstest.Free(1, 5*volumeBlock, volumeBlock, volumeTo),
		volumeWrite(1, 63, 5), zfstest.Free(2, 512, math.MaxUint64, volumeTo))
	want := func(blocks map[int]byte) []byte {
		out := make([]byte, volumeBytes)
		for i, fill := range blocks {
			copy(out[i*volumeBlock:], bytes.Repeat([]byte{fill}, volumeBlock))
		}
		return out
	}
	for _, n := range []int{1, 7, 313, 4096, 1 << 20} {
		for _, encode := range []func(zfstest.Stream) []byte{zfstest.Stream.Bytes, zfstest.Stream.Swapped} {
			to := &volumeImage{data: bytes.Repeat([]byte{0xff}, volumeBytes)}
			require.NoError(t, applyVolume(t, 0, to, encode(full), n))
			require.Equal(t, want(map[int]byte{0: 1, 5: 2, 6: 3}), to.data, "a full stream overwrites everything")
			for range 2 { // repeated
				require.NoError(t, applyVolume(t, volumeBase, to, encode(changes), n))
				require.Equal(t, want(map[int]byte{0: 4, 6: 3, 63: 5}), to.data)
			}
		}
	}
	broken := &volumeImage{data: make([]byte, volumeBytes), fail: errors.New("no space")}
	require.ErrorIs(t, applyVolume(t, 0, broken, full.Bytes(), 4096), broken.fail)
}

// TestVolumeStreamRefuses expects that nothing but a complete planned stream is accepted, and that
// nothing is written outside of the volume (volumeImage would panic).
func TestVolumeStreamRefuses(t *testing.T) {
	t.Parallel()
	changed := func(r zfstest.Record, f func(*zfstest.Record)) zfstest.Record { f(&r); return r }
	compressed := changed(volumeWrite(1, 0, 1), func(r *zfstest.Record) { r.SetPacked(512); r.Payload = r.Payload[:512] })
	files := changed(zfstest.Object(1, volumeBlock, volumeTo, false), func(*zfstest.Record) {})
	other := zfstest.Object(3, volumeBlock, volumeTo, false)
	lie := func(s zfstest.Stream, f func(begin *zfstest.Record)) zfstest.Stream { f(&s[0]); return s }
	plain := func() zfstest.Stream { return volumeStream(volumeBase, volumeWrite(1, 3, 1)) }
	for name, tt := range map[string]struct {
		stream zfstest.Stream
		want   string
	}{
		"another base":       {volumeStream(volumeBase+1, volumeWrite(1, 0, 1)), "incremental source"},
		"a full stream":      {volumeStream(0, volumeWrite(1, 0, 1)), "incremental source"},
		"another snapshot":   {lie(plain(), func(r *zfstest.Record) { r.SetToName("tank/vm@c") }), "instead of @b"},
		"another GUID":       {func() zfstest.Stream { s := plain(); s.SetToGUID(5); return s }(), "not planned"},
		"a filesystem":       {lie(plain(), func(r *zfstest.Record) { r.SetObjset(2) }), "objects of type 2"},
		"raw":                {lie(plain(), func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureRaw) }), "raw"},
		"resumed":            {lie(plain(), func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureResuming) }), "resumes another"},
		"deduplicated":       {lie(plain(), func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureDedup) }), "features"},
		"beyond the end":     {volumeStream(volumeBase, volumeWrite(1, 64, 1)), "beyond the volume's"},
		"far beyond the end": {volumeStream(volumeBase, changed(volumeWrite(1, 0, 1), func(r *zfstest.Record) { r.Put(24, math.MaxUint64&^(volumeBlock-1)-volumeBlock) })), "beyond the volume's"},
		"overflow":           {volumeStream(volumeBase, changed(volumeWrite(1, 0, 1), func(r *zfstest.Record) { r.Put(24, math.MaxUint64&^(volumeBlock-1)) })), "too large"},
		"descending":         {volumeStream(volumeBase, volumeWrite(1, 5, 1), volumeWrite(1, 4, 1)), "was written"},
		"frees its data":     {volumeStream(volumeBase, volumeWrite(1, 5, 1), zfstest.Free(1, 5*volumeBlock, volumeBlock, volumeTo)), "was written"},
		"compressed":         {lie(volumeStream(volumeBase, compressed), func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureCompressed) }), "only plain blocks"},
		"a file":             {zfstest.Stream{plain()[0], files, volumeWrite(1, 0, 1), plain()[len(plain())-1]}, "its type is 19"},
		"another object":     {volumeStream(volumeBase, other), "no such object"},
		"frees the volume":   {zfstest.Stream{plain()[0], zfstest.FreeObjects(0, 2, volumeTo), plain()[len(plain())-1]}, "frees the data"},
		"frees everything":   {zfstest.Stream{plain()[0], zfstest.FreeObjects(1, 1<<40, volumeTo), plain()[len(plain())-1]}, "frees the data"},
		"a redaction":        {volumeStream(volumeBase, zfstest.ByRef(1, 0, volumeBlock, volumeTo, 1, 1, 0)), "cannot have this type"},
		"without an object":  {zfstest.Stream{plain()[0], volumeWrite(1, 0, 1), plain()[len(plain())-1]}, "no OBJECT record"},
	} {
		to := &volumeImage{data: make([]byte, volumeBytes)}
		err := applyVolume(t, volumeBase, to, tt.stream.Bytes(), 4096)
		require.ErrorContains(t, err, tt.want, name)
		require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Unplanned}, name)
	}
	good := plain().Bytes()
	to := func() *volumeImage { return &volumeImage{data: make([]byte, volumeBytes)} }
	require.NoError(t, applyVolume(t, volumeBase, to(), good, 4096))
	require.ErrorContains(t, applyVolume(t, volumeBase, to(), append(bytes.Clone(good), 0), 4096), "continues after its end")
	for cut := range good {
		if cut%97 == 0 || cut > len(good)-zfs.RecordSize-2 || cut < 3 {
			require.ErrorIs(t, applyVolume(t, volumeBase, to(), good[:cut], 4096), &zfs.Error{Kind: zfs.Incomplete}, "cut at %d", cut)
		}
	}
	// Each changed byte is found: of headers, payloads and checksums.
	for at := range good {
		if at%53 != 0 && at < len(good)-zfs.RecordSize {
			continue
		}
		bad := bytes.Clone(good)
		bad[at] ^= 0x10
		require.Error(t, applyVolume(t, volumeBase, to(), bad, 4096), "byte %d", at)
	}
	for _, a := range []zfs.Arrival{{}, {Volume: true}, {Snapshots: volumeArrival(0).Snapshots}, {Volume: true, Raw: true, Snapshots: volumeArrival(0).Snapshots}} {
		_, err := zfs.NewVolumeStream(a, volumeBytes, to())
		require.Error(t, err, fmt.Sprint(a))
	}
}

// FuzzVolumeStream expects that no stream writes outside of the volume.
func FuzzVolumeStream(f *testing.F) {
	f.Add(volumeStream(volumeBase, volumeWrite(1, 3, 1), zfstest.Free(1, 5*volumeBlock, volumeBlock, volumeTo)).Bytes())
	f.Add(volumeStream(0, volumeWrite(1, 0, 1)).Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		base := uint64(0)
		if len(b) >= zfs.RecordSize {
			base = binary.LittleEndian.Uint64(b[48:])
		}
		_ = applyVolume(t, base, &volumeImage{data: make([]byte, volumeBytes)}, b, 4096)
	})
}
