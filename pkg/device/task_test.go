package device

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	const mib, tib = 1 << 20, 1 << 40
	for name, c := range map[string]struct {
		task   Task
		block  int
		later  bool
		sparse bool
	}{
		"a disk":                   {Task{Source: Facts{Kind: KindDisk, Size: tib}}, mib, false, false},
		"more blocks than wanted":  {Task{Source: Facts{Kind: KindDisk, Size: 3 * tib}}, 4 * mib, false, false},
		"no block is larger":       {Task{Source: Facts{Kind: KindDisk, Size: 60 * tib}}, tcp.MaxRaw, false, false},
		"a rotational source":      {Task{Source: Facts{Rotational: true}}, 4 * mib, false, false},
		"a rotational target":      {Task{Target: Facts{Rotational: true}}, 4 * mib, true, false},
		"the requested limit":      {Task{Source: Facts{Rotational: true}, Request: Request{Options: Options{Delta: true}, Sparse: true}}, 4 * mib, false, true},
		"a file with holes":        {Task{Source: Facts{Kind: KindFile, Size: 100 * mib, Allocated: 80 * mib}}, mib, false, true},
		"a file with few holes":    {Task{Source: Facts{Kind: KindFile, Size: 100 * mib, Allocated: 95 * mib}}, mib, false, false},
		"a device without holes":   {Task{Source: Facts{Kind: KindDisk, Size: 100 * mib}}, mib, false, false},
		"a given block size":       {func() (t Task) { t.Options.Block = 64 << 10; return t }(), 64 << 10, false, false},
		"a stream of unknown size": {Task{Source: Facts{Kind: KindStream, Path: Standard}}, mib, false, false},
	} {
		require.NoError(t, c.task.SetDefaults(), name)
		require.Equal(t, []any{c.block, c.later, c.sparse, c.sparse},
			[]any{c.task.Options.Block, c.task.Options.VerifyLater, c.task.Sparse, c.task.Allow.Sparse}, name)
	}
	small := Task{Source: Facts{Kind: KindDisk, Size: 60 * tib}}
	small.Options.Block = MinBlock
	require.ErrorContains(t, small.SetDefaults(), "more than")
}

// TestSnapshotIgnoresVolumeFindings expects that with a snapshot, the source must be a logical
// volume, and its other findings do not count.
func TestSnapshotIgnoresVolumeFindings(t *testing.T) {
	t.Parallel()
	volume := Facts{Path: "/dev/vg/lv", Kind: KindLVM, Name: "dm-0", Size: 1, Mounts: []Mount{{Device: "dm-0", Point: "/srv", Type: "ext4"}}}
	disk := volume
	disk.Kind = KindDisk
	require.Equal(t, []string{"source-mounted"}, ids(Task{Source: volume}.CheckSource(), finding.Warn))
	require.Empty(t, Task{Source: volume, Request: Request{LVMSnapshot: "5G"}}.CheckSource())
	require.Equal(t, []string{"source-no-lv"}, ids(Task{Source: disk, Request: Request{LVMSnapshot: "5G"}}.CheckSource(), finding.Fail))
}

func TestDiffer(t *testing.T) {
	t.Parallel()
	parts := func(s string) (d Digest) {
		d.PartBytes = 10
		for i := range s {
			d.Parts = append(d.Parts, []byte{s[i]})
		}
		return d
	}
	require.Empty(t, parts("abc").Differences(parts("abc")))
	require.Equal(t, []Range{{10, 20}, {40, 10}}, parts("axyde").Differences(parts("abcdf")))
	require.Equal(t, []Range{{20, 20}}, parts("abcd").Differences(parts("ab")), "known only for one of them")
	require.Equal(t, []Range{{20, 10}}, parts("ab").Differences(parts("abc")))
}

// TestJSONFormatIsStable expects an unchanged JSON format, because other builds, and programs
// that drive an agent, read it.
func TestJSONFormatIsStable(t *testing.T) {
	t.Parallel()
	task := Task{Source: Facts{Path: "/a", Real: "/a", Kind: KindDisk, Size: 7}, Target: Facts{Path: "/b", Real: "/b", Kind: KindMissing}, Read: true, Write: true,
		Request: Request{Allow: Allow{Overwrite: true, Confirm: "S", Sparse: true}, Sparse: true, SkipErrors: true, LVMSnapshot: "5G", NoResume: true,
			Options: Options{Options: transfer.Options{Buffer: 1, Block: 2, BandLimit: 3, Compress: "zstd", CompressThreads: 4, Stall: 5},
				Delta: true, NoVerify: true, Quick: true, VerifyLater: true}}}
	text, err := json.Marshal(task)
	require.NoError(t, err)
	require.Equal(t, `{"source":{"path":"/a","real":"/a","kind":"disk","size":7,"logical_sector":0,"physical_sector":0,"read_only":false,"rotational":false},"target":{"path":"/b","real":"/b","kind":"missing","size":0,"logical_sector":0,"physical_sector":0,"read_only":false,"rotational":false},"read":true,"write":true,"allow":{"overwrite":true,"confirm":"S","sparse":true},"sparse":true,"skip_errors":true,"lvm_snapshot":"5G","no_resume":true,"options":{"buffer":1,"block":2,"bwlimit":3,"compress":"zstd","compress_threads":4,"stall":5,"Delta":true,"NoVerify":true,"quick":true,"VerifyLater":true}}`, string(text))
	digest := Digest{Parts: [][]byte{{1}}, PartBytes: 2, Result: Result{transfer.Result{WireBytes: 9, Frames: 8, Digest: "d"},
		Account{Size: 1, Block: 2, Data: 3, Zeros: 4, Present: 5, Resumed: 6, Verified: 7, SourceDigest: "s", TargetDigest: "t", BadRanges: []Range{{1, 2}}}}}
	text, err = json.Marshal(digest)
	require.NoError(t, err)
	require.Equal(t, `{"result":{"bytes":0,"elapsed_ns":0,"stages":null,"wire_bytes":9,"frames":8,"digest":"d","device":{"size":1,"block":2,"data":3,"zeros":4,"present":5,"resumed":6,"verified":7,"source_digest":"s","target_digest":"t","bad_ranges":[{"start":1,"length":2}]}},"parts":["AQ=="],"part_bytes":2}`, string(text))
}

// TestTaskWithoutBlockSize expects that a task from another host without a block size is
// copied.
func TestTaskWithoutBlockSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	look := func(name string) Facts {
		f, err := Inspect(t.Context(), filepath.Join(dir, name))
		require.NoError(t, err)
		return f
	}
	task := Task{Source: Facts{Path: Standard, Kind: KindStream}, Target: look("to"), Read: true, Write: true}
	copied := make(chan error, 1)
	go func() {
		_, err := Copy(t.Context(), task, nil, Streams{In: strings.NewReader("the stream")}, nil)
		copied <- err
	}()
	select {
	case err := <-copied:
		require.NoError(t, err)
	case <-time.After(testenv.Timeout()):
		require.Fail(t, "the copy does not end")
	}
	task.Source, task.Target = look("to"), look("again")
	_, err := StateOf(task)
	require.NoError(t, err)
	_, err = Copy(t.Context(), task, nil, Streams{}, nil)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(dir, "again"))
	require.NoError(t, err)
	require.Equal(t, "the stream", string(got))
}
