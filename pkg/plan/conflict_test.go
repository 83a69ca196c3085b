package plan

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
)

// TestConflictsInJSON expects the JSON names that programs and captured facts rely on.
func TestConflictsInJSON(t *testing.T) {
	t.Parallel()
	var p Plan
	p.Refuse(finding.Finding{ID: Modified, Source: "tank/a", Target: "vault/a", Summary: "modified", Remedy: "lose it && go on", TargetVersions: []string{"@x"}})
	text, err := json.Marshal(p.Conflicts)
	require.NoError(t, err)
	require.JSONEq(t, `[{"id":"modified","source":"tank/a","target":"vault/a","message":"modified","hint":"lose it && go on","target_versions":["@x"]}]`, string(text))
	var back Conflicts
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, p.Conflicts, back)
	none, err := json.Marshal(Plan{})
	require.NoError(t, err)
	require.Contains(t, string(none), `"conflicts":[]`)
}
