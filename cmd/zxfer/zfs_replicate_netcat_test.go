package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
)

// TestZFSReplicateNetcat replicates to and from a host without zxfer. Plain zfs commands
// manage the snapshots, holds and bookmarks there.
func TestZFSReplicateNetcat(t *testing.T) {
	lab(t)
	installNC(t, "nc.openbsd")
	src, dst := dataset(t)
	back := src + "-back"
	zfsCmd(t, "create", "-p", src+"/a b")
	fill(t, src+"/a b", "x", 1<<20)
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "out"
source = %q
recursive = true
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 2 }
transfer = { wire = "nc", trusted_link = true }
[[job.target]]
name = "far"
to = "beta:%s"
retention = { last = 3 }

[[job]]
name = "in"
source = "beta:%s"
recursive = true
property = "my:note=it's marked\t$(so)"
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 1 }
transfer = { wire = "nc", trusted_link = true }
[[job.target]]
name = "near"
to = %q
`, src, dst, dst, back))
	base := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	before := state(t)
	o := r.mustRunAt(t, base, "check", "-v", "out")
	require.Contains(t, o.stdout, "would take 2 snapshots")
	require.Equal(t, before, state(t), "check changed something")

	for i := range 4 {
		fill(t, src+"/a b", fmt.Sprint("more", i), 1<<19)
		r.mustRunAt(t, base.Add(time.Duration(i)*time.Hour), "run", "out")
		last := r.lastRun(t, "out")
		require.Equal(t, outcome.Done, last.Outcome)
		require.Equal(t, 2, len(last.Targets[0].Datasets))
	}
	require.Len(t, snapshotNames(t, src), 2)
	require.Len(t, snapshotNames(t, dst), 3, "snapshots after pruning")
	for _, d := range []string{src, dst} {
		require.Contains(t, strings.Join(holdsOf(t, d), " "), "zxfer:", "the common snapshot has no hold on %s", d)
	}
	require.NotEmpty(t, zfsCmd(t, "list", "-H", "-t", "bookmark", "-o", "name", "-r", src))
	requireSameFiles(t, src+"/a b", dst+"/a b")

	zfsCmd(t, "set", "my:note=it's marked\t$(so)", dst)
	zfsCmd(t, "create", "-o", "my:note=no\n"+dst+"/c\tmy:note\tit's marked\t$(so)\tlocal", dst+"/c")
	zfsCmd(t, "inherit", "-r", "zxfer:stream", dst) // job "out" does not send to it any more
	for i := range 2 {
		r.mustRunAt(t, base.Add(time.Duration(5+i)*time.Hour), "run", "in")
		require.Equal(t, outcome.Done, r.lastRun(t, "in").Outcome)
	}
	require.Len(t, snapshotNames(t, dst), 3+1, "snapshots after pruning")
	require.NotEmpty(t, zfsCmd(t, "list", "-H", "-t", "bookmark", "-o", "name", "-r", dst))
	requireSameFiles(t, src+"/a b", back+"/a b")
	require.NotContains(t, zfsCmd(t, "list", "-H", "-o", "name", "-r", back), "/c", "a forged property value selected a dataset")
	requireNoLeftovers(t)

	// check refuses unsupported settings and prints a remedy.
	text := fmt.Sprintf("[[job]]\nname = \"out\"\nsource = %q\ntransfer = { wire = \"nc\"%%s }\n[[job.target]]\nname = \"far\"\nto = %%q\n", "beta:"+dst)
	for _, c := range []struct{ consent, to, want, hint string }{
		{", trusted_link = true", "gamma:vault", `transfer.wire = "nc" requires one local and one remote side`, "run zxfer on one of the two hosts"},
		{"", back, `transfer.wire = "nc" requires transfer.trusted_link = true`, "add transfer.trusted_link = true"},
		{", trusted_link = true, streams = 4", back, `transfer.streams has no effect with transfer.wire = "nc"`, "omit transfer.streams"},
	} {
		r.write(t, fmt.Sprintf(text, c.consent, c.to))
		o := r.runAt(t, base, "check")
		require.Equal(t, 2, o.code, "%s", o)
		require.Contains(t, o.stderr, c.want)
		require.Contains(t, o.stderr, c.hint)
	}
}
