package plan

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// model is a target that receives streams like the kernel.
type model struct {
	exists    bool
	snapshots []zfs.Version // in order of arrival
}

func (m *model) index(guid uint64) int {
	return slices.IndexFunc(m.snapshots, func(v zfs.Version) bool { return v.GUID == guid })
}

// receive receives one stream, or returns the kernel's refusal.
func (m *model) receive(source *zfs.Dataset, st Step) error {
	byName := map[string]zfs.Version{}
	for _, v := range source.Versions {
		byName[v.Short()] = v
	}
	to, ok := byName["@"+st.Send.To]
	if !ok || to.GUID != st.ToGUID {
		return fmt.Errorf("send: no snapshot @%s of GUID %d", st.Send.To, st.ToGUID)
	}
	var after uint64
	if st.Kind == Full {
		if m.exists {
			return fmt.Errorf("destination exists")
		}
	} else {
		base, ok := byName[st.Send.From]
		if !ok || base.CreateTXG >= to.CreateTXG {
			return fmt.Errorf("send: bad base %s of @%s", st.Send.From, st.Send.To)
		}
		at := m.index(base.GUID)
		switch {
		case at < 0:
			return fmt.Errorf("destination lacks the base %s", st.Send.From)
		case at < len(m.snapshots)-1 && !st.Receive.Rollback:
			return fmt.Errorf("destination has been modified")
		case len(st.Send.Through) > 0 && base.Kind == zfs.Bookmark:
			return fmt.Errorf("send: -I from a bookmark")
		}
		m.snapshots = m.snapshots[:at+1]
		after = base.CreateTXG
	}
	m.exists = true
	var arrive []zfs.Version
	for _, v := range source.Versions {
		between := len(st.Send.Through) > 0 && v.CreateTXG > after && v.CreateTXG < to.CreateTXG
		if v.Kind == zfs.Snapshot && (between || v.GUID == to.GUID) {
			arrive = append(arrive, v)
		}
	}
	if len(arrive) != len(st.Send.Through)+1 {
		return fmt.Errorf("stream brings %d snapshots, the plan says %d", len(arrive), len(st.Send.Through)+1)
	}
	for _, v := range arrive {
		if slices.ContainsFunc(m.snapshots, func(o zfs.Version) bool { return o.Name == v.Name }) {
			return fmt.Errorf("snapshot @%s exists", v.Name)
		}
		m.snapshots = append(m.snapshots, v)
	}
	return nil
}

// randomSides returns a source with a random history, and a target that received parts of it, lost
// some snapshots, and may have additional ones.
func randomSides(r *rand.Rand) (source, target *zfs.Dataset) {
	source = &zfs.Dataset{Name: "tank/a", Type: zfs.Filesystem}
	target = &zfs.Dataset{Name: "vault/a", Type: zfs.Filesystem}
	names := []string{"a", "b", "c", "x"}
	pruned := r.IntN(3)
	var txg uint64
	for i := range 1 + r.IntN(9) {
		txg += 1 + r.Uint64N(5)
		v := zfs.Version{Kind: zfs.Snapshot, Name: fmt.Sprintf("%s%d", names[r.IntN(4)], i), GUID: uint64(1 + i), CreateTXG: txg}
		keep := r.IntN(4) > 0
		if !keep || r.IntN(3) == 0 {
			source.Versions = append(source.Versions, zfs.Version{Kind: zfs.Bookmark, Name: v.Name, GUID: v.GUID, CreateTXG: txg})
		}
		if keep {
			source.Versions = append(source.Versions, v)
		}
		if i < 6 && r.IntN(3) >= pruned {
			v.CreateTXG += 100
			if r.IntN(6) == 0 {
				v.Name += "-renamed"
			}
			target.Versions = append(target.Versions, v)
		}
	}
	for i := range r.IntN(3) / 2 * (1 + r.IntN(2)) {
		at := r.IntN(len(target.Versions) + 1)
		own := zfs.Version{Kind: zfs.Snapshot, Name: fmt.Sprintf("%s%d", names[r.IntN(4)], r.IntN(9)), GUID: uint64(100 + i)}
		if slices.ContainsFunc(target.Versions, func(v zfs.Version) bool { return v.Name == own.Name }) {
			continue
		}
		target.Versions = slices.Insert(target.Versions, at, own)
	}
	for i := range target.Versions {
		target.Versions[i].CreateTXG = uint64(1000 + i)
	}
	return source, target
}

// TestPlansAreSound expects, for random histories, that a plan without conflicts can be carried out
// step by step. It sends exactly the requested snapshots, and loses only the snapshots that it
// lists.
func TestPlansAreSound(t *testing.T) {
	t.Parallel()
	outcomes := map[string]int{}
	seeds := testenv.Rounds(600, 3000, 8000)
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 1))
		source, counterpart := randomSides(r)
		req := request().with(func(q *Request) {
			q.LatestOnly = r.IntN(4) == 0
			q.Newest = max(0, r.IntN(6)-2)
			if r.IntN(3) == 0 {
				q.Since = time.Unix(int64(r.IntN(12)), 0)
			}
			q.Rollback = r.IntN(3) == 0
			if r.IntN(3) == 0 {
				q.ExcludeSnapshots = []string{"x*"}
			}
			if snaps := source.Snapshots(); r.IntN(4) == 0 && len(snaps) > 0 {
				q.Snapshot = snaps[r.IntN(len(snaps))].Name
			}
		})
		m := &model{exists: r.IntN(4) > 0}
		state := stateOf(source)
		if m.exists {
			m.snapshots = slices.Clone(counterpart.Versions)
			state.Target.Datasets = []*zfs.Dataset{counterpart}
		}
		before, created := slices.Clone(m.snapshots), map[string]time.Time{}
		for i, v := range source.Snapshots() {
			created[v.In("tank/a")] = time.Unix(int64(i), 0)
		}
		state.SourceCreated = map[string]time.Time{}
		for _, name := range NeedCreated(req, &state) { // the plan may use only these times
			state.SourceCreated[name] = created[name]
		}
		p := mustMake(t, req, state)
		require.Equal(t, p, Make(req, state), "the same input gives the same plan")
		if len(p.Conflicts) > 0 {
			outcomes[string(p.Conflicts[0].ID)]++
			continue
		}
		require.Len(t, p.Datasets, 1)
		d := p.Datasets[0]
		story := fmt.Sprintf("seed %d: %+v\nsource %v\ntarget %v\nplan %s, loses %v", seed, req, source.Versions, before, stepsText(d), d.Loses)
		outcomes[map[bool]string{true: "steps", false: "up to date"}[len(d.Steps) > 0]]++
		var base uint64
		for i, st := range d.Steps {
			require.NoError(t, m.receive(source, st), story)
			if i == 0 && st.Kind == Incremental {
				for _, v := range source.Versions {
					if v.Short() == st.Send.From {
						base = v.CreateTXG
					}
				}
			}
		}
		// The target has its remaining snapshots, followed by the requested ones newer than the
		// incremental source.
		var want []uint64
		for _, v := range before {
			if !slices.Contains(d.Loses, v.In("vault/a")) {
				want = append(want, v.GUID)
			}
		}
		if len(d.Steps) > 0 {
			var behind []uint64
			left := cmp.Or(req.Newest, math.MaxInt)
			for _, v := range slices.Backward(source.Snapshots()) {
				chosen := v.CreateTXG < d.Final.CreateTXG && req.Selects(v.Name) && !req.LatestOnly && !created[v.In("tank/a")].Before(req.Since)
				if left > 0 && (chosen || v.GUID == d.Final.GUID) {
					left--
					if v.CreateTXG > base {
						behind = append(behind, v.GUID)
					}
				}
			}
			slices.Reverse(behind)
			want = append(want, behind...)
		}
		var got []uint64
		for _, v := range m.snapshots {
			got = append(got, v.GUID)
		}
		require.Equal(t, want, got, story)
		require.Contains(t, got, d.Final.GUID, story)
		if !req.Rollback {
			require.Empty(t, d.Loses, story)
		}
		// No newer common snapshot was ignored.
		for _, v := range source.Versions {
			if len(d.Steps) > 0 && v.CreateTXG > base && v.CreateTXG < d.Final.CreateTXG {
				require.Negative(t, slices.IndexFunc(before, func(o zfs.Version) bool { return o.GUID == v.GUID }), story)
			}
		}
	}
	for _, o := range []string{"steps", "up to date", string(Diverged), string(NoCommon), string(NameTaken), string(NoSnapshot)} {
		require.Greater(t, outcomes[o], int(seeds/400), "the histories are varied: %v", outcomes)
	}
}
