package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A snapshot that was destroyed and taken anew under its name on the source
// arrives with --rollback, as its plan promises, and what it takes the place of is
// named before; held, it stays, and nothing is sent.
func TestZFSSnapshotTakenAnew(t *testing.T) {
	lab(t)
	for _, far := range []string{"beta:", ""} {
		src, dst := dataset(t)
		zfsCmd(t, "create", src)
		for _, s := range []string{"one", "two", "three"} {
			fill(t, src, s, 300<<10)
			zfsCmd(t, "snapshot", src+"@"+s)
		}
		mustZxfer(t, "send", src, far+dst)
		zfsCmd(t, "destroy", src+"@two")
		zfsCmd(t, "destroy", src+"@three")
		fill(t, src, "anew", 300<<10)
		zfsCmd(t, "snapshot", src+"@two")
		zfsCmd(t, "snapshot", src+"@four")
		before := state(t)
		o := zxfer(t, "send", src, far+dst)
		require.Equal(t, 3, o.code, o.String())
		require.Contains(t, o.stderr, "--rollback lets "+dst+" lose @three, @two")
		o = mustZxfer(t, "send", "-n", "--rollback", src, far+dst)
		for _, text := range []string{"LOSES " + dst + "@two on the target", "zfs destroy " + dst + "@two"} {
			require.Contains(t, o.stdout+o.stderr, text)
		}
		require.Equal(t, before, state(t))
		had := guids(t, dst)
		zfsCmd(t, "hold", "mine", dst+"@two")
		o = zxfer(t, "send", "--rollback", src, far+dst)
		require.Equal(t, 3, o.code, o.String())
		zfsCmd(t, "release", "mine", dst+"@two")
		require.Equal(t, had, guids(t, dst))
		mustZxfer(t, "send", "--rollback", src, far+dst)
		require.Equal(t, guids(t, src), guids(t, dst))
		sameFiles(t, src, dst)
		zfsCmd(t, "destroy", "-r", src)
		zfsCmd(t, "destroy", "-r", dst)
	}
}
