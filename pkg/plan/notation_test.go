package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// history parses versions written as "@a,1 #a,1 @b,2": kind, name and GUID in
// order of creation. A bookmark shares the CreateTXG of the snapshot with its
// GUID.
func history(t testing.TB, s string) []zfs.Version {
	t.Helper()
	var out []zfs.Version
	txgs := map[uint64]uint64{}
	for i, f := range strings.Fields(s) {
		name, number, ok := strings.Cut(f[1:], ",")
		require.True(t, ok, "write @name,GUID instead of %q", f)
		guid, err := strconv.ParseUint(number, 10, 64)
		require.NoError(t, err)
		txg, ok := txgs[guid]
		if !ok {
			txg = uint64(i+1) * 10
			txgs[guid] = txg
		}
		out = append(out, zfs.Version{Kind: zfs.VersionKind(f[:1]), Name: name, GUID: guid, CreateTXG: txg})
	}
	zfs.SortVersions(out)
	return out
}

// dataset makes a dataset; properties are written as "name=value", and count
// as set locally.
func dataset(t testing.TB, name, versions string, properties ...string) *zfs.Dataset {
	t.Helper()
	d := &zfs.Dataset{Name: name, Type: zfs.Filesystem, Versions: history(t, versions), Properties: map[string]zfs.Property{}}
	for _, p := range properties {
		k, v, ok := strings.Cut(p, "=")
		require.True(t, ok, p)
		if k == "type" {
			d.Type = zfs.Type(v)
		}
		d.Properties[k] = zfs.Property{Value: v, Source: "local"}
	}
	return d
}

// currentFeatures returns the features of a pool of a current version.
func currentFeatures() map[string]string {
	return map[string]string{"large_blocks": "active", "embedded_data": "active", "lz4_compress": "active", "zstd_compress": "enabled",
		"encryption": "enabled", "large_dnode": "enabled", "blake3": "disabled"}
}

// stateOf returns a state with tank on alpha and vault on beta, which has only
// its pool. Datasets of tank are the source, with its root first; others are
// the target.
func stateOf(datasets ...*zfs.Dataset) State {
	s := State{SourceHost: "alpha", TargetHost: "beta"}
	s.Source.Pool = zfs.Pool{Name: "tank", Features: currentFeatures()}
	s.Target.Pool = zfs.Pool{Name: "vault", Features: currentFeatures()}
	s.Target.Ancestors = []*zfs.Dataset{{Name: "vault", Type: zfs.Filesystem}}
	for _, d := range datasets {
		if zfs.PoolOf(d.Name) == "tank" {
			s.Source.Datasets = append(s.Source.Datasets, d)
		} else {
			s.Target.Datasets = append(s.Target.Datasets, d)
		}
	}
	s.Source.Root = s.Source.Datasets[0].Name
	return s
}

// stepsText writes the steps of a dataset as "full @a", "@a>@b" (-i), "@a>@b>@c" (-I),
// "clone tank/o@x>@a", "resume @a", with "-F " before one that rolls back.
func stepsText(d *Dataset) string {
	var out []string
	for _, st := range d.Steps {
		var s string
		switch st.Kind {
		case Full:
			s = "full @" + st.Send.To
		case Resume:
			s = "resume @" + st.Send.To
		case Clone:
			s = "clone " + st.Send.From + ">@" + st.Send.To
		case Incremental:
			s = strings.Join(append([]string{st.Send.From}, st.Send.Through...), ">@") + ">@" + st.Send.To
		}
		if st.Receive.Rollback {
			s = "-F " + s
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

// planText writes a whole plan, a line for each dataset.
func planText(p Plan) string {
	var out []string
	for _, d := range p.Datasets {
		s := d.Source + ": " + stepsText(d)
		if d.CreateParents {
			s += " +parents"
		}
		if len(d.Needs) > 0 {
			s += " after " + strings.Join(d.Needs, ", ")
		}
		out = append(out, s)
	}
	return strings.Join(out, "\n")
}

// onlyDataset returns the only dataset of a plan without conflicts.
func onlyDataset(t testing.TB, p Plan) *Dataset {
	t.Helper()
	for _, c := range p.Conflicts {
		require.Fail(t, "unexpected conflict", "%s: %s", c.ID, c.Summary)
	}
	require.Len(t, p.Datasets, 1)
	return p.Datasets[0]
}

// requireConflict requires exactly one conflict, with that ID and all the texts
// in its message or hint.
func requireConflict(t testing.TB, p Plan, id string, texts ...string) {
	t.Helper()
	require.Len(t, p.Conflicts, 1, "%s", planText(p))
	c := p.Conflicts[0]
	require.Equal(t, id, c.ID, c.Summary)
	for _, text := range texts {
		require.Contains(t, c.Summary+"\nhint: "+c.Remedy, text)
	}
}

func notes(p Plan) string { return strings.Join(p.Notes, "\n") }

func request() Request { return Request{Source: "tank/a", Target: "vault"} }

func (r Request) with(change func(*Request)) Request {
	change(&r)
	return r
}

func series(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "@s%d,%d ", i, i+1)
	}
	return b.String()
}

// mustMake returns Make's plan. It must not depend on whether the target's
// survey had only the most recent snapshots at first.
func mustMake(t testing.TB, req Request, state State) Plan {
	t.Helper()
	p := Make(req, state)
	require.Equal(t, p, fromNewest(req, state))
	return p
}

// fromNewest plans like a job, whose survey of the target has only the most
// recent snapshots at first.
func fromNewest(req Request, state State) Plan {
	whole := map[string]*zfs.Dataset{}
	var newestOnly []*zfs.Dataset
	for _, d := range state.Target.Datasets {
		whole[d.Name] = d
		cut := *d
		cut.Versions, cut.NewestOnly = nil, true
		if latest, ok := d.Latest(); ok {
			cut.Versions = []zfs.Version{latest}
		}
		newestOnly = append(newestOnly, &cut)
	}
	state.Target.Datasets = newestOnly
	p := Make(req, state)
	datasets, names := NeedHistories(p, state)
	for _, name := range names {
		dataset, snapshot, _ := strings.Cut(name, "@")
		if slices.ContainsFunc(whole[dataset].Snapshots(), func(v zfs.Version) bool { return v.Name == snapshot }) {
			datasets = append(datasets, dataset)
		}
	}
	for i, d := range newestOnly {
		if slices.Contains(datasets, d.Name) {
			newestOnly[i] = whole[d.Name]
		}
	}
	return Make(req, state)
}
