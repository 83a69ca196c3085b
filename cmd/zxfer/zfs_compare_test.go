package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/compare"
	"zxfer/pkg/plan"
)

// runCompare runs zxfer compare --json and expects the exit code. It returns the report, and
// its pairs by dataset.
func runCompare(t *testing.T, code int, args ...string) (r compare.Report, of map[string]*plan.Pair) {
	t.Helper()
	o := zxfer(t, append([]string{"compare", "--json"}, args...)...)
	require.Equal(t, code, o.code, o)
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), o)
	of = map[string]*plan.Pair{}
	for _, p := range r.Datasets {
		name := p.B
		if p.A != nil {
			name = p.A
		}
		of[name.Dataset] = p
	}
	return r, of
}

// TestZFSCompare compares two trees by GUIDs. Nothing changes.
func TestZFSCompare(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	for _, d := range []string{"", "/docs", "/mail", "/late"} {
		zfsCmd(t, "create", src+d)
		fill(t, src+d, "f", 100<<10)
	}
	zfsCmd(t, "snapshot", "-r", src+"@a")
	mustZxfer(t, "send", "-R", src, "beta:"+dst)
	o := mustZxfer(t, "compare", src, "beta:"+betaPool)
	require.Empty(t, o.stderr)
	require.Contains(t, o.stdout, "4 datasets: 4 same; no difference")

	fill(t, src+"/docs", "g", 1<<20)
	zfsCmd(t, "snapshot", "-r", src+"@b")
	mustZxfer(t, "send", src, "beta:"+dst)
	zfsCmd(t, "destroy", src+"@a")
	zfsCmd(t, "snapshot", dst+"/mail@b")
	zfsCmd(t, "rename", dst+"/docs", dst+"/papers")
	zfsCmd(t, "destroy", "-r", dst+"/late")
	zfsCmd(t, "create", "-o", "readonly=on", dst+"/own")
	fill(t, src+"/mail", "g", 1<<20)
	run(t, "bash", "-c", "set -o pipefail; ! zfs send -i @a "+src+"/docs@b | head -c 500000 | zfs receive -s -u "+dst+"/papers 2>/dev/null")
	before := state(t)

	r, of := runCompare(t, 1, src, "beta:"+dst)
	require.Equal(t, "zxfer.compare/v1", r.Schema)
	require.Equal(t, compare.Differ, r.Outcome)
	require.Equal(t, 5, r.Differing)
	require.Equal(t, plan.PairSameNewest, of[src].Relation)
	require.Equal(t, "a", of[src].B.Only[0].Name)
	docs := of[src+"/docs"]
	require.Equal(t, plan.PairNewerA, docs.Relation)
	require.True(t, docs.Renamed)
	require.Equal(t, dst+"/papers", docs.B.Dataset)
	require.Equal(t, "a", docs.Common.Name)
	require.Greater(t, docs.A.Bytes, uint64(1<<20))
	require.Equal(t, src+"/docs@b", docs.B.Resume.Snapshot)
	require.NotZero(t, docs.B.Resume.Bytes)
	require.Equal(t, plan.PairDiverged, of[src+"/mail"].Relation)
	require.Greater(t, of[src+"/mail"].A.Written, uint64(1<<20))
	require.Equal(t, plan.PairOnlyA, of[src+"/late"].Relation)
	require.Equal(t, plan.PairOnlyB, of[dst+"/own"].Relation)
	require.Empty(t, r.Notes)

	o = zxfer(t, "compare", "-v", src, "beta:"+dst)
	require.Equal(t, 1, o.code)
	require.Empty(t, o.stderr)
	require.Contains(t, o.stdout, "docs = papers")
	require.Contains(t, o.stdout, "only in B, of "+dst+"/mail:\n  @b  GUID ")
	mustZxfer(t, "compare", "-q", "--newest", "--recursive=false", src, "beta:"+dst)

	// With a receive-only key, the report lacks only the sizes that the key's host would
	// have to estimate.
	rsh, _ := restrictedKey(t, "--allow", "receive="+dst)
	r, of = runCompare(t, 1, "-e", rsh, src, "beta:"+dst)
	require.Equal(t, 5, r.Differing)
	require.Greater(t, of[src+"/docs"].A.Bytes, uint64(1<<20))
	require.Len(t, r.Notes, 1)
	require.Equal(t, before, state(t))
}
