package zfs_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// captured are streams of OpenZFS 2.3.9: plain, with large, embedded and compressed blocks, raw, and of
// a volume.
var captured = []string{"plain-full", "plain-incr", "lec-full", "lec-incr", "raw-full", "raw-incr", "vol-full"}

// written returns the blocks of all WRITE records of a stream, in its order. Blocks have the size that
// the OBJECT record names.
func written(t testing.TB, b []byte) (all zfs.Blocks) {
	t.Helper()
	size := map[uint64]uint64{}
	for _, r := range zfstest.ParseStream(t, b) {
		switch r.Type() {
		case zfs.RecordObject:
			size[r.Object()] = r.BlockSize()
		case zfs.RecordWrite:
			all = append(all, zfs.BlockRange{Object: r.Object(), First: r.Offset() / size[r.Object()], Count: 1})
		}
	}
	return all
}

// selected returns the records that a filter must pass.
func selected(t testing.TB, b []byte, only zfs.Blocks) (out zfstest.Stream) {
	t.Helper()
	size := map[uint64]uint64{}
	for _, r := range zfstest.ParseStream(t, b) {
		object := slices.ContainsFunc(only, func(w zfs.BlockRange) bool { return w.Object == r.Object() })
		switch r.Type() {
		case zfs.RecordBegin, zfs.RecordEnd:
			out = append(out, r)
		case zfs.RecordObject:
			if size[r.Object()] = r.BlockSize(); object {
				out = append(out, r)
			}
		case zfs.RecordWrite:
			if object && only.Has(r.Object(), r.Offset()/size[r.Object()]) {
				out = append(out, r)
			}
		}
	}
	return out
}

// corrective returns the plan of a corrective receive of some blocks of a stream.
func corrective(t testing.TB, b []byte, only zfs.Blocks) zfs.ReceiveSpec {
	t.Helper()
	r := zfs.Expected(t, b)
	r.Corrective, r.Only = true, only
	return r
}

// TestBlockFilter filters captured streams. The result has the records of the blocks, with the
// checksums that package zfstest computes, and passes the gate of a corrective receive.
func TestBlockFilter(t *testing.T) {
	t.Parallel()
	for _, name := range captured {
		b := zfs.Sampled(t, name+".source")
		all := written(t, b)
		require.NotEmpty(t, all, name)
		some := zfs.Blocks{}
		for i := 0; i < len(all); i += 3 {
			some = append(some, all[i])
		}
		for _, only := range []zfs.Blocks{all[:1], all[len(all)-1:], some, all} {
			require.NoError(t, only.Check(), name)
			want := selected(t, b, only).Bytes()
			f := zfs.NewBlockFilter(iotest.OneByteReader(bytes.NewReader(b)), only)
			got, err := io.ReadAll(f)
			require.NoError(t, err, name)
			require.True(t, bytes.Equal(want, got), "%s: %d of %d blocks", name, len(only), len(all))
			require.EqualValues(t, len(b), f.Worked())
			require.EqualValues(t, len(only), f.Blocks())
			for _, size := range []int{1, 311, 4096} {
				n, err := zfs.Pass(t, corrective(t, b, only), got, size)
				require.NoError(t, err, name)
				require.Equal(t, len(got), n)
			}
		}
		// Blocks that the stream does not have: the new stream is valid without them.
		got, err := io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(b), zfs.Blocks{{Object: 1 << 40, First: 1, Count: 1}}))
		require.NoError(t, err)
		require.Len(t, zfstest.ParseStream(t, got), 2, name)
	}
	swapped := zfstest.ParseStream(t, zfs.Sampled(t, "plain-full.source")).Swapped()
	only := written(t, zfs.Sampled(t, "plain-full.source"))[:2]
	got, err := io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(swapped), only))
	require.NoError(t, err)
	require.True(t, bytes.Equal(selected(t, zfs.Sampled(t, "plain-full.source"), only).Swapped(), got), "a host of the other byte order")
}

// TestBlockFilterRefusesDamage truncates and modifies the source at each record, and expects that the
// filter returns neither an END record nor any byte that the source's checksums do not prove.
func TestBlockFilterRefusesDamage(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain-full", "raw-full", "vol-full"} {
		b := zfs.Sampled(t, name+".source")
		only := written(t, b)
		if len(only) > 40 {
			only = only[:40]
		}
		whole, err := io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(b), only))
		require.NoError(t, err)
		starts := []int{}
		at := 0
		for _, r := range zfstest.ParseStream(t, b) {
			starts = append(starts, at)
			at += zfs.RecordSize + len(r.Payload)
		}
		step := max(1, len(starts)/40)
		for i := 0; i < len(starts); i += step {
			start := starts[i]
			for _, cut := range []int{start, start + 1, start + zfs.RecordSize, start + zfs.RecordSize + 1} {
				if cut >= len(b) {
					continue
				}
				got, err := io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(b[:cut]), only))
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%s: %d bytes", name, cut)
				require.True(t, bytes.HasPrefix(whole, got), "%s: %d bytes", name, cut)
				require.Less(t, len(got), len(whole))
				bad := bytes.Clone(b)
				bad[cut] ^= 0x40
				got, err = io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(bad), only))
				require.Error(t, err, "%s: byte %d", name, cut)
				require.True(t, bytes.HasPrefix(whole, got), "%s: byte %d", name, cut)
				require.Less(t, len(got), len(whole))
			}
		}
		// The error of zfs send is returned as it is, also after a complete stream.
		failed := &zfs.Error{Kind: zfs.PoolFault, Op: zfs.OpSend}
		for _, n := range []int{0, len(b) / 2, len(b)} {
			got, err := io.ReadAll(zfs.NewBlockFilter(io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(failed)), only))
			require.Equal(t, failed, err)
			require.NotEqual(t, len(whole), len(got))
			if bytes.HasPrefix(whole, got) { // it has no block yet
				require.NotEqual(t, len(b), n)
				continue
			}
			// zfs receive gets the last block although zxfer withholds the end: FREE records follow.
			pads := 3 * zfs.RecordSize
			require.True(t, bytes.HasPrefix(whole, got[:len(got)-pads]), n)
			passed, err := zfs.Pass(t, corrective(t, b, only), got, 4096)
			require.NoError(t, err)
			require.Equal(t, len(got), passed)
			parsed := zfstest.Stream{}
			s := zfs.NewStreamReader(bytes.NewReader(got))
			for r, err := s.Next(); err == nil; r, err = s.Next() {
				header := [zfs.RecordSize]byte(r.Header)
				payload, err := s.Payload()
				require.NoError(t, err)
				parsed = append(parsed, zfstest.Record{Header: header, Payload: bytes.Clone(payload)})
			}
			require.Equal(t, zfs.RecordFree, parsed[len(parsed)-1].Type())
			require.True(t, bytes.Equal(parsed.Bytes(), got), "the checksums of the padding")
		}
		_, err = io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(append(bytes.Clone(b), 0)), only))
		require.Error(t, err, "data after the end")
		_, err = io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(append(bytes.Clone(b), b...)), only))
		require.Error(t, err, "a second stream")
	}
	_, err := io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(zfs.Sampled(t, "plain-range.source")), zfs.Blocks{{1, 0, 1}}))
	require.ErrorContains(t, err, "one snapshot", "a package")
}

// TestGateRefusesOtherBlocks sends filtered streams of a lying copy through the gate.
func TestGateRefusesOtherBlocks(t *testing.T) {
	t.Parallel()
	b := zfs.Sampled(t, "lec-full.source")
	all := written(t, b)
	first := all[slices.IndexFunc(all, func(r zfs.BlockRange) bool { return r.First > 0 })]
	only := zfs.Blocks{first}
	other := slices.IndexFunc(all, func(r zfs.BlockRange) bool { return r.Object != first.Object })
	require.NotEqual(t, -1, other)
	sameObject := slices.IndexFunc(all, func(r zfs.BlockRange) bool { return r.Object == first.Object && r.First != first.First })
	require.NotEqual(t, -1, sameObject)
	plan := corrective(t, b, only)
	good := selected(t, b, only)
	_, err := zfs.Pass(t, plan, good.Bytes(), 4096)
	require.NoError(t, err)
	whole := zfstest.ParseStream(t, b)
	for name, tt := range map[string]struct {
		stream zfstest.Stream
		want   string
	}{
		"the whole stream":         {whole, "not requested"},
		"another object":           {selected(t, b, zfs.Blocks{all[other]}), "not requested"},
		"another block":            {selected(t, b, zfs.Blocks{all[sameObject], first}), "not requested"},
		"a block without its size": {slices.DeleteFunc(good.Clone(), func(r zfstest.Record) bool { return r.Type() == zfs.RecordObject }), "no OBJECT record"},
		"the block twice":          {slices.Insert(good.Clone(), 3, good[2]), "comes after"},
		"freed data":               {slices.Insert(good.Clone(), 3, zfstest.Free(all[other].Object, 1<<40, 1<<20, good[0].ToGUID())), ""},
		"freed objects":            {slices.Insert(good.Clone(), 3, zfstest.FreeObjects(first.Object+40, 32, good[0].ToGUID())), "not requested"},
	} {
		for _, size := range []int{311, 4096} {
			_, err := zfs.Pass(t, plan, tt.stream.Bytes(), size)
			require.ErrorContains(t, err, tt.want, name)
		}
	}
	plan.Corrective = false
	_, err = zfs.NewGate(plan)
	require.ErrorContains(t, err, "only a corrective receive")
	_, err = zfs.Pass(t, zfs.Expected(t, b), b, 4096)
	require.NoError(t, err)
}

// TestBlocksText encodes blocks, and decodes texts of another host.
func TestBlocksText(t *testing.T) {
	t.Parallel()
	b := zfs.Blocks{{1, 0, 1}, {1, 5, 16}, {0x20, 3, 1}}
	text, err := b.MarshalText()
	require.NoError(t, err)
	require.Equal(t, "1:0+1,1:5+10,20:3+1", string(text))
	var got zfs.Blocks
	require.NoError(t, got.UnmarshalText(text))
	require.Equal(t, b, got)
	require.EqualValues(t, 18, b.Total())
	require.True(t, b.Has(1, 20))
	for _, no := range [][2]uint64{{1, 1}, {1, 21}, {2, 0}, {0x20, 2}, {0x20, 4}, {0x21, 3}, {0, 0}} {
		require.False(t, b.Has(no[0], no[1]), no)
	}
	require.True(t, b.Contains(zfs.Blocks{{1, 7, 3}}))
	require.False(t, b.Contains(zfs.Blocks{{1, 20, 2}}))
	for _, bad := range []string{"", "1", "1:2", "1:2+", "0:1+1", "1:0+0", "1:-1+1", "1000000000000:0+1", "1:80000000000000+1", "1:1+ffffffffffffffff",
		"1:1+2,1:2+1", "2:0+1,1:0+1", "1:0+1,", "1:0+1 ", "x:0+1", strings.Repeat("1:0+1,", zfs.MaxBlockRanges) + "1:0+1"} {
		require.Error(t, got.UnmarshalText([]byte(bad)), bad[:min(20, len(bad))])
	}
	require.EqualValues(t, uint64(1<<64-1), (zfs.Blocks{{1, 0, 1 << 63}, {1, 1 << 63, 1 << 63}}).Total(), "no overflow")
}

// TestCollectBlocks groups an error log by dataset.
func TestCollectBlocks(t *testing.T) {
	t.Parallel()
	names := map[uint64]string{10: "tank/a", 11: "tank/a@1", 12: "tank/b", 13: "tank/c@x", 14: "tank/d", 15: "tank/a/%recv"}
	log := []zfs.ErrorEntry{
		{10, 2, 0, 7}, {11, 2, 0, 6}, {10, 2, 0, 6}, {11, 2, 0, 8}, {10, 2, 0, 10}, {10, 1, 0, 0}, {10, 2, 0, 10}, // also listed twice
		{12, 3, 1, 0}, {12, 3, 0, 0}, // an indirect block
		{13, 4, 2, 0},            // of a snapshot only
		{14, 0, 0, 3},            // attributes of objects
		{14, 9, 0, 1<<64 - 1},    // a spill block
		{15, 1, 0, 0},            // a running receive
		{99, 5, 0, 0},            // destroyed
		{0, 5, 0, 0},             // of the pool
		{10, 1<<64 - 1, 0, 0},    // user accounting
		{11, 2, -1, 1<<64 - 555}, // the root of an intent log
	}
	got, err := zfs.CollectBlocks(log, func(objset uint64) string { return names[objset] })
	require.NoError(t, err)
	require.Equal(t, []zfs.DamagedBlocks{
		{Dataset: "tank/a", Data: zfs.Blocks{{1, 0, 1}, {2, 6, 3}, {2, 10, 1}}, Snapshots: []string{"1"}, Metadata: 2, LiveMetadata: true},
		{Dataset: "tank/b", Data: zfs.Blocks{{3, 0, 1}}, Metadata: 1, LiveMetadata: true},
		{Dataset: "tank/c", Metadata: 1},
		{Dataset: "tank/d", Metadata: 2, LiveMetadata: true},
	}, got)
	d := zfs.Damage{Blocks: got}
	require.Equal(t, got[1], d.BlocksOf("tank/b"))
	require.Equal(t, got[:1], d.Within("tank/a").Blocks)
	require.EqualValues(t, 5+2+1+1+1+2, d.ListedBlocks())
	log = nil
	for i := range uint64(zfs.MaxBlockRanges + 1) {
		log = append(log, zfs.ErrorEntry{Objset: 10 + 2*(i%2), Object: 1, Block: 2 * i})
	}
	_, err = zfs.CollectBlocks(log, func(objset uint64) string { return names[objset] })
	require.ErrorContains(t, err, "more than 65536 ranges")
}

// FuzzBlockFilter filters anything, and expects that a complete result passes the gate of a corrective
// receive of the same blocks.
func FuzzBlockFilter(f *testing.F) {
	for _, name := range []string{"plain-incr", "raw-incr", "vol-full"} {
		b := zfs.Sampled(f, name+".source")
		text, err := written(f, b)[:1].MarshalText()
		require.NoError(f, err)
		f.Add(b[:min(len(b), 64<<10)], string(text))
	}
	f.Fuzz(func(t *testing.T, b []byte, text string) {
		var only zfs.Blocks
		if only.UnmarshalText([]byte(text)) != nil {
			return
		}
		out, err := io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(b), only))
		if err != nil {
			require.False(t, errors.Is(err, io.EOF))
			return
		}
		require.LessOrEqual(t, len(out), len(b))
		s := zfs.NewStreamReader(bytes.NewReader(out))
		for {
			if _, err = s.Next(); err != nil {
				break
			}
		}
		require.Equal(t, io.EOF, err)
	})
}
