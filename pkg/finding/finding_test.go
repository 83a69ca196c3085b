package finding

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

func TestSeverity(t *testing.T) {
	t.Parallel()
	all := []Severity{Warn, OK, "other", Fail, Note}
	slices.SortFunc(all, Severity.Compare)
	require.Equal(t, []Severity{"other", OK, Note, Warn, Fail}, all)
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	found := []Finding{{ID: "a", Severity: Warn}, {ID: "b", Severity: Fail, Host: "beta", Summary: "no room", Remedy: "make some"}, {ID: "c", Severity: Fail, Summary: "no way"}}
	require.Equal(t, found[1:], Failed(found))
	err := Refusal(Failed(found))
	require.EqualError(t, err, "beta: no room\nno way")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Equal(t, "make some", fault.HintOf(err))
	require.NoError(t, Refusal(Failed(found[:1])))
}

// TestJSON expects the JSON names that programs read. Only additions are permitted.
func TestJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Finding{ID: "space", Host: "beta", Severity: Fail, Summary: "s", Evidence: "e", Remedy: "r", Consent: true, Target: "vault"})
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"space","host":"beta","severity":"fail","summary":"s","evidence":"e","remedy":"r","consent":true,"dataset":"vault"}`, string(text))
}

func TestSome(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a, b", JoinFirst([]string{"a", "b"}, 2))
	require.Equal(t, "a, b and 3 more", JoinFirst([]string{"a", "b", "c", "d", "e"}, 2))
	require.Empty(t, JoinFirst(nil, 2))
}
