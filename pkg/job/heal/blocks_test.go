package heal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// blocksOf lists one damaged block of src/a for each number. The blocks of package zfsmem belong to
// object 1.
func blocksOf(numbers ...uint64) []zfs.DamagedBlocks {
	d := zfs.DamagedBlocks{Dataset: "src/a"}
	for _, n := range numbers {
		d.Data = append(d.Data, zfs.BlockRange{Object: 1, First: n, Count: 1})
	}
	return []zfs.DamagedBlocks{d}
}

// blockWorld returns a world whose src/a has 33 blocks of 128 KiB and a damaged file, and its live files.
func blockWorld(t *testing.T, numbers ...uint64) (w *jobtest.World, head string) {
	t.Helper()
	w, _, head = incrementalWorld(t)
	w.Memory.Damaged.Blocks = blocksOf(numbers...)
	return w, head
}

// onlyFull makes the file of an incrementalWorld too large for a search of the snapshots, and the oldest
// snapshot damaged.
func onlyFull(t *testing.T, w *jobtest.World, head string) {
	t.Helper()
	require.NoError(t, os.Truncate(filepath.Join(head, "d", "f"), 64<<20))
	w.Memory.Damaged.Blocks[0].Snapshots = []string{"0"}
}

// TestHealChoosesBaseByErrorLog expects the incremental source of damage without a path to be the
// snapshot before the listed ones. If the log omits a damaged snapshot, the full stream follows without
// a scrub.
func TestHealChoosesBaseByErrorLog(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		block     uint64 // 33 is newer than @0, 34 newer than @1
		snapshots []string
		since     string
		streams   int
	}{
		"in the last snapshot":   {34, []string{"2"}, "1", 1},
		"in the last two":        {33, []string{"1", "2"}, "0", 1},
		"in all":                 {2, []string{"0", "1", "2"}, "", 1},
		"no snapshot is listed":  {34, nil, "1", 1},
		"a snapshot is omitted":  {33, nil, "1", 2},
		"all but one is omitted": {2, []string{"2"}, "1", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := blockWorld(t, tt.block)
			w.Memory.Damaged.Objects = []zfs.DamagedObject{{Dataset: "src/a", Object: "0x1", Shown: "src/a:<0x1>"}}
			w.Memory.Damaged.Blocks[0].Snapshots = tt.snapshots
			streams := 0
			var scrubs atomic.Int32 // operations of both hosts are concurrent
			w.Memory.Heals = func(zfs.DamagedObject, uint64) bool { streams++; return streams == tt.streams }
			w.Before = func(op string) error {
				if op == "scrub src" {
					scrubs.Add(1)
				}
				return nil
			}
			r, err := Run(t.Context(), healSrc(func(h *Request) { h.DryRun = true }), hosts.New(w), send.Quiet{})
			require.NoError(t, err)
			require.Equal(t, tt.since, r.Datasets[0].Since)
			r, err = Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
			require.NoError(t, err)
			require.Equal(t, tt.streams, streams)
			require.EqualValues(t, 1, scrubs.Load())
			require.EqualValues(t, 1, r.Datasets[0].Blocks)
			if tt.streams == 1 && tt.since != "" {
				require.Less(t, r.Datasets[0].Read, uint64(1<<20))
			}
		})
	}
}

// TestHealRetriesWithNewSnapshot interrupts corrective receives, and expects a new heal snapshot for each
// try: the kernel may accept forged data in a second try.
func TestHealRetriesWithNewSnapshot(t *testing.T) {
	t.Parallel()
	w, head := blockWorld(t, 2)
	onlyFull(t, w, head)
	received := 0
	w.Before = func(op string) error {
		if strings.HasPrefix(op, "receive src/a@") {
			if received++; received < 3 {
				return tcp.ErrConnectionLost
			}
		}
		return nil
	}
	_, err := Run(t.Context(), healSrc(func(h *Request) { h.Retries = 5 }), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, 3, received)
	taken := 0
	for _, c := range w.Changes {
		if strings.HasPrefix(c, "snapshot src/a@"+zfs.HealPrefix) {
			taken++
		}
	}
	require.Equal(t, 3, taken, w.Changes)
	require.Len(t, w.Memory.Versions("src/a"), 3)
	require.Len(t, w.Memory.Versions("dst/a"), 3)
}

// TestHealSendsDamagedBlocks expects that a heal sends only the damaged blocks, and that plan and
// report name both amounts.
func TestHealSendsDamagedBlocks(t *testing.T) {
	t.Parallel()
	w, head := blockWorld(t, 2, 7)
	onlyFull(t, w, head)
	w.Memory.Set("src/a", "recordsize", "131072")
	r, err := Run(t.Context(), healSrc(func(h *Request) { h.DryRun = true }), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	d := r.Datasets[0]
	require.EqualValues(t, 2, d.Blocks)
	require.Empty(t, d.Whole)
	require.LessOrEqual(t, d.SendBytes, uint64(2*128<<10))
	r, err = Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	d = r.Datasets[0]
	require.EqualValues(t, 2, d.Blocks)
	require.Greater(t, d.Sent, uint64(2*128<<10))
	require.Less(t, d.Sent, uint64(2*128<<10+8<<10))
	require.Greater(t, d.Read, uint64(4<<20))
	require.Equal(t, Healed, r.Objects[0].Outcome)
}

// TestHealReportsWhyWhole expects the reason for a whole stream.
func TestHealReportsWhyWhole(t *testing.T) {
	t.Parallel()
	for why, change := range map[string]func(d *zfs.Damage){
		"operation not permitted":                               func(d *zfs.Damage) { d.Blocks, d.NoBlocks = nil, "operation not permitted" },
		"the error log of the pool lists no damaged data of it": func(d *zfs.Damage) { d.Blocks[0].Data, d.Blocks[0].Metadata = nil, 1 },
	} {
		w, head := blockWorld(t, 2)
		onlyFull(t, w, head)
		change(&w.Memory.Damaged)
		r, err := Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
		require.NoError(t, err, why)
		require.Equal(t, why, r.Datasets[0].Whole)
		require.Zero(t, r.Datasets[0].Blocks)
		require.Equal(t, r.Datasets[0].Read, r.Datasets[0].Sent)
		require.Greater(t, r.Datasets[0].Sent, uint64(4<<20))
	}
}

// TestHealFallsBack expects that a heal whose damaged blocks are refused or not enough sends more, and
// says why.
func TestHealFallsBack(t *testing.T) {
	t.Parallel()
	refused := &zfs.Error{Kind: zfs.BadStream, Op: zfs.OpReceive, Subject: "src/a", Detail: "invalid stream"}
	for name, tt := range map[string]struct {
		full    bool                // the first stream is not incremental
		lie     func(n int) error   // error of the n-th corrective receive
		heals   func(sent int) bool // whether the n-th stream heals
		more    bool                // the first scrub finds another block
		want    []string            // parts of the log
		blocks  uint64              // of the last stream
		code    fault.Class         // of the error; 0 = none
		outcome string
	}{
		"they suffice":               {full: true, blocks: 1},
		"the kernel refuses them":    {full: true, lie: func(n int) error { return map[bool]error{true: refused}[n == 1] }, want: []string{"sending the whole stream: zfs receive refused the damaged blocks: invalid stream"}},
		"the kernel refuses all":     {full: true, lie: func(int) error { return refused }, want: []string{"sending the whole stream"}, code: fault.Failed, outcome: NotHealed},
		"the gate refuses them":      {full: true, lie: func(int) error { return &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive} }, blocks: 1, code: fault.Failed, outcome: NotHealed},
		"the scrub finds them":       {full: true, heals: func(n int) bool { return n > 1 }, want: []string{"sending the whole stream: the scrub still finds the damaged blocks"}},
		"the scrub finds more":       {full: true, heals: func(n int) bool { return n > 1 }, more: true, want: []string{"the scrub found more damaged blocks"}, blocks: 2},
		"incremental is not enough":  {heals: func(n int) bool { return n > 1 }, want: []string{"the changes since @1 are not enough"}, blocks: 1},
		"only the whole stream does": {heals: func(n int) bool { return n > 2 }, want: []string{"the changes since @1 are not enough", "the scrub still finds the damaged blocks"}},
		"nothing does":               {heals: func(int) bool { return false }, want: []string{"the scrub still finds the damaged blocks"}, code: fault.Failed, outcome: NotHealed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, head := blockWorld(t, 2)
			if tt.full {
				onlyFull(t, w, head)
			}
			sent, received, scrubs := 0, 0, 0
			w.Memory.Heals = func(zfs.DamagedObject, uint64) bool { sent++; return tt.heals == nil || tt.heals(sent) }
			w.Before = func(op string) error {
				switch {
				case strings.HasPrefix(op, "receive src/a@") && tt.lie != nil:
					received++
					return tt.lie(received)
				case op == "scrub src":
					if scrubs++; tt.more {
						w.Memory.Damaged.Blocks = blocksOf(2, 9)
						w.Memory.Damaged.Blocks[0].Snapshots = []string{"0"}
					}
				}
				return nil
			}
			rep := &logRecorder{}
			r, err := Run(t.Context(), healSrc(nil), hosts.New(w), rep)
			if tt.code == 0 {
				require.NoError(t, err)
				require.Equal(t, Healed, r.Objects[0].Outcome)
			} else {
				require.Equal(t, tt.code, fault.ClassOf(err), err)
				require.Equal(t, tt.outcome, r.Objects[0].Outcome)
			}
			require.Equal(t, tt.blocks, r.Datasets[0].Blocks)
			for _, part := range tt.want {
				require.Contains(t, strings.Join(rep.lines, "\n"), part)
			}
			require.LessOrEqual(t, scrubs, maxRounds)
			require.Len(t, w.Memory.Versions("src/a"), 3)
		})
	}
}

// logRecorder records log lines.
type logRecorder struct {
	send.Quiet
	lines []string
}

func (r *logRecorder) Log(line string) { r.lines = append(r.lines, line) }

// TestHealNewDamage expects that a scrub's new damage, also in another dataset, is healed in the next
// round, and that rounds are limited.
func TestHealNewDamage(t *testing.T) {
	t.Parallel()
	for _, endless := range []bool{false, true} {
		w := damagedWorld(t, file("src/a", "", "/f"))
		w.Memory.Damaged.Blocks = blocksOf(0)
		scrubs := 0
		w.Before = func(op string) error {
			if op == "scrub src" {
				if scrubs++; scrubs == 1 || endless {
					w.Memory.Damaged.Objects = append(w.Memory.Damaged.Objects, file("src/b", "", fmt.Sprint("/g", scrubs)))
					w.Memory.Damaged.Blocks = append(blocksOf(0), zfs.DamagedBlocks{Dataset: "src/b", Data: zfs.Blocks{{Object: 1, First: uint64(scrubs), Count: 1}}})
				}
			}
			return nil
		}
		r, err := Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
		if endless {
			require.ErrorContains(t, err, "not healed")
			require.Equal(t, maxRounds, scrubs)
		} else {
			require.NoError(t, err)
			require.Equal(t, 2, scrubs)
			require.Len(t, r.Objects, 2)
			require.Equal(t, Healed, r.Objects[1].Outcome)
		}
		assertSnapshots(t, w)
	}
}

// TestHealMetadataRemains expects that the dataset of healed blocks is not reported as healed if its
// metadata is damaged, and that no whole stream follows.
func TestHealMetadataRemains(t *testing.T) {
	t.Parallel()
	w, head := blockWorld(t, 2)
	onlyFull(t, w, head)
	w.Memory.Damaged.Blocks[0].Metadata, w.Memory.Damaged.Blocks[0].LiveMetadata = 1, true
	sent := 0
	w.Memory.Heals = func(zfs.DamagedObject, uint64) bool { sent++; return false }
	r, err := Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "1 error is not healed")
	require.Contains(t, r.Datasets[0].Why, "metadata is also damaged")
	require.Contains(t, r.Datasets[0].Remedy, "zxfer restore dst/a@2 src/a-restored")
	require.Equal(t, 1, sent)
	require.True(t, r.Datasets[0].Partial)
}

// TestHostileBlocks sends false lists of damaged blocks, and expects refusals.
func TestHostileBlocks(t *testing.T) {
	t.Parallel()
	many := func(n int) string { return strings.TrimSuffix(strings.Repeat("1:0+1,", n), ",") }
	for name, tt := range map[string]struct {
		blocks any
		want   string
	}{
		"another dataset": {map[string]any{"dataset": "other", "data": "1:0+1"}, "got damaged blocks of"},
		"invalid dataset": {map[string]any{"dataset": "src/a/-r;x", "data": "1:0+1"}, "has the character"},
		"out of order":    {map[string]any{"dataset": "src/a", "data": "1:5+1,1:5+1"}, "out of order"},
		"no object":       {map[string]any{"dataset": "src/a", "data": "0:5+1"}, "object 0"},
		"too many":        {map[string]any{"dataset": "src/a", "data": many(zfs.MaxBlockRanges + 1)}, "more than"},
		"no text":         {map[string]any{"dataset": "src/a", "data": []any{1}}, "json"},
		"a list of lists": {map[string]any{"dataset": "src/a", "data": "x"}, "malformed range"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := damagedWorld(t, file("src/a", "", "/f"))
			there := &jobtest.LyingHost{World: w, Alter: func(_ int, body any) any {
				if d, ok := body.(map[string]any); ok && d["things"] != nil {
					d["blocks"] = []any{tt.blocks}
				}
				return body
			}}
			req := healSrc(func(h *Request) {
				h.At = endpoint.Endpoint{Host: "there", Name: "src/a"}
				h.Copies[0].Source.Host = "there"
			})
			_, err := Run(t.Context(), req, hosts.New(there), send.Quiet{})
			require.ErrorContains(t, err, tt.want)
			assertSnapshots(t, w)
		})
	}
}

// TestRefusalOfBlocks expects that only refusals that the whole stream may avoid lead to it.
func TestRefusalOfBlocks(t *testing.T) {
	t.Parallel()
	d := &healing{only: zfs.Blocks{{Object: 1, First: 0, Count: 1}}}
	for _, kind := range []zfs.Kind{zfs.Unplanned, zfs.PoolFault, zfs.NoSpace, zfs.Busy, zfs.Killed, zfs.Permission} {
		require.Empty(t, d.refusal(&zfs.Error{Kind: kind, Op: zfs.OpReceive}), kind)
	}
	require.Empty(t, d.refusal(&zfs.Error{Kind: zfs.BadStream, Op: zfs.OpSend}))
	require.Empty(t, d.refusal(errors.New("other")))
	require.NotEmpty(t, d.refusal(&zfs.Error{Kind: zfs.BadStream, Op: zfs.OpReceive}))
	d.only = nil
	require.Empty(t, d.refusal(&zfs.Error{Kind: zfs.BadStream, Op: zfs.OpReceive}))
}
