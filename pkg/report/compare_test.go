package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/compare"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// comparison compares a few datasets, the last with a hostile name.
func comparison() *compare.Report {
	versions := func(names string) (out []zfs.Version) {
		for i, n := range strings.Fields(names) {
			guid := uint64(n[0])<<8 + uint64(n[len(n)-1])
			out = append(out, zfs.Version{Kind: zfs.Snapshot, Name: n, GUID: guid, CreateTXG: uint64(i + 1)})
		}
		return out
	}
	tree := func(root string, of map[string]string) zfs.Listing {
		l := zfs.Listing{Root: root}
		for below, names := range of {
			l.Datasets = append(l.Datasets, &zfs.Dataset{Name: strings.TrimSuffix(root+"/"+below, "/"), Versions: versions(names), Properties: map[string]zfs.Property{"written": {Value: "0"}}})
		}
		return l
	}
	a := tree("tank/home", map[string]string{"": "a1 a2", "docs": "b1 b2 b3", "new": "c1", "x\x1b[2J": "d1 d\x072"})
	b := tree("vault/home", map[string]string{"": "a1 a2", "papers": "b1 b9", "old": "e1", "x\x1b[2J": "d1"})
	r := &compare.Report{Schema: "zxfer.compare/v1", A: "tank/home", B: "backup1:vault/home", Datasets: plan.Compare(a, b),
		Relations: map[string]int{}, Notes: []string{"what backup1:vault/home would have to send is not known: not for this key\x1b"}, Conclusion: outcome.Conclusion{Outcome: compare.Differ}}
	for _, p := range r.Datasets {
		r.Relations[p.Relation]++
		if p.Differs(false) {
			r.Differing++
		}
	}
	docs := r.Datasets[1]
	docs.A.Bytes, docs.A.Written, docs.B.Resume = 3<<20, 4096, &plan.PairResume{Snapshot: "tank/home/docs@b2\x1b", Bytes: 1 << 20}
	r.BytesA = 3 << 20
	return r
}

func TestCompareDone(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	require.NoError(t, NewText(Options{Stdout: &out, Stderr: &errs, Verbose: true}).Done(comparison(), nil, CompareResult(comparison(), true)))
	golden(t, "compare.txt", out.String())
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), "\x07")
	out.Reset()
	require.NoError(t, NewText(Options{Stdout: &out, Stderr: &errs, Quiet: true}).Done(comparison(), nil, CompareResult(comparison(), true)))
	require.NoError(t, NewJSON(Options{Stdout: &errs, Stderr: &out}).Done(comparison(), nil, nil))
	require.Empty(t, out.String())
	golden(t, "compare.json", errs.String())
}
