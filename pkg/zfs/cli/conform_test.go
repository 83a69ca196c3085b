package cli_test

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// signalled signals the zfs send of a snapshot in a pool with a unique name.
func signalled(t *testing.T, signal, snapshot string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return exec.Command("pkill", "-"+signal, "-f", "zfs send .*"+snapshot).Run() == nil
	}, testenv.Timeout(), 5*time.Millisecond)
}

func TestSendIsASource(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	large := zfs.SendSpec{Dataset: p.Create("large"), To: "x"} // larger than the pipe
	p.Write(large.Dataset, "f", 16<<20, 1)
	p.Snapshot(large.Dataset, large.To)
	open := func(t *testing.T) transfer.Source {
		src, err := c.OpenSend(t.Context(), large)
		require.NoError(t, err)
		return src
	}
	transfertest.SourceConforms(t, transfertest.Sources{
		Whole: func(t *testing.T) (transfer.Source, []byte) { return open(t), stream(t, c, large) },
		Failing: func(t *testing.T) (transfer.Source, error) {
			src := open(t)
			signalled(t, "KILL", large.Dataset+"@x")
			return src, &zfs.Error{Kind: zfs.Killed}
		},
		Endless: func(t *testing.T) transfer.Source {
			src := open(t)
			signalled(t, "STOP", large.Dataset+"@x")
			return src
		},
	})
}

func TestReceiveIsASink(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	spec := zfs.SendSpec{Dataset: p.Create("a"), To: "x"}
	p.Write(spec.Dataset, "f", 4<<20, 1)
	p.Snapshot(spec.Dataset, spec.To)
	p.Create("full", "-o", "quota=2M")
	whole := stream(t, c, spec)
	n := 0
	open := func(t *testing.T, below string) (transfer.Sink, string) {
		n++
		target := filepath.Join(below, string(rune('a'+n)))
		sink, err := c.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: target, Arrival: arriving(t, whole)})
		require.NoError(t, err)
		return sink, target
	}
	transfertest.SinkConforms(t, transfertest.Sinks{
		Stream: whole,
		Sink: func(t *testing.T) (transfer.Sink, func() ([]byte, bool)) {
			sink, target := open(t, p.Name)
			return sink, func() ([]byte, bool) {
				if exec.Command("zfs", "list", target+"@x").Run() != nil {
					return nil, false
				}
				got := stream(t, c, zfs.SendSpec{Dataset: target, To: "x"})
				if contents(t, got) == contents(t, whole) {
					return whole, true // apart from the dataset's name
				}
				return got, true
			}
		},
		Full: func(t *testing.T) (transfer.Sink, error) {
			sink, _ := open(t, p.Dataset("full"))
			return sink, &zfs.Error{Kind: zfs.NoSpace}
		},
	})
}

func contents(t *testing.T, stream []byte) string {
	t.Helper()
	d, err := zfs.ContentDigest(bytes.NewReader(stream), zfs.DigestRange{}, 0)
	require.NoError(t, err)
	return d.Sum
}
