package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestZFSReplicateSelection pulls, and selects datasets and snapshots by an inherited
// property, by name, by count and by age, for each target separately. A deleted copy is
// sent again only on request.
func TestZFSReplicateSelection(t *testing.T) {
	lab(t)
	dst, src := dataset(t) // the source is on beta
	for _, d := range []string{src, src + "/a", src + "/a/sub", src + "/a/tmp1", src + "/b"} {
		zfsCmd(t, "create", d)
	}
	zfsCmd(t, "set", "zxfer:job=home", src+"/a")
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	snapshots := func(names ...string) {
		for _, n := range names {
			zfsCmd(t, "snapshot", "-r", src+"@"+n)
		}
	}
	text := fmt.Sprintf(`
[[job]]
name = "j"
source = "beta:%s"
recursive = true
property = "zxfer:job=home"
snapshots = { adopt = ["re:^s[0-9]+$"] }
retention = { last = 20, daily = 2, timezone = "Europe/Berlin" }
[[job.target]]
name = "all"
to = "%[2]s/all"
[[job.target]]
name = "few"
to = "%[2]s/few"
exclude = ["re:tmp"]
snapshots = { newest = 2 }
first = "newest"
[[job.target]]
name = "hour"
to = "%[2]s/hour"
include = ["/a/sub"]
snapshots = { since = "1h" }
`, src, dst)
	r := newReplication(t, text)
	now := time.Now()
	snapshots("s1", "s2", "other", "s3", "s4")
	o := r.mustRunAt(t, now, "check", "j")
	require.Contains(t, o.stdout, "j: beta:"+src+", 3 datasets")
	require.Contains(t, o.stdout, ", 2 excluded")
	r.mustRunAt(t, now, "run", "j")
	require.NotContains(t, zfsCmd(t, "list", "-H", "-o", "name", "-r", dst), "/b")
	require.Equal(t, []string{"s1", "s2", "s3", "s4"}, snapshotNames(t, dst+"/all/a/tmp1"))
	require.Equal(t, []string{"s4"}, snapshotNames(t, dst+"/few/a"))
	require.NotContains(t, zfsCmd(t, "list", "-H", "-o", "name", "-r", dst+"/few"), "tmp1")
	require.Equal(t, []string{"s1", "s2", "s3", "s4"}, snapshotNames(t, dst+"/hour/a/sub"))
	require.Empty(t, snapshotNames(t, dst+"/hour/a"))

	snapshots("s5", "s6", "s7")
	now = now.Add(2 * time.Hour) // so the source took them two hours ago
	r.mustRunAt(t, now, "run", "j")
	require.Equal(t, []string{"s1", "s2", "s3", "s4", "s5", "s6", "s7"}, snapshotNames(t, dst+"/all/a"))
	require.Equal(t, []string{"s4", "s6", "s7"}, snapshotNames(t, dst+"/few/a"))
	require.Equal(t, []string{"s1", "s2", "s3", "s4", "s7"}, snapshotNames(t, dst+"/hour/a/sub"))

	// An excluded copy is kept unchanged. A deleted copy is not sent again.
	zfsCmd(t, "set", "zxfer:job=off", src+"/a/tmp1")
	for _, h := range holdsOf(t, dst+"/few/a/sub") {
		name, tag, _ := strings.Cut(h, " ")
		zfsCmd(t, "release", tag, name)
	}
	zfsCmd(t, "destroy", "-r", dst+"/few/a/sub")
	r.write(t, strings.Replace(text, `first = "newest"`, `first = "fail"`, 1))
	snapshots("s8")
	o = r.runAt(t, now, "run", "j")
	require.Equal(t, 1, o.code, "%s", o)
	require.Contains(t, o.stderr, "first = \"fail\"")
	require.Contains(t, o.stderr, "zxfer replicate run --first newest j --config "+r.file)
	require.NotContains(t, snapshotNames(t, dst+"/all/a/tmp1"), "s8")
	require.Contains(t, snapshotNames(t, dst+"/few/a"), "s8")
	require.NotContains(t, zfsCmd(t, "list", "-H", "-o", "name", "-r", dst+"/few"), "sub")
	r.mustRunAt(t, now, "run", "--first", "newest", "j")
	require.Equal(t, []string{"s8"}, snapshotNames(t, dst+"/few/a/sub"))

	mustZxfer(t, "send", "--newest", "3", "--exclude-snaps", "re:[78]$", "beta:"+src+"/b", dst+"/b")
	require.Equal(t, []string{"s4", "s5", "s6"}, snapshotNames(t, dst+"/b"))
	mustZxfer(t, "send", "--since", "1h", "beta:"+src+"/a/sub", dst+"/c")
	require.Len(t, snapshotNames(t, dst+"/c"), 9)
	requireNoLeftovers(t)
}
