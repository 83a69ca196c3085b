package status

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"zxfer/pkg/testenv"
)

const renew = "UPDATE_GOLDEN=1 go test ./pkg/replicate/status -run Reference"

// checkReference compares a generated region of docs/reference/output.md, or renews it.
func checkReference(t *testing.T, name, table string) {
	t.Helper()
	page := testenv.Root(t) + "/docs/reference/output.md"
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	region := regexp.MustCompile(`(?s)<!-- ` + name + `: .*? -->\n.*?<!-- end -->`)
	require.Regexp(t, region, string(raw))
	want := region.ReplaceAllLiteralString(string(raw), fmt.Sprintf("<!-- %s: %s -->\n\n%s\n<!-- end -->", name, renew, table))
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(raw), "docs/reference/output.md is stale; run: %s", renew)
}

// TestMetricsReference expects docs/reference/output.md to list all metrics with their help.
func TestMetricsReference(t *testing.T) { //nolint:paralleltest // TestSeverityReference writes the same file
	var table strings.Builder
	table.WriteString("| metric | labels | meaning |\n|---|---|---|\n")
	for _, m := range families() {
		fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", m.name, strings.Join(append([]string{"job"}, m.labels...), "`, `"), strings.TrimSuffix(m.help, "."))
	}
	checkReference(t, "metrics", table.String())
}

// TestSeverityReference expects docs/reference/output.md to have the table of severities, worst first.
func TestSeverityReference(t *testing.T) { //nolint:paralleltest // TestMetricsReference writes the same file
	var table strings.Builder
	table.WriteString("| severity | state | if | alerts of Prometheus |\n|---|---|---|---|\n")
	all := conditions()
	for i := range all {
		c := all[len(all)-1-i]
		state, alerts := "", ""
		if c.state != "" {
			state = "`" + c.state + "`"
		}
		for _, a := range c.alerts {
			if a != "" {
				alerts += ", `" + a + "`"
			}
		}
		fmt.Fprintf(&table, "| %d %s | %s | %s | %s |\n", c.severity, c.severity, state, c.when, strings.TrimPrefix(alerts, ", "))
	}
	checkReference(t, "severities", table.String())
}

// TestSeverityOfAlerts expects that the rules for Prometheus have exactly the alerts of the table, with its
// severities. Prometheus has no severity for what is unknown: it is a warning.
func TestSeverityOfAlerts(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for _, c := range conditions() {
		for _, a := range c.alerts {
			severity := map[Severity]string{SeverityWarning: "warning", SeverityUnknown: "warning", SeverityCritical: "critical"}[c.severity]
			if before := want[a]; a != "" && before != "" {
				require.Equal(t, before, severity, a)
			}
			want[a] = severity
		}
	}
	delete(want, "")
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert  string
				Labels struct{ Severity string }
			}
		}
	}
	text, err := os.ReadFile(testenv.Root(t) + "/docs/fleet/prometheus/zxfer.rules.yml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &file))
	got := map[string]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			got[r.Alert] = r.Labels.Severity
		}
	}
	require.Equal(t, want, got)
}
