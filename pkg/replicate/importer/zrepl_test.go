package importer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/size"
)

// matchesFilter implements zrepl's documentation of filters: the longest pattern counts, and a pattern for
// a dataset precedes one for a tree.
func matchesFilter(filesystems map[string]bool, name string) bool {
	if pass, ok := filesystems[name]; ok {
		return pass
	}
	best, pass := -1, false
	for pattern, p := range filesystems {
		if top, tree := strings.CutSuffix(pattern, "<"); tree && isWithin(top, name) && len(top) > best {
			best, pass = len(top), p
		}
	}
	return pass
}

func TestFilter(t *testing.T) {
	t.Parallel()
	all := []string{"tank", "tank/foo", "tank/foo/bar", "tank/foo/bar/loo", "tank/foo/baz", "tank/var", "tank/var/log", "zroot", "zroot/a", "zroot/a/b"}
	tests := []struct {
		name, text string
		jobs       int
		missing    string // datasets that zrepl sends and zxfer does not: the user must add them
	}{
		{"the example of the documentation", `{"tank<": true, "tank/foo<": false, "tank/foo/bar": true}`, 1, "tank/foo/bar"},
		{"two pools", `{"tank<": true, "zroot<": true}`, 2, ""},
		{"one dataset", `{"zroot/a": true}`, 1, ""},
		{"a tree without its root", `{"tank<": true, "tank": false}`, 1, ""},
		{"nested alternation", `{"tank<": true, "tank/foo<": false, "tank/foo/bar<": true, "tank/foo/bar/loo<": false}`, 1, "tank/foo/bar"},
		{"redundant", `{"tank<": true, "tank/foo<": true, "tank/foo/bar<": false}`, 1, ""},
		{"nothing", `{"tank<": false}`, 0, ""},
		{"a leaf", `{"tank<": true, "tank/var/log": false}`, 1, ""},
		{"a dataset with descendants", `{"tank<": true, "tank/foo": false}`, 1, ""},
		{"a tree and a dataset in it", `{"tank<": true, "tank/foo<": false, "zroot": true}`, 2, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			filesystems := map[string]bool{}
			require.NoError(t, yaml.Unmarshal([]byte(tt.text), filesystems))
			z := &zrepl{state: &state{}}
			drafts, err := z.sources(&zreplJob{Filesystems: filesystems}, 1)
			require.NoError(t, err)
			require.Len(t, drafts, tt.jobs)
			missing := false
			for _, n := range all {
				sent := 0
				for _, d := range drafts {
					if (n == d.Source || d.Recursive) && d.SelectsName(d.Source, n) {
						sent++
					}
				}
				require.LessOrEqual(t, sent, 1)
				if !matchesFilter(filesystems, n) {
					require.Zero(t, sent, "%s differs from zrepl", n)
				} else if sent == 0 {
					require.NotEmpty(t, tt.missing, n)
					require.True(t, isWithin(tt.missing, n), n)
					missing = true
				}
			}
			require.Equal(t, tt.missing != "", missing)
			require.Equal(t, missing || tt.jobs == 0, len(z.entries) > 0)
		})
	}
}

// TestGridCoversZreplRetention expects that the retention policy covers as much time as zrepl's at any date, and
// keeps at least as many snapshots.
func TestGridCoversZreplRetention(t *testing.T) {
	t.Parallel()
	for i, text := range []string{"1x1h(keep=all) | 24x1h | 14x1d", "1x1h(keep=all) | 24x1h | 35x1d | 6x30d", "24x1h | 4x1w | 12x30d", "12x2h", "3x1d(keep=2)", "1x36h | 10x1d", "2x365d", "1x30d"} {
		now := date(rand.New(rand.NewPCG(uint64(i), 14)))
		buckets, err := (&zrepl{}).grid(1, text)
		require.NoError(t, err, text)
		g := &retention.Grid{}
		end := addBuckets(g, buckets)
		var points []retention.Point
		for at := now; at.After(now.AddDate(-3, 0, 0)); at = at.Add(-30 * time.Minute) {
			points = append(points, retention.Point{Name: at.Format(time.RFC3339), Time: at, Order: uint64(at.Unix())})
		}
		kept, oldest := g.Keep(points), now
		for _, p := range points {
			if kept[p.Name] != "" && p.Time.Before(oldest) {
				oldest = p.Time
			}
		}
		count := 0 // number of snapshots that zrepl keeps
		for _, b := range buckets {
			each := b.keep
			if each == 0 {
				each = int(b.span / (30 * time.Minute))
			}
			count += b.repeat * each
		}
		require.GreaterOrEqual(t, now.Sub(oldest), end-30*time.Minute, "%s on %s", text, now)
		require.GreaterOrEqual(t, len(kept), count, text)
	}
}

func TestGrid(t *testing.T) {
	t.Parallel()
	z := &zrepl{file: "x"}
	got, err := z.grid(1, " 1x1h(keep=all)|24x1h | 2 x 3d ( keep=2 )")
	require.NoError(t, err)
	require.Equal(t, []bucket{{1, time.Hour, 0}, {24, time.Hour, 1}, {2, 3 * day, 2}}, got)
	for _, text := range []string{"", "24", "0x1h", "1x", "1x1h(keep=0)", "1x1h(keep=some)", "1x1h | ", "9999999x1h", "1x99999999999d"} {
		_, err := z.grid(1, text)
		require.Error(t, err, "%q", text)
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]size.Size{"12345 B": 12345, "23.5 MiB": 24641536, "1GB": 1_000_000_000, "-1 B": 0, "": 0,
		"100 Mbit": -1, "8 Kib": -1, "10": -1, "10 MiB/s": -1, "many": -1} {
		z, d := &zrepl{state: &state{}}, &draft{}
		z.limit(d, 1, zreplLimit{Max: text})
		require.Equal(t, max(want, 0), d.Transfer.Bandwidth, text)
		require.Equal(t, want < 0, len(z.entries) == 1, text)
	}
}

// TestUnsafeRetentionIsOmitted expects that no retention policy is written if it could destroy snapshots
// that another rule keeps.
func TestUnsafeRetentionIsOmitted(t *testing.T) {
	t.Parallel()
	const job = "jobs:\n- name: a\n  type: push\n  connect: {type: local, listener_name: l, client_identity: c}\n  filesystems: {\"tank<\": true}\n" +
		"  snapshotting: {type: manual}\n  pruning:\n    keep_receiver: [{type: last_n, count: 3, regex: '^zrepl_'}]\n    keep_sender:\n"
	tests := []struct {
		name, rules string
		kept        bool // the job has the retention policy
	}{
		{"one set of names", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n", true},
		{"foreign snapshots are kept", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, negate: true, regex: '^zrepl_.*'}\n", true},
		{"names with different prefixes", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, regex: '^manual_'}\n", true},
		{"names that may match", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, regex: 'keep'}\n", false},
		{"names by suffix", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, regex: '_keep$'}\n", false},
		{"two sets of names", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: last_n, count: 9, regex: '^other_'}\n", false},
		{"a narrower set", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: last_n, count: 9, regex: '^zrepl_a'}\n", false},
		{"all, some manual", "    - {type: last_n, count: 9}\n    - {type: regex, regex: '^manual_'}\n", true}, // the receiver's names are adopted
		{"an expression that is not a string", "    - {type: grid, grid: 24x1h, regex: '^z+_'}\n", false},
		{"unsent snapshots are kept", "    - {type: not_replicated}\n", false},
		{"zxfer keeps all snapshots", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, regex: '.*'}\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := Import([]Input{{Name: "zrepl.yml", Text: []byte(job + tt.rules)}}, Options{})
			require.NoError(t, err)
			f, err := jobfile.Parse("x", []byte(uncommented(r.Text)))
			require.NoError(t, err)
			require.Equal(t, tt.kept, f.Jobs[0].Retention != nil, r.Text)
			reported := slices.ContainsFunc(r.Left, func(e *Entry) bool { return strings.Contains(e.Do, "[job.retention]") })
			require.Equal(t, !tt.kept && tt.name != "zxfer keeps all snapshots", reported, r.Text)
		})
	}
}

// TestManualJobRemainsManual expects that a manual job remains manual, and that the report mentions it.
func TestManualJobRemainsManual(t *testing.T) {
	t.Parallel()
	for _, job := range []string{
		"type: push\n  filesystems: {\"tank<\": true}\n  snapshotting: {type: manual}",
		"type: push\n  filesystems: {\"tank<\": true}",
		"type: pull\n  root_fs: vault\n  interval: manual",
	} {
		f, r := jobsOf(t, Zrepl, "jobs:\n- name: a\n  connect: {type: ssh+stdinserver, host: h}\n  "+job+
			"\n- name: s\n  type: snap\n  filesystems: {\"tank<\": true}\n  snapshotting: {type: periodic, interval: 10m, prefix: zrepl_}\n")
		require.Equal(t, "a", f.Jobs[0].Name)
		require.Empty(t, f.Jobs[0].Schedule)
		require.Empty(t, f.Jobs[0].Snapshots.Take)
		require.True(t, slices.ContainsFunc(r.Left, func(e *Entry) bool { return strings.Contains(e.Do, "write schedule") }), r.Text)
		require.Equal(t, "*:0/10", f.Jobs[1].Schedule)
		require.Empty(t, f.Jobs[1].Targets[0].Retention)
	}
}
