package zfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// plannedReceive returns a receive plan that matches the BEGIN records of a stream.
func plannedReceive(t testing.TB, b []byte) (r ReceiveSpec) {
	t.Helper()
	r.Target = "vault/a"
	a := &r.Arrival
	for s := NewStreamReader(bytes.NewReader(b)); ; {
		rec, err := s.Next()
		if err == io.EOF {
			return r
		}
		require.NoError(t, err)
		if rec.Type != RecordBegin || rec.HeaderType() == compound {
			continue
		}
		if len(a.Snapshots) == 0 {
			a.Base, a.Raw, a.Volume = rec.FromGUID(), rec.Features()&featureRaw != 0, rec.u32(32) == osVolume
			a.Resumed = rec.Features()&featureResuming != 0
			if rec.u32(36)&flagClone != 0 {
				r.Origin = "vault/o@x"
			}
		}
		_, name, _ := strings.Cut(rec.ToName(), "@")
		a.Snapshots = append(a.Snapshots, SnapshotID{name, rec.ToGUID()})
	}
}

// pass sends a stream through a gate in pieces of the given size. If the size is even, bytes that
// Gate.Passes allows bypass the gate. It returns the number of bytes that passed.
func pass(t testing.TB, r ReceiveSpec, b []byte, size int) (int, error) {
	t.Helper()
	g, err := NewGate(r)
	require.NoError(t, err)
	done := 0
	for done < len(b) {
		n := min(size, len(b)-done)
		if free := g.Bypassable(); free > 0 && size%2 == 0 { // only for even sizes
			n = int(min(int64(len(b)-done), free))
			g.Bypassed(int64(n))
		} else if err := g.Check(b[done : done+n]); err != nil {
			require.Error(t, g.Check([]byte{0}), "a refusal is permanent")
			return done, err
		}
		done += n
	}
	return done, nil
}

func TestGatePasses(t *testing.T) {
	t.Parallel()
	for _, name := range samples {
		b := sampled(t, name+".source")
		r := plannedReceive(t, b)
		for _, size := range []int{1, 2, 311, 312, 4096, 1 << 20} {
			n, err := pass(t, r, b, size)
			require.NoError(t, err, "%s by %d", name, size)
			require.Equal(t, len(b), n)
		}
		// A planned snapshot may be missing from the stream, because it was destroyed after
		// planning.
		r.Arrival.Snapshots = slices.Insert(r.Arrival.Snapshots, 0, SnapshotID{"gone", 7})
		_, err := pass(t, r, b, 4096)
		require.NoError(t, err, name)
		if !strings.HasSuffix(name, "-range") {
			g, err := NewGate(r)
			require.NoError(t, err)
			require.NoError(t, g.Check(b[:RecordSize]))
			require.EqualValues(t, binary.LittleEndian.Uint32(b[4:]), g.Bypassable(), "the payload of the BEGIN record")
		}
	}
}

// begins returns the offset of each BEGIN record in a stream.
func begins(t testing.TB, b []byte) (at []int) {
	t.Helper()
	for s := NewStreamReader(bytes.NewReader(b)); ; {
		start := int(s.Offset())
		rec, err := s.Next()
		if err == io.EOF {
			return at
		}
		require.NoError(t, err)
		if rec.Type == RecordBegin {
			at = append(at, start)
		}
	}
}

// TestGateRefuses sends streams that contradict the plan and expects the gate to refuse them.
// TestGateRefusesAttacks covers forged streams.
func TestGateRefuses(t *testing.T) {
	t.Parallel()
	le := binary.LittleEndian
	word := func(at int, v uint64) func([]byte) { return func(b []byte) { le.PutUint64(b[at:], v) } }
	name := func(s string) func([]byte) {
		return func(b []byte) {
			clear(b[beginName:RecordSize])
			copy(b[beginName:RecordSize], s)
		}
	}
	const full, incr, ranged = "plain-full", "plain-incr", "plain-range"
	tests := []struct {
		why    string
		sample string
		begin  int // which BEGIN record
		change func([]byte)
		plan   func(*ReceiveSpec)
		want   string
	}{
		{"other incremental source", incr, 0, word(48, 99), nil, "incremental source"},
		{"incremental stream instead of a full one", incr, 0, nil, func(r *ReceiveSpec) { r.Arrival.Base = 0 }, "incremental source"},
		{"full stream instead of an incremental one", full, 0, nil, func(r *ReceiveSpec) { r.Arrival.Base = 5 }, "incremental source"},
		{"not raw", full, 0, nil, func(r *ReceiveSpec) { r.Arrival.Raw = true }, "not raw"},
		{"no rest", full, 0, nil, func(r *ReceiveSpec) { r.Arrival.Resumed = true }, "continue"},
		{"filesystem", "vol-full", 0, nil, func(r *ReceiveSpec) { r.Arrival.Volume = false }, "type 3"},
		{"no stream", full, 0, func(b []byte) { b[8]++ }, nil, "BEGIN"},
		{"unknown header type", full, 0, func(b []byte) { b[16] |= 3 }, nil, "type 3"},
		{"package instead of a single stream", ranged, 0, nil, func(r *ReceiveSpec) { r.Arrival.Base = 0 }, "package"},
		{"package of a clone", ranged, 0, nil, func(r *ReceiveSpec) { r.Origin = "vault/o@x" }, "package"},
		{"sibling in a package", ranged, 2, func(b []byte) {
			d, s, _ := strings.Cut((&Record{Header: b, order: le}).ToName(), "@")
			name(d + "0/evil@" + s)(b)
		}, nil, "with a stream of"},
		{"another chain in a package", ranged, 2, word(48, 99), nil, "incremental source"},
		{"snapshot in a package", ranged, 2, nil, func(r *ReceiveSpec) { r.Arrival.Snapshots = r.Arrival.Snapshots[:1] }, "not planned"},
		{"order in a package", ranged, 2, nil, func(r *ReceiveSpec) { slices.Reverse(r.Arrival.Snapshots) }, "not planned"},
	}
	for _, tt := range tests {
		t.Run(tt.why, func(t *testing.T) {
			t.Parallel()
			b := sampled(t, tt.sample+".source")
			r := plannedReceive(t, b)
			at := begins(t, b)[tt.begin]
			if tt.change != nil {
				tt.change(b[at : at+RecordSize])
			}
			if tt.plan != nil {
				tt.plan(&r)
			}
			for _, size := range []int{1, 4096, 1 << 20} {
				passed, err := pass(t, r, b, size)
				require.ErrorContains(t, err, tt.want)
				last := begins(t, sampled(t, tt.sample+".source"))[tt.begin:]
				if tt.want == "with a stream of" && tt.begin == 0 {
					last = last[1:]
				}
				require.Less(t, passed, last[0]+RecordSize, "no byte of a refused stream passes")
			}
		})
	}
	// The gate refuses data after the end of a package, and a package without its first records.
	b := sampled(t, ranged+".source")
	r := plannedReceive(t, b)
	_, err := pass(t, r, append(slices.Clone(b), 0), 4096)
	require.ErrorContains(t, err, "after its end")
	_, err = pass(t, r, b[begins(t, b)[1]:begins(t, b)[2]], 4096)
	require.NoError(t, err, "its first stream is valid")
	_, err = pass(t, r, b[begins(t, b)[1]:], 4096)
	require.ErrorContains(t, err, "after its end", "a single stream ends with its END record")
	_, err = pass(t, r, append(slices.Clone(b[:RecordSize]), b[begins(t, b)[1]:]...), 4096)
	require.ErrorContains(t, err, "header ends with")
	// The gate accepts a single stream in the opposite byte order, but no package.
	for sample, want := range map[string]string{full: "", ranged: "byte order"} {
		b := sampled(t, sample+".source")
		r := plannedReceive(t, b)
		swapHead(b)
		_, err := pass(t, r, b[:RecordSize], RecordSize)
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

// swapHead converts the first record to the opposite byte order.
func swapHead(b []byte) {
	slices.Reverse(b[0:4])
	slices.Reverse(b[4:8])
	for _, at := range []int{8, 16, 24, 40, 48} {
		slices.Reverse(b[at : at+8])
	}
	slices.Reverse(b[32:36])
	slices.Reverse(b[36:40])
}

func TestGateNeedsAPlan(t *testing.T) {
	t.Parallel()
	good := SnapshotID{"a", 1}
	for _, r := range []ReceiveSpec{
		{Target: "vault/a"},
		{Target: "vault/a", Arrival: Arrival{Snapshots: []SnapshotID{{"a", 0}}}},
		{Target: "vault/a", Arrival: Arrival{Snapshots: []SnapshotID{{"a@b", 1}}}},
		{Target: "vault/a", Origin: "vault/o@x", Arrival: Arrival{Snapshots: []SnapshotID{good}}},
	} {
		_, err := NewGate(r)
		require.Error(t, err)
	}
	_, err := NewGate(ReceiveSpec{Target: "vault/a", Arrival: Arrival{Snapshots: []SnapshotID{good}}})
	require.NoError(t, err)
}

// FuzzGate parses the streams that pass a gate with a second reader, and expects only planned
// snapshots of one dataset.
func FuzzGate(f *testing.F) {
	for _, name := range samples {
		b := sampled(f, name+".source")
		f.Add(b[:min(len(b), 20_000)], len(name)%2 == 0)
	}
	const planned = "plain-range"
	plan := plannedReceive(f, sampled(f, planned+".source"))
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		g, err := NewGate(plan)
		require.NoError(t, err)
		if whole {
			err = g.Check(b)
		} else {
			for i := range b {
				if err = g.Check(b[i : i+1]); err != nil {
					b = b[:i]
					break
				}
			}
		}
		if err != nil {
			return
		}
		dataset := ""
		for s := NewStreamReader(bytes.NewReader(b)); ; {
			rec, err := s.Next()
			if err != nil {
				return // the end, or a truncated record
			}
			if rec.Type != RecordBegin {
				continue
			}
			d, _, err := ParseSnapshot(rec.ToName())
			require.NoError(t, err)
			require.True(t, dataset == "" || d == dataset, "%q and %q", d, dataset)
			dataset = d
			if rec.HeaderType() == compound {
				require.Zero(t, rec.u32(4))
				continue
			}
			require.True(t, slices.ContainsFunc(plan.Arrival.Snapshots, func(s SnapshotID) bool { return s.GUID == rec.ToGUID() }), fmt.Sprint(rec.ToGUID()))
		}
	})
}

// records returns a package of streams as separate records, and the receive plan for it.
func records(t *testing.T) (r ReceiveSpec, all [][]byte) {
	t.Helper()
	b := sampled(t, "plain-range.source")
	at := 0
	for s := NewStreamReader(bytes.NewReader(b)); at < len(b); {
		_, err := s.Next()
		require.NoError(t, err)
		_, err = s.Payload()
		require.NoError(t, err)
		all = append(all, b[at:s.Offset()])
		at = int(s.Offset())
	}
	return plannedReceive(t, b), all
}

// TestGateRefusesRecordsOutOfPlace moves, removes and changes records of a package, and expects the
// gate to refuse it.
func TestGateRefusesRecordsOutOfPlace(t *testing.T) {
	t.Parallel()
	le := binary.LittleEndian
	typeOf := func(b []byte) RecordType { return RecordType(le.Uint32(b)) }
	r, all := records(t)
	var streams, ends []int // BEGIN and END records of the streams in the package
	for i, rec := range all[2:] {
		switch typeOf(rec) {
		case RecordBegin:
			streams = append(streams, i+2)
		case RecordEnd:
			ends = append(ends, i+2)
		}
	}
	require.GreaterOrEqual(t, len(streams), 2)
	free := make([]byte, RecordSize)
	le.PutUint32(free, uint32(RecordFree))
	unknown := make([]byte, RecordSize)
	le.PutUint32(unknown, 99)
	for name, tt := range map[string]struct {
		change func(all [][]byte) [][]byte
		want   string
	}{
		"unchanged": {func(all [][]byte) [][]byte { return all }, ""},
		"a record between streams": {func(all [][]byte) [][]byte { return slices.Insert(all, streams[1], free) },
			fmt.Sprintf("an unexpected record of type %d", RecordFree)},
		"a stream without its end": {func(all [][]byte) [][]byte { return slices.Delete(all, ends[0], ends[0]+1) },
			"an unexpected record of type 0"},
		"an unknown record": {func(all [][]byte) [][]byte { return slices.Insert(all, ends[0], unknown) }, "type 99"},
		"another byte order": {func(all [][]byte) [][]byte {
			all[streams[1]] = slices.Clone(all[streams[1]])
			swapHead(all[streams[1]])
			return all
		}, "several hosts"},
		"a stream without its magic number": {func(all [][]byte) [][]byte {
			all[streams[1]] = slices.Clone(all[streams[1]])
			all[streams[1]][8]++
			return all
		}, "several hosts"},
		"a head without a snapshot": {func(all [][]byte) [][]byte {
			all[0] = slices.Clone(all[0])
			clear(all[0][beginName:RecordSize])
			copy(all[0][beginName:], "tank")
			return all
		}, "snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pass(t, r, bytes.Join(tt.change(slices.Clone(all)), nil), 4096)
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
	resumed := r
	resumed.Arrival.Resumed = true
	_, err := pass(t, resumed, bytes.Join(all, nil), 4096)
	require.ErrorContains(t, err, "a package instead of a single stream", "a resumed stream is single")
}

// TestGateBoundsBeginPayload expects a size limit for the payload of BEGIN records. RecordRules and
// Record.parse limit the other records.
func TestGateBoundsBeginPayload(t *testing.T) {
	t.Parallel()
	b := sampled(t, "plain-full.source")
	for size, ok := range map[uint32]bool{maxBeginPayload: true, maxBeginPayload + 1: false, math.MaxUint32: false} {
		g, err := NewGate(plannedReceive(t, b))
		require.NoError(t, err)
		head := slices.Clone(b[:RecordSize])
		binary.LittleEndian.PutUint32(head[4:], size)
		require.Equal(t, ok, g.Check(head) == nil, "%d", size)
		if ok {
			require.EqualValues(t, size, g.Bypassable())
		} else {
			require.Zero(t, g.Bypassable(), "no byte bypasses a gate after a refusal")
		}
	}
}

// TestGatePassesAClone sends a stream with the clone flag, and expects the gate to pass it only if
// the plan names the origin.
func TestGatePassesAClone(t *testing.T) {
	t.Parallel()
	b := sampled(t, "plain-incr.source")
	b[36] |= flagClone
	r := plannedReceive(t, b)
	require.NotEmpty(t, r.Origin)
	_, err := pass(t, r, b, 4096)
	require.NoError(t, err)
	r.Origin = ""
	_, err = pass(t, r, b, 4096)
	require.ErrorContains(t, err, "it is a clone")
}

// TestGateRefusesAnUnreadableKey clears the key in a raw stream, and expects a gate that keeps the
// key to refuse the stream.
func TestGateRefusesAnUnreadableKey(t *testing.T) {
	t.Parallel()
	b := sampled(t, "raw-full.source")
	size := int(binary.LittleEndian.Uint32(b[4:]))
	require.Positive(t, size)
	clear(b[RecordSize : RecordSize+size])
	g, err := NewGate(plannedReceive(t, sampled(t, "raw-full.source")))
	require.NoError(t, err)
	g.KeepKey("any")
	require.Error(t, g.Check(b[:RecordSize+size]))
}

func TestIsOtherKey(t *testing.T) {
	t.Parallel()
	detail := "it was refused: " + ErrOtherKey.Error()
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"refused by a gate": {fmt.Errorf("receive: %w", &Error{Kind: Unplanned, Detail: detail}), true},
		"another refusal":   {&Error{Kind: Unplanned, Detail: "it is raw, which was not planned"}, false},
		"another kind":      {&Error{Kind: NotFound, Detail: detail}, false},
		"not of ZFS":        {errors.New(detail), false},
		"no error":          {nil, false},
	} {
		require.Equal(t, tt.want, IsOtherKey(tt.err), name)
	}
}
