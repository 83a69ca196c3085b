package zfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// records returns a package of streams, what it brings, and its records one by one.
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
	return expected(t, b), all
}

// The records of a package follow each other in one order only.
func TestGateRefusesRecordsOutOfPlace(t *testing.T) {
	t.Parallel()
	le := binary.LittleEndian
	typeOf := func(b []byte) RecordType { return RecordType(le.Uint32(b)) }
	r, all := records(t)
	var streams, ends []int // records that begin and end the streams in the package
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
			fmt.Sprintf("a record of type %d where none may be", RecordFree)},
		"a stream without its end": {func(all [][]byte) [][]byte { return slices.Delete(all, ends[0], ends[0]+1) },
			"a record of type 0 where none may be"},
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
	require.ErrorContains(t, err, "a package where one stream was planned", "a resumed stream is single")
}

// TestGateBoundsHeads covers the payload of BEGIN records. RecordRules and Record.parse bound
// the others.
func TestGateBoundsHeads(t *testing.T) {
	t.Parallel()
	b := sampled(t, "plain-full.source")
	for size, ok := range map[uint32]bool{maxBeginPayload: true, maxBeginPayload + 1: false, math.MaxUint32: false} {
		g, err := NewGate(expected(t, b))
		require.NoError(t, err)
		head := slices.Clone(b[:RecordSize])
		binary.LittleEndian.PutUint32(head[4:], size)
		require.Equal(t, ok, g.Judge(head) == nil, "%d", size)
		if ok {
			require.EqualValues(t, size, g.Passes())
		} else {
			require.Zero(t, g.Passes(), "nothing bypasses a gate that refused")
		}
	}
}

// TestGatePassesAClone sends a stream with the clone flag, with a plan that names the origin.
func TestGatePassesAClone(t *testing.T) {
	t.Parallel()
	b := sampled(t, "plain-incr.source")
	b[36] |= flagClone
	r := expected(t, b)
	require.NotEmpty(t, r.Origin)
	_, err := pass(t, r, b, 4096)
	require.NoError(t, err)
	r.Origin = ""
	_, err = pass(t, r, b, 4096)
	require.ErrorContains(t, err, "it is a clone's")
}

// If the gate keeps the key, it refuses a stream whose key it cannot read.
func TestGateRefusesAnUnreadableKey(t *testing.T) {
	t.Parallel()
	b := sampled(t, "raw-full.source")
	size := int(binary.LittleEndian.Uint32(b[4:]))
	require.Positive(t, size)
	clear(b[RecordSize : RecordSize+size])
	g, err := NewGate(expected(t, sampled(t, "raw-full.source")))
	require.NoError(t, err)
	g.KeepKey("any")
	require.Error(t, g.Judge(b[:RecordSize+size]))
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
		"none":              {nil, false},
	} {
		require.Equal(t, tt.want, IsOtherKey(tt.err), name)
	}
}
