package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestZFSRollback rolls back a copy that has an additional snapshot, and snapshots that
// were destroyed and taken again on the source. If one of them is held or has a clone,
// nothing is sent.
func TestZFSRollback(t *testing.T) {
	lab(t)
	for _, far := range []string{"beta:", ""} {
		src, dst := dataset(t)
		zfsCmd(t, "create", src)
		for _, s := range []string{"one", "two", "three"} {
			fill(t, src, s, 300<<10)
			zfsCmd(t, "snapshot", src+"@"+s)
		}
		mustZxfer(t, "send", src, far+dst)
		zfsCmd(t, "snapshot", dst+"@theirs")
		zfsCmd(t, "destroy", src+"@two")
		zfsCmd(t, "destroy", src+"@three")
		fill(t, src, "again", 300<<10)
		zfsCmd(t, "snapshot", src+"@two")
		zfsCmd(t, "snapshot", src+"@four")
		if far != "" {
			before := state(t)
			o := zxfer(t, "send", src, far+dst)
			require.Equal(t, 3, o.code, o.String())
			require.Contains(t, o.stderr, "to roll "+dst+" back, destroying @theirs, @three, @two: --rollback")
			o = mustZxfer(t, "send", "-n", "--rollback", src, far+dst)
			for _, text := range []string{"LOSES " + dst + "@two on the target", "zfs destroy " + dst + "@two"} {
				require.Contains(t, o.stdout+o.stderr, text)
			}
			require.Equal(t, before, state(t))
			zfsCmd(t, "hold", "mine", dst+"@two")
			zfsCmd(t, "clone", dst+"@theirs", dst+"-clone")
			before = state(t)
			o = zxfer(t, "send", "--rollback", src, far+dst)
			require.Equal(t, 3, o.code, o.String())
			for _, text := range []string{"zfs release mine " + dst + "@two", "zfs destroy " + dst + "-clone"} {
				require.Contains(t, o.stderr, text)
			}
			require.Equal(t, before, state(t))
			zfsCmd(t, "release", "mine", dst+"@two")
			zfsCmd(t, "destroy", dst+"-clone")
		}
		mustZxfer(t, "send", "--rollback", src, far+dst)
		require.Equal(t, guids(t, src), guids(t, dst))
		requireSameFiles(t, src, dst)
		zfsCmd(t, "destroy", "-r", src)
		zfsCmd(t, "destroy", "-r", dst)
	}
}
