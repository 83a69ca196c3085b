package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestZFSPromote sends after zfs promote on the source. Incremental sends continue from common snapshots,
// or the refusal names the one command after which they do.
func TestZFSPromote(t *testing.T) {
	lab(t)
	for _, tt := range []struct {
		name         string
		cloned, both bool // the clone was sent before; a later snapshot of both was sent too
		renameTo     string
	}{
		{name: "clone and later snapshots sent", cloned: true, both: true},
		{name: "clone sent", cloned: true, renameTo: "/o-old"},
		{name: "clone not sent", renameTo: "/c"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src, dst := dataset(t)
			zfsCmd(t, "create", src)
			zfsCmd(t, "create", src+"/o")
			for _, s := range []string{"1", "2"} {
				fill(t, src+"/o", "f"+s, 1<<20)
				zfsCmd(t, "snapshot", "-r", src+"@"+s)
			}
			mustRunLocal(t, "send", "-R", src, dst)
			zfsCmd(t, "clone", src+"/o@2", src+"/c")
			if tt.cloned {
				fill(t, src+"/c", "c3", 100<<10)
				zfsCmd(t, "snapshot", src+"/c@3")
				if tt.both {
					zfsCmd(t, "snapshot", src+"/o@3")
					zfsCmd(t, "snapshot", src+"@3")
				}
				mustRunLocal(t, "send", "-R", src, dst)
			}
			zfsCmd(t, "promote", src+"/c")
			for _, d := range []string{"/o", "/c"} {
				fill(t, src+d, "f4", 100<<10)
			}
			zfsCmd(t, "snapshot", "-r", src+"@4")
			if tt.renameTo != "" {
				before := state(t)
				o := runLocal(t, "send", "-R", src, dst)
				require.Equal(t, 3, o.code, o)
				require.Equal(t, before, state(t))
				command := regexp.MustCompile(`zfs rename \S+ \S+`).FindString(o.stderr)
				require.Equal(t, "zfs rename "+dst+"/o "+dst+tt.renameTo, command, o)
				run(t, strings.Fields(command)...)
			}
			o := mustRunLocal(t, "send", "-R", src, dst)
			require.NotContains(t, o.stderr, "shares no blocks")
			for _, d := range []string{"/o", "/c"} {
				requireSameFiles(t, src+d, dst+d)
			}
			zfsCmd(t, "snapshot", "-r", src+"@5")
			mustRunLocal(t, "send", "-R", src, dst)
			mustRunLocal(t, "compare", "--newest", "-q", src+"/c", dst+"/c")
		})
	}
}
