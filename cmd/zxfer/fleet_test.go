package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/status"
)

// fleetTools returns the directory that scripts/fleet created. It contains Prometheus,
// node_exporter and Ansible.
func fleetTools(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TEST_FLEET")
	if dir == "" {
		t.Skip("needs TEST_FLEET=DIR after scripts/fleet tools DIR")
	}
	return dir
}

func fleetFile(elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "docs", "fleet"}, elem...)...)
}

// TestFleetRules checks the alert rules with promtool and runs their tests.
func TestFleetRules(t *testing.T) {
	t.Parallel()
	tools := fleetTools(t)
	promtool := func(file string, argv ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(tools, "promtool"), append(argv, filepath.Base(file))...)
		cmd.Dir = filepath.Dir(file)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	promtool(fleetFile("prometheus", "zxfer.rules.yml"), "check", "rules")
	promtool(fleetFile("prometheus", "zxfer.test.yml"), "test", "rules")
}

// dashboard holds the parts of Grafana's JSON that the tests check.
type dashboard struct {
	Title, UID    string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []struct {
		ID          int
		Type, Title string
		Datasource  source
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct {
			RefID, Expr string
			Datasource  source
		}
	}
}

type source struct{ Type, UID string }

func fleetDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(fleetFile("grafana", "zxfer.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// expressions returns the queries of all panels.
func (d *dashboard) expressions() (out []string) {
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			out = append(out, q.Expr)
		}
	}
	return out
}

// TestFleetDashboard expects the structure that Grafana documents: panels with unique IDs and
// positions, and queries that use the chosen data source and instance.
//
// https://grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model/
func TestFleetDashboard(t *testing.T) {
	t.Parallel()
	d := fleetDashboard(t)
	require.NotEmpty(t, d.Title)
	require.NotEmpty(t, d.UID)
	require.GreaterOrEqual(t, d.SchemaVersion, 36)
	chosen := source{"prometheus", "${datasource}"}
	require.Equal(t, "datasource", d.Templating.List[0].Name)
	require.Equal(t, "datasource", d.Templating.List[0].Type)
	require.Equal(t, "prometheus", d.Templating.List[0].Query)
	require.Equal(t, "instance", d.Templating.List[1].Name)
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		require.NotEmpty(t, p.Title)
		require.Contains(t, []string{"stat", "timeseries", "table"}, p.Type)
		require.Equal(t, chosen, p.Datasource, p.Title)
		require.False(t, ids[p.ID], "duplicate ID of panel %s", p.Title)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, cells[at], "panel %s overlaps another one", p.Title)
				cells[at] = p.Title
			}
		}
		refs := map[string]bool{}
		require.NotEmpty(t, p.Targets, p.Title)
		for _, q := range p.Targets {
			require.Equal(t, chosen, q.Datasource, p.Title)
			require.False(t, refs[q.RefID], p.Title)
			refs[q.RefID] = true
			require.Contains(t, q.Expr, `instance=~"$instance"`, p.Title)
		}
	}
}

// TestFleetMetricsExist expects the rules, their tests and the dashboard to use
// exactly the metrics that zxfer writes.
func TestFleetMetricsExist(t *testing.T) {
	t.Parallel()
	text, err := status.Metrics(&replicate.File{}, t.TempDir(), time.Now())
	require.NoError(t, err)
	name := regexp.MustCompile(`zxfer_[a-z_]+`)
	written, used := map[string]bool{}, map[string]bool{}
	for _, n := range name.FindAllString(string(text), -1) {
		written[n] = true
	}
	d := fleetDashboard(t)
	all := d.expressions()
	for _, file := range []string{"zxfer.rules.yml", "zxfer.test.yml"} {
		text, err := os.ReadFile(fleetFile("prometheus", file))
		require.NoError(t, err)
		all = append(all, string(text))
	}
	for _, text := range all {
		for _, n := range name.FindAllString(text, -1) {
			used[n] = true
		}
	}
	require.Equal(t, written, used)
}
