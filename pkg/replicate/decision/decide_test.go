package decision

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// parseListing parses datasets such as "tank/a@1 @2 #1". The number of a version is its name, GUID
// and createtxg.
func parseListing(datasets ...string) *zfs.Listing {
	l := &zfs.Listing{}
	for i, text := range datasets {
		words := strings.Fields(text)
		at := strings.IndexAny(words[0]+"@", "@#")
		d := &zfs.Dataset{Name: words[0][:at], GUID: uint64(1000 + i), Properties: map[string]zfs.Property{"written": {Value: "1"}}}
		words[0] = words[0][at:]
		for _, w := range words {
			if w == "" {
				continue
			}
			n, err := strconv.ParseUint(strings.Trim(w, "@#zxfer:j"), 10, 64)
			if err != nil {
				panic(err)
			}
			d.Versions = append(d.Versions, zfs.Version{Kind: zfs.VersionKind(w[:1]), Name: w[1:], GUID: n, CreateTXG: n})
		}
		zfs.SortVersions(d.Versions)
		l.Datasets = append(l.Datasets, d)
	}
	return l
}

// hour returns the creation time of snapshot n.
func hour(n int) time.Time {
	return time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(n) * time.Hour)
}

// snapshotTimes returns the creation times of all snapshots.
func snapshotTimes(all ...*zfs.Listing) map[string]map[string]time.Time {
	out := map[string]map[string]time.Time{}
	for _, l := range all {
		for _, d := range l.Datasets {
			out[d.Name] = map[string]time.Time{}
			for _, v := range d.Snapshots() {
				out[d.Name][v.Name] = hour(int(v.GUID))
			}
		}
	}
	return out
}

// newRunState returns the run state of a job before it has sent anything.
func newRunState(t *testing.T, source *zfs.Listing, settings string) *RunState {
	t.Helper()
	f, err := jobfile.Parse("x", []byte("[[job]]\nname = \"j\"\nsource = \"tank\"\nrecursive = true\nsnapshots = { adopt = [\"*\"] }\n"+settings))
	require.NoError(t, err)
	scope, err := f.Jobs[0].Scope()
	require.NoError(t, err)
	survey := &Survey{Job: &f.Jobs[0], Scope: scope, State: &replicate.State{Datasets: map[string]*replicate.DatasetState{}}, Root: "tank", Source: source, Started: hour(99)}
	return &RunState{Survey: survey, Now: hour(99), Created: map[string]map[string]map[string]time.Time{replicate.SourceSide: snapshotTimes(source)}}
}

const near = "[[job.target]]\nname = \"near\"\nto = \"vault/t\"\n"

// withCopy sets the state of the copy of tank on target near.
func (v *RunState) withCopy(a replicate.CopyState) *RunState {
	v.Survey.State.Dataset("tank").Targets["near"] = &a
	return v
}

// withTarget adds the next target, listed after sending; nil means that it failed. Copies with the
// most recent snapshot have arrived.
func (v *RunState) withTarget(target *zfs.Listing) *RunState {
	s := &TargetState{Target: &v.Survey.Job.Targets[len(v.Targets)], Listing: target, Failed: target == nil}
	for _, p := range v.pairs(s) {
		if d, c := p.source, p.copied; c != nil {
			latest, _ := d.Latest()
			if base, ok := CommonSnapshot(d, c); ok && base.GUID == latest.GUID {
				s.Arrived = append(s.Arrived, SentDataset{Source: d.Name, Target: c.Name, Newest: latest, NewestOnTarget: base.Name})
			}
		}
	}
	if target != nil {
		v.Created[s.Name] = snapshotTimes(target)
	}
	v.Targets = append(v.Targets, s)
	return v
}

func TestDecideSnapshots(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		settings string
		change   func(*zfs.Dataset)
		want     []string
	}{
		"both":           {"", nil, []string{"tank@s-202611050300", "tank/a@s-202611050300"}},
		"unchanged":      {", skip_unchanged = true", func(d *zfs.Dataset) { d.Properties["written"] = zfs.Property{Value: "0"} }, []string{"tank@s-202611050300"}},
		"unchanged, all": {"", func(d *zfs.Dataset) { d.Properties["written"] = zfs.Property{Value: "0"} }, []string{"tank@s-202611050300", "tank/a@s-202611050300"}},
		"the snapshot exists": {"", func(d *zfs.Dataset) {
			d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: "s-202611050300"})
		}, []string{"tank@s-202611050300"}},
		"a receive is in progress": {"", func(d *zfs.Dataset) { d.Properties["inconsistent"] = zfs.Property{Value: "1"} }, []string{"tank@s-202611050300"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newRunState(t, parseListing("tank", "tank/a"), near)
			v.Survey.Job.Snapshots = replicate.Snapshots{Take: "s-%Y%m%d%H%M", SkipUnchanged: tt.settings != ""}
			var err error
			v.Survey.Scope, err = v.Survey.Job.Scope()
			require.NoError(t, err)
			a := v.Survey.Source.Datasets[1]
			a.Versions = []zfs.Version{{Kind: zfs.Snapshot, Name: "s-202611050200", GUID: 7, CreateTXG: 7}}
			if tt.change != nil {
				tt.change(a)
			}
			require.Equal(t, tt.want, v.Survey.DueSnapshots().Names)
		})
	}
}

func TestDecideHoldings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, settings string
		known          replicate.CopyState
		source, there  HoldMove
		held           []replicate.Held // in the state
		bookmarks      map[string]string
	}{
		{"the first", "", replicate.CopyState{}, HoldMove{Place: []string{"tank@2"}}, HoldMove{Place: []string{"vault/t@2"}}, []replicate.Held{{Source: "tank@2", Target: "vault/t@2"}}, map[string]string{"tank#zxfer:j:2": "tank@2"}},
		{"moved", "", replicate.CopyState{BaseGUID: 1, Held: []replicate.Held{{Source: "tank@1", Target: "vault/t@1"}}}, HoldMove{[]string{"tank@2"}, []string{"tank@1"}}, HoldMove{[]string{"vault/t@2"}, []string{"vault/t@1"}},
			[]replicate.Held{{Source: "tank@1", Target: "vault/t@1"}, {Source: "tank@2", Target: "vault/t@2"}}, map[string]string{"tank#zxfer:j:2": "tank@2"}},
		{"after a crash", "", replicate.CopyState{BaseGUID: 2, Moving: true, Held: []replicate.Held{{Source: "tank@2", Target: "vault/t@2"}}}, HoldMove{Place: []string{"tank@2"}}, HoldMove{Place: []string{"vault/t@2"}}, []replicate.Held{{Source: "tank@2", Target: "vault/t@2"}}, map[string]string{"tank#zxfer:j:2": "tank@2"}},
		{"on the source", "holds = \"source\"\nbookmarks = \"none\"\n", replicate.CopyState{BaseGUID: 2, Held: []replicate.Held{{Source: "tank@2", Target: "vault/t@2"}}}, HoldMove{Place: []string{"tank@2"}}, HoldMove{Drop: []string{"vault/t@2"}},
			[]replicate.Held{{Source: "tank@2", Target: "vault/t@2"}, {Source: "tank@2", Target: ""}}, map[string]string{}},
		{"none left", "holds = \"none\"\n", replicate.CopyState{BaseGUID: 1, Held: []replicate.Held{{Source: "tank@1", Target: "vault/t@1"}}}, HoldMove{Drop: []string{"tank@1"}}, HoldMove{Drop: []string{"vault/t@1"}}, []replicate.Held{{Source: "tank@1", Target: "vault/t@1"}}, map[string]string{"tank#zxfer:j:2": "tank@2"}},
		{"the copy was renamed", "", replicate.CopyState{BaseGUID: 1, Held: []replicate.Held{{Source: "tank@1", Target: "vault/old@1"}}}, HoldMove{[]string{"tank@2"}, []string{"tank@1"}}, HoldMove{[]string{"vault/t@2"}, []string{"vault/old@1", "vault/t@1"}},
			[]replicate.Held{{Source: "tank@1", Target: "vault/old@1"}, {Source: "", Target: "vault/t@1"}, {Source: "tank@2", Target: "vault/t@2"}}, map[string]string{"tank#zxfer:j:2": "tank@2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := newRunState(t, parseListing("tank@1 @2"), tt.settings+near).withCopy(tt.known)
			require.Empty(t, Decide(v).HoldChanges, "not tried yet")
			d := Decide(v.withTarget(parseListing("vault/t@1 @2")))
			require.Len(t, d.HoldChanges, 1)
			h := d.HoldChanges[0]
			require.Equal(t, []HoldMove{tt.source, tt.there}, []HoldMove{h.OnSource, h.OnTarget})
			require.Equal(t, tt.bookmarks, h.Bookmarks)
			a := h.Copies["tank"]
			require.Equal(t, tt.held, a.Held)
			require.True(t, a.Moving)

			// A repeated decision has no more changes.
			h.Placed(h.OnSource.Drop, h.OnTarget.Drop, true)
			require.LessOrEqual(t, len(a.Held), 1)
			require.Empty(t, Decide(v.withCopy(*a)).HoldChanges)
		})
	}
}

func TestDecidePrunings(t *testing.T) {
	t.Parallel()
	const keepOne = "[job.retention]\nlast = 1\n"
	for _, tt := range []struct {
		name   string
		view   func() *RunState
		side   string
		remove []string
		stays  map[string]string
	}{
		{"without a target", func() *RunState { return newRunState(t, parseListing("tank@1 @2 @3"), keepOne) }, replicate.SourceSide,
			[]string{"tank@1", "tank@2"}, map[string]string{"tank@3": "last"}},
		{"the incremental source is kept", func() *RunState {
			return newRunState(t, parseListing("tank@1 @2 @3"), keepOne+near).withTarget(parseListing("vault/t@1 @2"))
		}, replicate.SourceSide,
			[]string{"tank@1"}, map[string]string{"tank@2": "incremental source for near", "tank@3": "last"}},
		{"the incremental source of an unreachable target", func() *RunState {
			return newRunState(t, parseListing("tank@1 @2 @3"), keepOne+near).withCopy(replicate.CopyState{BaseGUID: 1}).withTarget(nil)
		}, replicate.SourceSide,
			[]string{"tank@2"}, map[string]string{"tank@1": "incremental source for near", "tank@3": "last"}},
		{"snapshots that may have arrived", func() *RunState {
			return newRunState(t, parseListing("tank@1 @2 @3 @4"), keepOne+near).withCopy(replicate.CopyState{BaseGUID: 1, Sending: 3}).withTarget(nil)
		}, replicate.SourceSide, []string{}, map[string]string{"tank@1": "incremental source for near", "tank@2": "being sent to near", "tank@3": "being sent to near", "tank@4": "last"}},
		{"snapshots of an interrupted receive", func() *RunState {
			v := newRunState(t, parseListing("tank@1 @2 @3"), keepOne+near).withTarget(parseListing("vault/t@1"))
			v.Targets[0].Partial = map[uint64]bool{2: true}
			return v
		}, replicate.SourceSide, []string{}, map[string]string{"tank@1": "incremental source for near", "tank@2": "being sent to near", "tank@3": "last"}},
		{"the incremental source follows received snapshots", func() *RunState {
			return newRunState(t, parseListing("tank@1 @2 @3"), keepOne+near).withCopy(replicate.CopyState{BaseGUID: 1}).withTarget(parseListing("vault/t@1 @2 @3"))
		}, replicate.SourceSide, []string{"tank@1", "tank@2"}, map[string]string{"tank@3": "last"}},
		{"on a target", func() *RunState {
			return newRunState(t, parseListing("tank@2 @3"), near+"[job.target.retention]\nlast = 1\n").withTarget(parseListing("vault/t@1 @2 @3", "vault/t/other@1 @2"))
		}, "near", []string{"vault/t@1", "vault/t@2"}, map[string]string{"vault/t@3": "last"}},
		{"another dataset on a target", func() *RunState {
			return newRunState(t, parseListing("tank@5"), near+"[job.target.retention]\nlast = 1\n").withTarget(parseListing("vault/t@1 @2 @3"))
		}, "near", []string{}, map[string]string{"vault/t@1": "the source lacks these snapshots", "vault/t@2": "the source lacks these snapshots", "vault/t@3": "last"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := Decide(tt.view())
			require.Empty(t, d.NeedCreated)
			require.Len(t, d.Prunings, 1)
			require.Equal(t, tt.side, d.Prunings[0].Side)
			require.Equal(t, tt.remove, d.Prunings[0].Remove)
			require.Equal(t, tt.stays, texts(d.Prunings[0].KeepReasons))
			require.Empty(t, d.Prunings[0].Error)
		})
	}
}

// TestDecideWaits expects that Decide prunes nothing before the run has tried all targets and knows
// the creation times of adopted snapshots, or if a limit is exceeded.
func TestDecideWaits(t *testing.T) {
	t.Parallel()
	v := newRunState(t, parseListing("tank@1 @2 @3"), "prune_limit = 1\n[job.retention]\nlast = 1\n"+near)
	require.Empty(t, Decide(v).Prunings)
	v.withTarget(nil)
	created := v.Created
	v.Created = nil
	d := Decide(v)
	require.Empty(t, d.Prunings)
	require.Equal(t, map[string][]string{replicate.SourceSide: {"tank@1", "tank@2", "tank@3"}}, d.NeedCreated)
	v.QueryErrors = map[string]error{replicate.SourceSide: errors.New("it is away")}
	d = Decide(v)
	require.Empty(t, d.NeedCreated)
	require.Empty(t, d.Prunings[0].Remove)
	require.ErrorContains(t, d.Prunings[0].Failed(), "it is away")
	require.Empty(t, d.Prunings[0].Results["tank"].Fingerprint, "inspected again")

	v.Created, v.QueryErrors = created, nil
	v.Survey.State.Dataset("tank").Histories = map[string]*retention.History{replicate.SourceSide: {Dataset: 1000, Seen: 3, Kept: 3}}
	p := Decide(v).Prunings[0]
	require.True(t, p.Refused)
	require.ErrorContains(t, p.Failed(), "prune_limit")
	v.NoLimit = true
	p = Decide(v).Prunings[0]
	require.NoError(t, p.Failed())
	require.Equal(t, []string{"tank@1", "tank@2"}, p.Remove)
}

// TestDecideSkipsUnchanged expects that Decide skips a dataset that had nothing to prune until it
// changes.
func TestDecideSkipsUnchanged(t *testing.T) {
	t.Parallel()
	v := newRunState(t, parseListing("tank@1 @2"), "[job.retention]\nlast = 2\n")
	p := Decide(v).Prunings[0]
	require.Empty(t, p.Remove)
	p.Record(v.Survey.State)
	v.Created = nil
	d := Decide(v)
	require.Empty(t, d.NeedCreated)
	require.Empty(t, d.Prunings[0].Results)
	require.Equal(t, 2, d.Prunings[0].Kept)
	v.Survey.Source = parseListing("tank@1 @2 @3")
	require.NotEmpty(t, Decide(v).NeedCreated)
}

func TestDecideBookmarks(t *testing.T) {
	t.Parallel()
	source := parseListing("tank@4 #zxfer:j:1 #zxfer:j:2 #zxfer:j:3 #1")
	require.Equal(t, []string{"tank#zxfer:j:1"}, Decide(newRunState(t, source, near).withCopy(replicate.CopyState{BaseGUID: 2}).withTarget(nil)).Bookmarks)
	require.Equal(t, []string{"tank#zxfer:j:1", "tank#zxfer:j:2", "tank#zxfer:j:3"}, Decide(newRunState(t, source, near).withTarget(parseListing("vault/t@4"))).Bookmarks)
	require.Empty(t, Decide(newRunState(t, source, near).withTarget(nil)).Bookmarks, "its snapshots are unknown")
	require.Empty(t, Decide(newRunState(t, source, "[job.retention]\nlast = 1\n")).Bookmarks)
}

// TestDecideIsPure expects that Decide does not modify its input, and that a repetition has the
// same result.
func TestDecideIsPure(t *testing.T) {
	t.Parallel()
	for i := range 200 {
		r := rand.New(rand.NewPCG(uint64(i), 3))
		some := func(dataset string) *zfs.Listing {
			text := dataset + fmt.Sprintf("@%d", 1+r.IntN(3))
			for n := 4; n < 12; n++ {
				if r.IntN(2) == 0 {
					text += fmt.Sprintf(" @%d", n)
				}
			}
			return parseListing(text)
		}
		v := newRunState(t, some("tank"), fmt.Sprintf("[job.retention]\nlast = %d\nhourly = 3\n", 1+r.IntN(4))+near+"[job.target.retention]\nlast = 2\n")
		v.withCopy(replicate.CopyState{BaseGUID: uint64(r.IntN(9)), Sending: uint64(r.IntN(9)), Held: []replicate.Held{{Source: "tank@1", Target: "vault/t@1"}}})
		v.Survey.State.Dataset("tank").Histories = map[string]*retention.History{replicate.SourceSide: {Dataset: 1000, Seen: uint64(r.IntN(9)), Kept: uint64(r.IntN(9)), Dates: map[uint64]int64{3: 0}}}
		v.withTarget(some("vault/t"))
		text := func(x any) string {
			out, err := json.Marshal(x)
			require.NoError(t, err)
			return string(out)
		}
		before := text(v.Survey.State) + text(v.Survey.Source) + text(v.Targets)
		first := text(Decide(v))
		require.Equal(t, before, text(v.Survey.State)+text(v.Survey.Source)+text(v.Targets))
		require.Equal(t, first, text(Decide(v)))
	}
}

func TestBase(t *testing.T) {
	t.Parallel()
	v := func(kind zfs.VersionKind, guid uint64) zfs.Version {
		return zfs.Version{Kind: kind, Name: fmt.Sprint(guid), GUID: guid, CreateTXG: guid}
	}
	source := &zfs.Dataset{Versions: []zfs.Version{v("@", 1), v("#", 2), v("@", 3), v("@", 5)}}
	base, ok := CommonSnapshot(source, &zfs.Dataset{Versions: []zfs.Version{v("@", 1), v("@", 2), v("#", 3), v("@", 4)}})
	require.True(t, ok)
	require.Equal(t, uint64(2), base.GUID, "only a bookmark of the source is an incremental source")
	_, ok = CommonSnapshot(source, &zfs.Dataset{})
	require.False(t, ok)
}

// texts returns reasons as people read them.
func texts(reasons map[string]retention.Reason) map[string]string {
	out := map[string]string{}
	for name, why := range reasons {
		out[name] = why.String()
	}
	return out
}
