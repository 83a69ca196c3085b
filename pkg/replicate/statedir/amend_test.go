package statedir

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAmend expects that notes are added to the last record only.
func TestAmend(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "j")
	require.NoError(t, err)
	first, last := &Run{Job: "j", Outcome: "done", Notes: []string{"a"}}, &Run{Job: "j", Outcome: "failed"}
	require.NoError(t, s.Append(first))
	require.NoError(t, s.Append(last))
	now := *last
	now.Notes = []string{"b", "c"}
	require.ErrorContains(t, s.Amend(first, &now), "does not end with the record")
	require.NoError(t, s.Amend(last, &now))
	all, err := s.Runs(9)
	require.NoError(t, err)
	require.Equal(t, []*Run{first, &now}, all)

	require.ErrorContains(t, s.Amend(last, &now), "does not end with the record", "it was amended before")
	require.NoError(t, os.Truncate(s.file("runs.jsonl"), 3))
	require.ErrorContains(t, s.Amend(last, &now), "does not end with the record")
	require.NoError(t, os.Remove(s.file("runs.jsonl")))
	require.NoError(t, os.Symlink("/etc/passwd", s.file("runs.jsonl")))
	require.Error(t, s.Amend(last, &now), "another user may own the directory")
}
