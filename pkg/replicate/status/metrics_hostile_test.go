package status

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
)

// samples returns the sample lines of a text without their values.
func samples(t *testing.T, text []byte) (all []string) {
	t.Helper()
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name := line[:strings.LastIndex(line, "}")+1]
		require.False(t, seen[name], "the same sample twice makes the file invalid: %s", name)
		seen[name] = true
		all = append(all, name)
	}
	return all
}

// TestMetricsOfHostileRecords lets a user write the records of one job. It expects that the metrics
// file remains valid and bounded, names only what the job file names, and has the other jobs.
func TestMetricsOfHostileRecords(t *testing.T) {
	t.Parallel()
	attempt := map[string]any{"success": "2026-11-28T08:00:00Z", "target": "vault/a"}
	target := func(names ...string) map[string]any {
		m := map[string]any{}
		for _, n := range names {
			m[n] = attempt
		}
		return map[string]any{"targets": m, "alone": attempt}
	}
	damage := map[string]any{"pool": "tank", "target": "near", "errors": 1, "repair": "no"}
	many := map[string]any{}
	for i := range 20_000 {
		many[fmt.Sprintf("tank/user/%s%d", strings.Repeat("x", 200), i)] = target("near")
	}
	f := &replicate.File{Jobs: []replicate.Job{
		{Name: "home", Source: "tank/home", Schedule: "hourly", Targets: []replicate.Target{{Name: "near"}}},
		{Name: "user", User: "op", Source: "tank/user", Schedule: "hourly", Recursive: true, Targets: []replicate.Target{{Name: "near"}, {Name: "usb"}}},
	}}
	write := func(dir, job, file string, v any) {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, job), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, job, file), text, 0o600))
	}
	const own = `{job="user",source="tank/user",target="near"}`
	for name, c := range map[string]struct {
		state, drills any
		problem       string
	}{
		"twice": {state: map[string]any{"job": "home", "datasets": map[string]any{"tank/user": target("near", "near\xff", "near\xfe", "")},
			"last_run": map[string]any{"damaged": []any{damage, damage, damage}}}},
		"unknown names": {
			state: map[string]any{"datasets": map[string]any{"tank/user": target("near", "evil"), "tank/home": target("near"), "tank/userX": target("near"), "evil\n1": target("near"), "tank/user/evil@x": target("near")},
				"pools": map[string]any{"evil": map[string]any{"name": "tank", "checked": "2026-11-28T08:00:00Z"}, "": map[string]any{"name": "evil evil@", "checked": "2026-11-28T08:00:00Z"}},
				"disks": map[string]any{"evil": map[string]any{"state": "evil"}, "usb": map[string]any{"state": strings.Repeat("evil", 1<<20)}},
				"gone":  []any{map[string]any{"target": "evil"}}, "set_aside": []any{map[string]any{"target": "evil"}},
				"last_run": map[string]any{"damaged": []any{map[string]any{"pool": "evil@", "target": ""}, map[string]any{"pool": "tank", "target": "evil"}}}},
			drills: map[string]any{"copies": map[string]any{"tank/user": map[string]any{"evil": map[string]any{}}, "evil": map[string]any{"near": map[string]any{}}}},
		},
		"many": {state: map[string]any{"datasets": many}, problem: `job "user": its metrics exceed 16 MiB: the others are missing`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(dir, "home", "state.json", map[string]any{"datasets": map[string]any{"tank/home": target("near")}})
			write(dir, "user", "state.json", c.state)
			if c.drills != nil {
				write(dir, "user", "drills.json", c.drills)
			}
			text, err := Metrics(f, dir, time.Date(2026, 11, 28, 8, 30, 0, 0, time.UTC))
			if c.problem == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.problem)
			}
			require.Less(t, len(text), maxJobMetrics+1<<16)
			require.NotContains(t, string(text), "evil")
			all := strings.Join(samples(t, text), "\n")
			require.Contains(t, all, `zxfer_replicate_dataset_late_after_seconds{job="home",source="tank/home",target="near"}`)
			require.Equal(t, name != "many", strings.Contains(all, "zxfer_replicate_dataset_last_success_seconds"+own), "the records of the user's own copies")
			require.NotContains(t, all, `{job="home",source="tank/user"`)
		})
	}
}
