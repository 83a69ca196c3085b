package status

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
)

const renewMetrics = "UPDATE_GOLDEN=1 go test ./pkg/replicate/status -run TestMetricsReference"

// TestMetricsReference expects docs/reference/output.md to list all metrics with their help.
func TestMetricsReference(t *testing.T) {
	t.Parallel()
	text, err := Metrics(&replicate.File{}, t.TempDir(), time.Unix(0, 0))
	require.NoError(t, err)
	var table strings.Builder
	table.WriteString("| metric | labels | meaning |\n|---|---|---|\n")
	for _, m := range regexp.MustCompile(`(?m)^# HELP (zxfer_replicate_(\w+)) (.+)\.$`).FindAllStringSubmatch(string(text), -1) {
		labels := "`job`"
		switch {
		case strings.HasPrefix(m[2], "dataset_"), m[2] == "drill_good", m[2] == "drill_last_good_seconds":
			labels += ", `source`, `target`"
		case strings.HasPrefix(m[2], "pool_"):
			labels += ", `target`, `pool`"
		case m[2] == "disk_state":
			labels += ", `target`, `pool`, `state`"
		case strings.HasPrefix(m[2], "disk_"):
			labels += ", `target`, `pool`"
		case m[2] == "set_aside", m[2] == "gone", m[2] == "lacking":
			labels += ", `target`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", m[1], labels, m[3])
	}
	page := filepath.Join("..", "..", "..", "docs", "reference", "output.md")
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	region := regexp.MustCompile(`(?s)<!-- metrics: .*? -->\n.*?<!-- end -->`)
	require.Regexp(t, region, string(raw))
	want := region.ReplaceAllLiteralString(string(raw), fmt.Sprintf("<!-- metrics: %s -->\n\n%s\n<!-- end -->", renewMetrics, &table))
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(raw), "docs/reference/output.md is stale; run: %s", renewMetrics)
}
