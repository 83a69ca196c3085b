package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// TestHistory plans streams for one dataset's history. The source is tank/a, the target vault/a, or
// "absent" if it does not exist.
func TestHistory(t *testing.T) {
	t.Parallel()
	const absent = "absent"
	latestOnly := func(r *Request) { r.LatestOnly = true }
	exclude := func(p ...string) func(*Request) { return func(r *Request) { r.ExcludeSnapshots = p } }
	include := func(p ...string) func(*Request) { return func(r *Request) { r.IncludeSnapshots = p } }
	snapshot := func(s string) func(*Request) { return func(r *Request) { r.Snapshot = s } }
	rollback := func(r *Request) { r.Rollback = true }
	newest := func(n int) func(*Request) { return func(r *Request) { r.Newest = n } }
	since := func(n int) func(*Request) { // @s0 was taken in hour 0, @s1 in hour 1 …
		return func(r *Request) { r.Since = time.Unix(int64(n)*3600, 0) }
	}
	first := func(f First) func(*Request) { return func(r *Request) { r.First = f } }
	asked := func(fs ...func(*Request)) func(*Request) {
		return func(r *Request) {
			for _, f := range fs {
				f(r)
			}
		}
	}
	tests := []struct {
		name           string
		ask            func(*Request)
		source, target string
		want           string
		loses          string
		note           string
	}{
		{"one snapshot", nil, "@a,1", absent, "full @a", "", ""},
		{"history is kept", nil, "@a,1 @b,2 @c,3", absent, "full @a, @a>@b>@c", "", ""},
		{"two snapshots", nil, "@a,1 @b,2", absent, "full @a, @a>@b", "", ""},
		{"without history", latestOnly, "@a,1 @b,2 @c,3", absent, "full @c", "", ""},
		{"older snapshot requested", snapshot("b"), "@a,1 @b,2 @c,3", absent, "full @a, @a>@b", "", ""},
		{"the first excluded", exclude("a"), "@a,1 @b,2 @c,3", absent, "full @b, @b>@c", "", ""},
		{"intermediate snapshot excluded", exclude("b"), "@a,1 @b,2 @c,3", absent, "full @a, @a>@c", "", ""},
		{"ranges around an excluded snapshot", exclude("x*"), "@a,1 @b,2 @c,3 @x,4 @d,5 @e,6 @f,7", absent, "full @a, @a>@b>@c, @c>@d, @d>@e>@f", "", ""},
		{"the newest excluded", exclude("c"), "@a,1 @b,2 @c,3", absent, "full @a, @a>@b", "", ""},
		{"excluded, but requested by name", asked(exclude("c"), snapshot("c")), "@a,1 @b,2 @c,3", absent, "full @a, @a>@b>@c", "", ""},
		{"included by pattern", include("daily-*", "w?"), "@daily-1,1 @hourly,2 @w1,3 @daily-2,4", absent, "full @daily-1, @daily-1>@w1, @w1>@daily-2", "", ""},
		{"exclude beats include", asked(include("a*"), exclude("a2")), "@a1,1 @a2,2 @a3,3 @b,4", absent, "full @a1, @a1>@a3", "", ""},
		{"included by a regular expression", include("re:^(daily|w[0-9])"), "@daily-1,1 @hourly-daily,2 @w1,3 @daily-2,4", absent, "full @daily-1, @daily-1>@w1, @w1>@daily-2", "", ""},
		{"excluded by a regular expression", exclude("re:tmp"), "@a,1 @xtmpx,2 @c,3", absent, "full @a, @a>@c", "", ""},
		{"the newest two", newest(2), "@a,1 @b,2 @c,3", absent, "full @b, @b>@c", "", ""},
		{"the newest two of these", asked(newest(2), exclude("b")), "@a,1 @b,2 @c,3 @d,4", absent, "full @c, @c>@d", "", ""},
		{"the newest two up to one", asked(newest(2), snapshot("b")), "@a,1 @b,2 @c,3", absent, "full @a, @a>@b", "", ""},
		{"the newest nine of three", newest(9), "@a,1 @b,2 @c,3", absent, "full @a, @a>@b>@c", "", ""},
		{"all since", since(2), series(5), absent, "full @s2, @s2>@s3>@s4", "", ""},
		{"none since, the newest anyway", since(9), series(5), absent, "full @s4", "", ""},
		{"the newest two since", asked(since(1), newest(2)), series(5), absent, "full @s3, @s3>@s4", "", ""},
		{"first is newest", first(FirstNewest), "@a,1 @b,2 @c,3", absent, "full @c", "", ""},
		{"first is all", first(FirstAll), "@a,1 @b,2 @c,3", absent, "full @a, @a>@b>@c", "", ""},
		{"first is newest, not a first send", first(FirstNewest), "@a,1 @b,2 @c,3", "@a,1", "@a>@b>@c", "", ""},
		{"first is fail, not a first send", first(FirstFail), "@a,1 @b,2", "@a,1", "@a>@b", "", ""},
		{"bookmarks hold no data", nil, "#z,9 @a,1 #a,1", absent, "full @a", "", ""},

		{"incremental", nil, "@a,1 @b,2", "@a,1", "@a>@b", "", ""},
		{"several incremental sends", nil, "@a,1 @b,2 @c,3 @d,4", "@a,1", "@a>@b>@c>@d", "", ""},
		{"newest common", nil, "@a,1 @b,2 @c,3", "@a,1 @b,2", "@b>@c", "", ""},
		{"GUIDs, not names", nil, "@a,1 @renamed,2 @c,3", "@a,1 @b,2", "@renamed>@c", "", ""},
		{"created later, sorts earlier", nil, "@z,1 @a,2", "@z,1", "@z>@a", "", ""},
		{"without intermediate snapshots", latestOnly, "@a,1 @b,2 @c,3", "@a,1", "@a>@c", "", ""},
		{"the newest two, after an older source", newest(2), series(5), "@s0,1", "@s0>@s3, @s3>@s4", "", ""},
		{"the newest two, after one of them", newest(2), series(5), "@s3,4", "@s3>@s4", "", ""},
		{"all since, after an older source", since(2), series(5), "@s0,1", "@s0>@s2, @s2>@s3>@s4", "", ""},
		{"all since, from a bookmark", since(2), "#m,1 @s1,2 @s2,3 @s3,4", "@s0,1", "#m>@s2, @s2>@s3", "", ""},
		{"excluded after the incremental source", exclude("b"), "@a,1 @b,2 @c,3 @d,4", "@a,1", "@a>@c, @c>@d", "", ""},
		{"excluded incremental source", exclude("a"), "@a,1 @b,2", "@a,1", "@a>@b", "", ""},
		{"older snapshots that the target lacks", nil, "@a,1 @b,2 @c,3", "@b,2", "@b>@c", "", ""},
		{"from a bookmark", nil, "#a,1 @b,2", "@a,1", "#a>@b", "", ""},
		{"from a bookmark, then a range", nil, "#a,1 @b,2 @c,3 @d,4", "@a,1", "#a>@b, @b>@c>@d", "", ""},
		{"a snapshot rather than its bookmark", nil, "@a,1 #mark,1 @b,2 @c,3", "@a,1", "@a>@b>@c", "", ""},
		{"a newer bookmark rather than an older snapshot", nil, "@a,1 #b,2 @c,3", "@a,1 @b,2", "#b>@c", "", ""},
		{"bookmarks of the target are ignored", nil, "@a,1 @b,2 @c,3", "@a,1 #b,2", "@a>@b>@c", "", ""},

		{"up to date", nil, "@a,1 @b,2", "@a,1 @b,2", "", "", ""},
		{"up to date under another name", nil, "@a,1", "@other,1", "", "", ""},
		{"ahead", snapshot("a"), "@a,1 @b,2", "@a,1 @b,2", "", "", "vault/a is ahead: it has @a and newer snapshots, up to @b"},

		{"rollback of foreign snapshots", rollback, "@a,1 @b,2", "@a,1 @x,8 @y,9", "-F @a>@b", "vault/a@x vault/a@y", ""},
		{"rollback with a newer common snapshot", asked(rollback, snapshot("b")), "@a,1 @b,2 @c,3", "@a,1 @c,3", "-F @a>@b", "vault/a@c", ""},
		{"rollback without loss", rollback, "@a,1 @b,2", "@a,1", "@a>@b", "", ""},
		{"rollback frees a name", rollback, "@a,1 @x,2", "@a,1 @x,8", "-F @a>@x", "vault/a@x", ""},
		{"only the first step rolls back", asked(rollback, exclude("b")), "@a,1 @b,2 @c,3 @d,4", "@a,1 @x,8", "-F @a>@c, @c>@d", "vault/a@x", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req := request()
			if tt.ask != nil {
				tt.ask(&req)
			}
			datasets := []*zfs.Dataset{dataset(t, "tank/a", tt.source)}
			have := map[uint64]bool{} // on the target
			if tt.target != absent {
				datasets = append(datasets, dataset(t, "vault/a", tt.target, "written=0"))
				for _, v := range datasets[1].Snapshots() {
					have[v.GUID] = true
				}
			}
			state := stateOf(datasets...)
			state.SourceCreated = map[string]time.Time{}
			for _, name := range NeedCreated(req, &state) {
				var n int64
				_, err := fmt.Sscanf(name, "tank/a@s%d", &n)
				require.NoError(t, err)
				state.SourceCreated[name] = time.Unix(n*3600, 0)
			}
			p := mustMake(t, req, state)
			d := onlyDataset(t, p)
			require.Equal(t, tt.want, stepsText(d))
			loses := tt.loses
			if loses != "" {
				loses += " snapshots taken of vault/a until the stream is received"
			}
			require.Equal(t, loses, strings.Join(d.Loses, " "))
			require.Equal(t, p.Steps(), len(d.Steps))
			if tt.note != "" {
				require.Contains(t, notes(p), tt.note)
			} else {
				require.Empty(t, p.Notes)
			}
			if tt.name == "rollback frees a name" {
				require.Equal(t, []string{"vault/a@x"}, d.DestroyedFirst, "ZFS would refuse the name")
			} else {
				require.Empty(t, d.DestroyedFirst)
			}
			for _, st := range d.Steps {
				require.NotEmpty(t, st.Why)
				require.Equal(t, "vault/a", st.Receive.Target)
				if st.Kind != Full {
					require.True(t, have[st.BaseGUID], "incremental source of %s", stepsText(d))
				}
				have[st.ToGUID] = true
				_, err := zfs.SendArgs(st.Send)
				require.NoError(t, err)
				_, err = zfs.ReceiveArgs(st.Receive)
				require.NoError(t, err)
			}
			require.True(t, have[d.Final.GUID])
		})
	}
}

// TestHistoryConflicts expects that conflicts list the histories of both sides and a hint.
func TestHistoryConflicts(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name           string
		ask            func(*Request)
		source, target string
		properties     []string // properties of the target
		id             string
		texts          []string
	}{
		{"no snapshot", nil, "#a,1", "", nil, NoSnapshot, []string{"alpha:tank/a has no snapshot", "{{snapshot =}}"}},
		{"unknown snapshot", func(r *Request) { r.Snapshot = "dayly-3" }, "@weekly,1 @daily-1,2 @daily-2,3", "", nil, NoSnapshot,
			[]string{"@dayly-3", "@daily-2, @daily-1, @weekly", "{{snapshot dayly-3}}"}},
		{"patterns exclude everything", func(r *Request) { r.IncludeSnapshots = []string{"x*"} }, "@a,1", "", nil, NoSnapshot, []string{"{{include-snaps}}", "@a"}},
		{"diverged", nil, "@a,1 @b,2", "@a,1 @theirs,9", nil, Diverged, []string{"beta:vault/a has diverged", "@a", "@theirs", "alpha:tank/a", "@b", "{{rollback}}"}},
		{"ahead of a snapshot it lacks", func(r *Request) { r.Snapshot = "b" }, "@a,1 @b,2 @c,3", "@a,1 @c,3", nil, Diverged, []string{"beta:vault/a has @c", "tank/a@b"}},
		{"only newer ones in common", func(r *Request) { r.Snapshot = "a" }, "@a,1 @b,2", "@b,2", nil, Diverged, []string{"is at @b", "tank/a@a"}},
		{"only newer ones in common, rollback", func(r *Request) { r.Snapshot, r.Rollback = "a", true }, "@a,1 @b,2", "@b,2", nil, Diverged, []string{"is at @b"}},
		{"modified", nil, "@a,1 @b,2", "@a,1", []string{"written=4096"}, Modified,
			[]string{"beta:vault/a has been modified since its most recent snapshot @a", "4096", "zfs rollback vault/a@a", "zfs set readonly=on vault/a"}},
		{"no common snapshot", nil, "@a,1 @b,2", "@x,8 @y,9", nil, NoCommon, []string{"no snapshot in common", "@b, @a", "@y, @x", "zfs rename vault/a vault/a-old"}},
		{"nothing in common, rollback", func(r *Request) { r.Rollback = true }, "@a,1", "@x,8", nil, NoCommon, nil},
		{"one name, two snapshots", nil, "@a,1 @daily,2", "@daily,9", nil, NoCommon, []string{"@daily exists on both sides but is not the same snapshot", "GUIDs 2 and 9"}},
		{"an empty dataset", nil, "@a,1", "", []string{"written=24576"}, NoCommon, []string{"beta:vault/a exists and has no snapshot"}},
		{"an empty dataset, rollback", func(r *Request) { r.Rollback = true }, "@a,1", "", []string{"written=24576"}, NoCommon, []string{"no snapshot"}},
		{"name in use", nil, "@a,1 @b,2", "@b,8 @a,1", nil, NameTaken, []string{"@b exists on both sides but is not the same snapshot", "zfs rename vault/a@b @b-old"}},
		{"name of an intermediate snapshot in use", nil, "@a,1 @b,2 @c,3", "@b,8 @a,1", nil, NameTaken, []string{"@b exists"}},
		{"existing volume", nil, "@a,1", "@a,1", []string{"type=volume"}, TypeMismatch, []string{"tank/a is a filesystem", "vault/a is a volume"}},
		{"being received", nil, "@a,1", "", []string{"inconsistent=1"}, HalfReceived, []string{"beta:vault/a is being received"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req := request()
			if tt.ask != nil {
				tt.ask(&req)
			}
			p := mustMake(t, req, stateOf(dataset(t, "tank/a", tt.source), dataset(t, "vault/a", tt.target, tt.properties...)))
			requireConflict(t, p, tt.id, tt.texts...)
			c := p.Conflicts[0]
			require.Equal(t, "tank/a", c.Source)
			require.Equal(t, "vault/a", c.Target)
			require.Len(t, c.SourceVersions, len(strings.Fields(tt.source)))
			require.Len(t, c.TargetVersions, len(strings.Fields(tt.target)))
			if len(p.Datasets) > 0 {
				require.Empty(t, p.Datasets[0].Loses)
			}
		})
	}
}

func TestRollbackOfChanges(t *testing.T) {
	t.Parallel()
	p := mustMake(t, request().with(func(r *Request) { r.Rollback = true }),
		stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "@a,1", "written=4096")))
	d := onlyDataset(t, p)
	require.Equal(t, "-F @a>@b", stepsText(d))
	require.Equal(t, []string{"the 4096 bytes written to vault/a since @a", "snapshots taken of vault/a until the stream is received"}, d.Loses)
}

// TestRollbackOfMountedTarget expects that a mounted target is no problem if Rollback allows its
// loss. It may change until the stream starts, at least by access times.
func TestRollbackOfMountedTarget(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rollback bool
		target   []string
		loses    []string
	}{
		{true, []string{"mounted=yes", "written=0"}, []string{"data written to vault/a until the stream is received", "snapshots taken of vault/a until the stream is received"}},
		{true, []string{"mounted=yes", "readonly=on"}, nil},
		{true, []string{"mounted=no"}, nil},
		{false, []string{"mounted=yes"}, nil},
	} {
		p := mustMake(t, request().with(func(r *Request) { r.Rollback = tt.rollback }),
			stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "@a,1", tt.target...)))
		d := onlyDataset(t, p)
		require.Equal(t, tt.loses, d.Loses, tt)
		require.Equal(t, tt.loses != nil, d.Steps[0].Receive.Rollback, tt)
	}
}

// TestRollbackOfProtectedSnapshots expects that snapshots that ZFS could not roll back are refused before
// anything is sent.
func TestRollbackOfProtectedSnapshots(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Rollback = true })
	s := stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "@o,7 @a,1 @x,8 @y,9"))
	p := mustMake(t, req, s)
	require.Equal(t, []string{"vault/a@x", "vault/a@y"}, NeedLosses(p))
	CheckLosses(&p, s)
	require.Empty(t, p.Conflicts)

	s.TargetHolds = map[string][]string{"vault/a@o": {"old"}, "vault/a@y": {"keep", "audit"}}
	s.TargetClones = map[string][]string{"vault/a@x": {"vault/c"}}
	CheckLosses(&p, s)
	requireConflict(t, p, Kept, "beta:vault/a cannot be", "@x has the clone vault/c", "@y is held (keep)", "@y is held (audit)",
		"zfs release keep vault/a@y", "zfs destroy vault/c")
	require.NotContains(t, p.Conflicts[0].Summary, "@o")
	require.Empty(t, NeedLosses(mustMake(t, req, stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "@a,1", "written=4096")))))
}

func TestEvidenceIsBounded(t *testing.T) {
	t.Parallel()
	p := mustMake(t, request(), stateOf(dataset(t, "tank/a", series(40)), dataset(t, "vault/a", "@x,100 @y,101")))
	requireConflict(t, p, NoCommon, "@s39, @s38, @s37, @s36, @s35 and 35 more")
	require.Len(t, p.Conflicts[0].SourceVersions, maxEvidence)
	require.NotContains(t, p.Conflicts[0].Summary, "@s34")
}

// TestImpossibleBookmarkIsRefused expects that a bookmark that could not be created after the transfer is
// refused before it.
func TestImpossibleBookmarkIsRefused(t *testing.T) {
	t.Parallel()
	req := request()
	req.Bookmark = true
	requireConflict(t, mustMake(t, req, stateOf(dataset(t, "tank/a", "#b,9 @a,1 @b,2"))), NameTaken, "alpha:tank/a#b already", "zfs destroy 'tank/a#b'")
	require.Empty(t, mustMake(t, req, stateOf(dataset(t, "tank/a", "@a,1 @b,2 #b,2"))).Conflicts, "its own bookmark")
	state := stateOf(dataset(t, "tank/a", "@a,1"))
	state.Source.Pool.Features["bookmarks"] = "disabled"
	requireConflict(t, mustMake(t, req, state), FeatureMissing, "zpool set feature@bookmarks=enabled tank")
}

// TestLongHistoryIsSplit expects that a long history is sent in several consecutive
// streams. A request lists every snapshot of its stream and is limited.
func TestLongHistoryIsSplit(t *testing.T) {
	t.Parallel()
	d := &zfs.Dataset{Name: "tank/a"}
	for i := range 25_000 {
		d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: fmt.Sprint("s", i), GUID: uint64(i + 1), CreateTXG: uint64(i + 1)})
	}
	last := d.Versions[len(d.Versions)-1]
	all := (&Request{}).segments(d, 0, last, true)
	require.Len(t, all, 4, "the first alone, then 24,999")
	carried := 0
	for _, r := range all {
		require.LessOrEqual(t, len(r.through), maxThrough)
		carried += len(r.through) + 1
	}
	require.Equal(t, len(d.Versions), carried)
	require.Equal(t, last, all[3].to)
}

func TestPattern(t *testing.T) {
	t.Parallel()
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{"daily-*", "daily-1", true},
		{"daily", "daily-1", false}, // a shell pattern matches the whole name
		{"re:daily", "x-daily-1", true},
		{"re:^daily", "x-daily-1", false},
		{"re:^daily-[0-9]+$", "daily-12", true},
		{"re:^daily-[0-9]+$", "daily-12x", false},
		{"re:(?i)DAILY", "daily", true},
		{"[r]e:x", "re:x", true},
		{"re:.*", "", true},
	}
	for _, tt := range tests {
		p, err := ParsePattern(tt.pattern)
		require.NoError(t, err, tt.pattern)
		require.Equal(t, tt.want, p.Match(tt.name), "%+v", tt)
		require.Equal(t, tt.want, Matches([]string{"nothing", tt.pattern}, tt.name), "%+v", tt)
	}
	for _, bad := range []string{"", "re:", "re:(", `re:(?!x)`, "[a", `re:a\1`} {
		_, err := ParsePattern(bad)
		require.Error(t, err, bad)
		require.False(t, Matches([]string{bad}, "a"), "malformed patterns match nothing")
	}
}

// TestFirstFailRefuses expects that FirstFail refuses a dataset that is new on the target, also a clone
// whose origin exists.
func TestFirstFailRefuses(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.First, r.Recursive = FirstFail, true })
	requireConflict(t, mustMake(t, req, stateOf(dataset(t, "tank/a", "@a,1"))), FirstRefused, "vault/a", "{{first all}}", "{{first newest}}")
	state := stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "tank/a/c", "@x,5", "origin=tank/a@a"), dataset(t, "vault/a", "@a,1", "written=0"))
	requireConflict(t, mustMake(t, req, state), FirstRefused, "vault/a/c")
	req.First = FirstNewest
	require.Equal(t, "tank/a: @a>@b\ntank/a/c: clone tank/a@a>@x after tank/a", planText(mustMake(t, req, state)))
}
