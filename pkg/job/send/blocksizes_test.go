package send

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// storedWorld is a world whose files have made-up block sizes.
type storedWorld struct {
	*jobtest.World
	answer  func(q files.BlockQuery) (files.BlockSizes, error)
	queries atomic.Int32
}

func (w *storedWorld) Open(context.Context, hosts.Address) (hosts.Host, error) { return w, nil }

func (w *storedWorld) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, w.World, r, hoststest.With(hosts.OpBlockSizes, func(_ context.Context, q files.BlockQuery) (files.BlockSizes, error) {
		w.queries.Add(1)
		return w.answer(q)
	}))
}

// stored answers queries as a host whose only file has a block size on each side. names are the snapshots
// with that file's inode.
func stored(source, target uint32, names string) func(files.BlockQuery) (files.BlockSizes, error) {
	return func(q files.BlockQuery) (files.BlockSizes, error) {
		block, s := source, files.BlockSizes{Files: 1}
		if strings.HasPrefix(q.Snapshot, "src/") { // the copy is sent back
			block = target
		}
		switch {
		case len(q.Inodes) > 0 && strings.Contains(names, q.Snapshot):
			s.Paths = []files.InodePath{{Inode: 7, Path: "d/f"}}
		case len(q.Inodes) > 0:
		case len(q.Buckets) > 0:
			s.List = binary.LittleEndian.AppendUint64(nil, 7)
			s.List = binary.LittleEndian.AppendUint64(s.List, 48<<10)
			s.List = append(binary.LittleEndian.AppendUint32(s.List, block), 0)
		default:
			s.Sums = make([]byte, 8*files.BlockBuckets)
			binary.LittleEndian.PutUint32(s.Sums[80:], block)
		}
		return s, nil
	}
}

// TestSendBackComparesBlockSizes sends a copy back to its source. It is refused, and changes nothing, unless
// both sides answer that no file can lose data.
func TestSendBackComparesBlockSizes(t *testing.T) {
	t.Parallel()
	refuse := func(change func(*files.BlockSizes)) func(files.BlockQuery) (files.BlockSizes, error) {
		return func(q files.BlockQuery) (files.BlockSizes, error) {
			s, err := stored(64<<10, 128<<10, "")(q)
			change(&s)
			return s, err
		}
	}
	for name, c := range map[string]struct {
		answer func(files.BlockQuery) (files.BlockSizes, error)
		want   string // part of the refusal
	}{
		"equal":                         {stored(1<<17, 1<<17, ""), ""},
		"smaller on the receiving side": {stored(1<<17, 1<<16, ""), ""},
		"larger on the receiving side":  {stored(1<<16, 1<<17, "dst/a@y"), "1 file, because the block sizes differ: d/f (64 KiB in dst/a, 128 KiB in src/a)"},
		"replaced since":                {stored(1<<16, 1<<17, "dst/a@x"), ""},
		"unreadable":                    {refuse(func(s *files.BlockSizes) { s.Failed = 1 }), "1 files of"},
		"too many":                      {refuse(func(s *files.BlockSizes) { s.Cut = len(s.List) > 0 }), "too many files"},
		"unreachable file":              {refuse(func(s *files.BlockSizes) { s.List = nil }), "different files"},
		"no root": {func(files.BlockQuery) (files.BlockSizes, error) {
			return files.BlockSizes{}, errors.New("not permitted")
		}, "not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &storedWorld{World: jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil}), answer: c.answer}
			at := hosts.New(w)
			_, err := Run(t.Context(), sendRequest(nil), at, Quiet{})
			require.NoError(t, err)
			require.Zero(t, w.queries.Load(), "a full stream needs no comparison")
			require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"dst/a@y"}))
			back := sendRequest(func(s *Request) {
				s.Source, s.Target = endpoint.Endpoint{Name: "dst/a"}, endpoint.Endpoint{Name: "src/a"}
				s.Plan.Source, s.Plan.Target = "dst/a", "src/a"
			})
			before := w.Memory.Get("dst/a", zfs.DirectionProperty)
			r, err := Run(t.Context(), back, at, Quiet{})
			if c.want != "" {
				require.Equal(t, fault.Refused, fault.ClassOf(err))
				require.Equal(t, outcome.Refused, r.Outcome)
				require.ErrorContains(t, err, c.want)
				require.Equal(t, before, w.Memory.Get("dst/a", zfs.DirectionProperty))
				require.Empty(t, w.Memory.Get("src/a", zfs.DirectionProperty))
				return
			}
			require.NoError(t, err)
			require.NotEmpty(t, w.Memory.Get("src/a", zfs.DirectionProperty))
			require.Empty(t, w.Memory.Get("dst/a", zfs.DirectionProperty))
			// The former direction is new again, the present one is not.
			made := w.queries.Load()
			require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"dst/a@z"}))
			_, err = Run(t.Context(), back, at, Quiet{})
			require.NoError(t, err)
			require.Equal(t, made, w.queries.Load())
			require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"src/a@v"}))
			_, _ = Run(t.Context(), sendRequest(func(s *Request) { s.Plan.Recursive = false }), at, Quiet{})
			require.Greater(t, w.queries.Load(), made)
		})
	}
}

// TestBlockSizesAreComparedInFewReads expects that a comparison which would read millions of names hundreds of times is
// refused immediately.
func TestBlockSizesAreComparedInFewReads(t *testing.T) {
	t.Parallel()
	const all = 12_000_000 // 4,096 buckets differ, and an answer can list those of 44
	w := &storedWorld{World: jobtest.NewWorld(t, map[string][]string{"src": nil, "dst": nil}), answer: func(q files.BlockQuery) (files.BlockSizes, error) {
		s := files.BlockSizes{Files: all, Sums: make([]byte, 8*files.BlockBuckets)}
		for i := range files.BlockBuckets {
			copy(s.Sums[8*i:], q.Snapshot)
		}
		return s, nil
	}}
	s := sendRequest(nil)
	c := hosts.New(w).Get("", &s.Settings)
	p := &plan.BlockPair{Source: "dst/a@x", Target: "src/a@x", Required: true}
	risks, err := CompareBlockSizes(t.Context(), c, c, []*plan.BlockPair{p}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, risks[p.Key()].Refused, "too many files with different block sizes")
	require.EqualValues(t, 2, w.queries.Load())
	require.Equal(t, files.BlockBuckets, min(files.BlockBuckets, bucketsPerWalk(100_000)*maxBlockWalks))
}

// TestDirectionSurvivesFailure fails the first stream of a new direction after the record of the source was
// removed. The next try compares again.
func TestDirectionSurvivesFailure(t *testing.T) {
	t.Parallel()
	w := &storedWorld{World: jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil}), answer: stored(1<<17, 1<<17, "")}
	at := hosts.New(w)
	_, err := Run(t.Context(), sendRequest(nil), at, Quiet{})
	require.NoError(t, err)
	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"dst/a@y"}))
	back := sendRequest(func(s *Request) {
		s.Source, s.Target = endpoint.Endpoint{Name: "dst/a"}, endpoint.Endpoint{Name: "src/a"}
		s.Plan.Source, s.Plan.Target = "dst/a", "src/a"
	})
	w.Before = jobtest.FailOn("receive src/a", errors.New("killed"))
	_, err = Run(t.Context(), back, at, Quiet{})
	require.ErrorContains(t, err, "killed")
	require.Empty(t, w.Memory.Get("dst/a", zfs.DirectionProperty))
	w.Before, w.answer = nil, stored(1<<16, 1<<17, "dst/a@y")
	_, err = Run(t.Context(), back, at, Quiet{})
	require.ErrorContains(t, err, "because the block sizes differ")
}

// TestClonesOfOneOriginAreComparedApart expects a result for each of two streams with the same target: an exposed
// file that the one no longer has may still be in the other.
func TestClonesOfOneOriginAreComparedApart(t *testing.T) {
	t.Parallel()
	w := &storedWorld{World: jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil}), answer: stored(1<<16, 1<<17, "dst/clone@y")}
	s := sendRequest(nil)
	c := hosts.New(w).Get("", &s.Settings)
	gone := &plan.BlockPair{Source: "dst/a@x", Target: "src/a@x", Next: "dst/a@y", Required: true}
	left := &plan.BlockPair{Source: "dst/a@x", Target: "src/a@x", Next: "dst/clone@y", Required: true}
	risks, err := CompareBlockSizes(t.Context(), c, c, []*plan.BlockPair{gone, left}, nil)
	require.NoError(t, err)
	require.Zero(t, risks[gone.Key()].Count)
	require.Equal(t, uint64(1), risks[left.Key()].Count)
}
