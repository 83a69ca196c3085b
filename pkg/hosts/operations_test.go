package hosts

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/budget"
	"zxfer/pkg/zfs"
)

// TestLegitimateMessagesFitBudgets expects that the largest legitimate requests and answers fit
// into their limits.
func TestLegitimateMessagesFitBudgets(t *testing.T) {
	t.Parallel()
	cost := func(v any) int {
		body, err := json.Marshal(v)
		require.NoError(t, err)
		c := budget.Cost(body)
		require.LessOrEqual(t, c, budget.Limit(c, len(body)))
		return c
	}
	var names []string
	l := zfs.Listing{Root: "tank"}
	for i := range 100_000 {
		names = append(names, fmt.Sprintf("tank/some/where/dataset-%d@autosnap_2026-01-01_00:00:00_hourly", i))
	}
	for _, op := range []Operation{OpSnapshot, OpDestroy, OpHolds, OpProperties} {
		require.Less(t, cost(names), op.MaxRequest(), op.Name())
	}
	for i := range 200 {
		d := &zfs.Dataset{Name: fmt.Sprintf("tank/%d", i), Type: zfs.Filesystem, Properties: map[string]zfs.Property{}}
		for _, p := range zfs.SurveyProperties() {
			d.Properties[p] = zfs.Property{Value: "1", Source: "-"}
		}
		for _, n := range names[:1000] {
			d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: n[strings.Index(n, "@")+1:], GUID: 1 << 63, CreateTXG: 1 << 30})
		}
		l.Datasets = append(l.Datasets, d)
	}
	require.Less(t, cost(l), OpList.MaxAnswer(ListQuery{}, 0))
	holds, properties := map[string][]string{}, map[string]map[string]zfs.Property{}
	for _, n := range names[:2000] {
		holds[n] = []string{"zxfer:job:target", "a hold", "another"}
		properties[n] = map[string]zfs.Property{"guid": {Value: "18446744073709551615", Source: "-"}, "org:note": {Value: strings.Repeat("x", 8<<10), Source: "local"}}
	}
	require.Less(t, cost(holds), OpHolds.MaxAnswer(names[:2000], cost(names[:2000])))
	require.Less(t, cost(properties), OpProperties.MaxAnswer(PropertyQuery{Names: names[:2000], Properties: []string{"guid", "org:note"}}, 0))
	require.Less(t, cost(properties), OpProperties.MaxAnswer(PropertyQuery{Names: names[:2000]}, 0))
	sizes := slices.Repeat([]uint64{1 << 30}, 100_000)
	require.Less(t, cost(sizes), OpEstimate.MaxAnswer(make([]zfs.SendSpec, len(sizes)), 0))
}

// TestEstimateSplitsManyStreams expects that estimates of many streams are split into requests
// that an agent accepts.
func TestEstimateSplitsManyStreams(t *testing.T) {
	t.Parallel()
	var all []zfs.SendSpec
	for i := range 20_000 {
		s := zfs.SendSpec{Dataset: fmt.Sprint("tank/", i), To: "x", Flags: zfs.StreamFlags{Raw: true}}
		if i%100 == 0 {
			s.Through = slices.Repeat([]string{"autosnap_2026-01-01_00:00:00_hourly"}, 5000)
		}
		all = append(all, s)
	}
	parts := splitStreams(all)
	require.Greater(t, len(parts), 10)
	require.Equal(t, all, slices.Concat(parts...))
	for _, p := range parts {
		body, err := json.Marshal(p)
		require.NoError(t, err)
		require.Less(t, budget.Cost(body), OpEstimate.MaxRequest())
	}
	require.Len(t, splitStreams(nil), 1)
}

// TestOperationTableIsComplete expects that each operation has one implementation, and that answers of
// other hosts are checked. Only Capture has an answer without a check, because its reader accepts
// any text.
func TestOperationTableIsComplete(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, op := range Operations() {
		require.False(t, names[op.Name()], "two operations %s", op.Name())
		names[op.Name()] = true
		v := reflect.ValueOf(op)
		require.Equal(t, op.Plain(), v.FieldByName("full").IsNil(), op.Name())
		require.Equal(t, op.Plain(), op.lacking() == "", op.Name())
		_, none := op.Request(nil, nil).Answer.(*None)
		require.Equal(t, none || op.Name() == OpCapture.Name(), v.FieldByName("check").IsNil(), op.Name())
	}
}

// TestOperationsAreNamedLikeTheirVariables expects OpSetProperties to be "set-properties" in the protocol and the audit log.
func TestOperationsAreNamedLikeTheirVariables(t *testing.T) {
	t.Parallel()
	upper := regexp.MustCompile(`\B[A-Z]`)
	named := map[string]bool{}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			of, _ := d.(*ast.GenDecl)
			if of == nil || of.Tok != token.VAR {
				continue
			}
			for _, v := range of.Specs {
				if name, ok := strings.CutPrefix(v.(*ast.ValueSpec).Names[0].Name, "Op"); ok {
					named[strings.ToLower(upper.ReplaceAllString(name, "-$0"))] = true
				}
			}
		}
	}
	for _, op := range Operations() {
		require.True(t, named[op.Name()], op.Name())
		delete(named, op.Name())
	}
	require.Empty(t, named)
}
