package importer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/size"
)

// passes is what zrepl's documentation says of a filter: the longest pattern
// counts, a dataset's own before a tree's.
func passes(f filter, name string) bool {
	best, pass := -1, false
	for _, r := range f {
		switch {
		case !r.below && r.path == name:
			return r.pass
		case r.covers(name) && len(r.path) >= best:
			best, pass = len(r.path), r.pass
		}
	}
	return pass
}

func TestFilterRoots(t *testing.T) {
	t.Parallel()
	names := []string{"tank", "tank/foo", "tank/foo/bar", "tank/foo/bar/loo", "tank/foo/baz", "tank/var", "tank/var/log", "zroot", "zroot/a", "zroot/a/b"}
	tests := []struct {
		name, text string
		jobs       int
		coarse     bool // a dataset alone is left out, which no pattern says
	}{
		{"the example of the documentation", `{"tank<": true, "tank/foo<": false, "tank/foo/bar": true}`, 2, false},
		{"two pools", `{"tank<": true, "zroot<": true}`, 2, false},
		{"one dataset", `{"zroot/a": true}`, 1, false},
		{"a tree without its top", `{"tank<": true, "tank": false}`, 1, false},
		{"nested alternation", `{"tank<": true, "tank/foo<": false, "tank/foo/bar<": true, "tank/foo/bar/loo<": false}`, 2, false},
		{"redundant", `{"tank<": true, "tank/foo<": true, "tank/foo/bar<": false}`, 1, false},
		{"nothing", `{"tank<": false}`, 0, false},
		{"a leaf", `{"tank<": true, "tank/var/log": false}`, 1, false},
		{"a dataset with others below", `{"tank<": true, "tank/foo": false}`, 1, true},
		{"a tree and its top", `{"tank/foo<": false, "tank/foo": true, "tank<": true}`, 2, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v, err := parseYAML("x", []byte(tt.text))
			require.NoError(t, err)
			f, err := parseFilter(v)
			require.NoError(t, err)
			roots := f.roots()
			require.Len(t, roots, tt.jobs)
			for _, n := range names {
				sent := 0
				for _, r := range roots {
					j := replicate.Job{Source: r.path, Recursive: r.recursive, Exclude: r.exclude}
					if (n == r.path || r.recursive) && j.Selects(r.path, n) {
						sent++
					}
				}
				want := 0
				if passes(f, n) {
					want = 1
				}
				if tt.coarse && strings.HasPrefix(n, "tank/foo/") {
					want = 0
				}
				require.Equal(t, want, sent, n)
			}
		})
	}
}

// The grid reaches as far back as zrepl's, and keeps at least as many there.
func TestGridReaches(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 15, 13, 37, 0, 0, time.UTC)
	for _, text := range []string{"1x1h(keep=all) | 24x1h | 14x1d", "1x1h(keep=all) | 24x1h | 35x1d | 6x30d", "24x1h | 4x1w | 12x30d", "12x2h", "3x1d(keep=2)", "1x36h | 10x1d", "2x365d"} {
		buckets, err := parseGrid(text)
		require.NoError(t, err, text)
		g, _ := gridOf(buckets, 30*time.Minute)
		var points []replicate.Point
		for at := now; at.After(now.AddDate(-3, 0, 0)); at = at.Add(-30 * time.Minute) {
			points = append(points, replicate.Point{Name: at.Format(time.RFC3339), Time: at})
		}
		kept, oldest := g.Keep(points), now
		for _, p := range points {
			if kept[p.Name] != "" && p.Time.Before(oldest) {
				oldest = p.Time
			}
		}
		var end time.Duration
		count := 0 // that zrepl keeps
		for _, b := range buckets {
			end += time.Duration(b.repeat) * b.span
			each := b.keep
			if each == 0 {
				each = int(b.span / (30 * time.Minute))
			}
			count += b.repeat * each
		}
		last := buckets[len(buckets)-1].span
		require.GreaterOrEqual(t, now.Sub(oldest), end-last, text)
		require.GreaterOrEqual(t, len(kept), count, text)
	}
}

func TestParseGrid(t *testing.T) {
	t.Parallel()
	got, err := parseGrid(" 1x1h(keep=all)|24x1h | 2 x 3d ( keep=2 )")
	require.NoError(t, err)
	require.Equal(t, []bucket{{1, time.Hour, 0}, {24, time.Hour, 1}, {2, 3 * day, 2}}, got)
	for _, text := range []string{"", "24", "0x1h", "1x", "1x1h(keep=0)", "1x1h(keep=some)", "1x1h | ", "9999999x1h", "1x99999999999d"} {
		_, err := parseGrid(text)
		require.Error(t, err, "%q", text)
	}
}

func TestZreplRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]size.Size{"12345 B": 12345, "23.5 MiB": 24641536, "100 Mbit": 12_500_000, "8 Kib": 1024, "-1 B": 0, "1GB": 1_000_000_000} {
		got, err := zreplRate(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "10", "10 MiB/s", "many", "1e9 B"} {
		_, err := zreplRate(text)
		require.Error(t, err, "%q", text)
	}
}

// A grid is never written where it could remove what another rule keeps.
func TestRetentionWithheld(t *testing.T) {
	t.Parallel()
	const job = "jobs:\n- name: a\n  type: push\n  connect: {type: local, listener_name: l, client_identity: c}\n  filesystems: {\"tank<\": true}\n" +
		"  snapshotting: {type: manual}\n  pruning:\n    keep_receiver: [{type: last_n, count: 3, regex: '^zrepl_'}]\n    keep_sender:\n"
	tests := []struct {
		name, rules string
		kept        bool // the grid is in the job
	}{
		{"one set of names", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n", true},
		{"others' stay", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, negate: true, regex: '^zrepl_.*'}\n", true},
		{"names that differ at their beginning", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, regex: '^manual_'}\n", true},
		{"names that may be among them", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, regex: 'keep'}\n", false},
		{"two sets of names", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: last_n, count: 9, regex: '^other_'}\n", false},
		{"all, but some by hand", "    - {type: last_n, count: 9}\n    - {type: regex, regex: '^manual_'}\n", true}, // the receiver's names are adopted
		{"an expression without patterns", "    - {type: grid, grid: 24x1h, regex: '^z+_'}\n", false},
		{"everything stays", "    - {type: grid, grid: 24x1h, regex: '^zrepl_'}\n    - {type: regex, regex: '.*'}\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := Import([]Input{{Name: "zrepl.yml", Text: []byte(job + tt.rules)}}, Options{})
			require.NoError(t, err)
			f, err := replicate.Parse("x", []byte(filled(r.Text)))
			require.NoError(t, err)
			require.Equal(t, tt.kept, f.Jobs[0].Retention != nil, r.Text)
			reported := slices.ContainsFunc(r.Entries, func(e Entry) bool { return strings.Contains(e.Why, "[job.retention]") })
			require.Equal(t, !tt.kept && tt.name != "everything stays", reported, fmt.Sprint(r.Entries))
		})
	}
}
