package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJobs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, run(t.Context(), []string{"2", "3", dir}))
	for _, job := range []string{"job0", "job1"} {
		require.DirExists(t, filepath.Join(dir, "state", job))
	}
	text, err := os.ReadFile(filepath.Join(dir, "replicate.toml"))
	require.NoError(t, err)
	require.Contains(t, string(text), `source = "src/j1"`)

	require.NoError(t, run(t.Context(), []string{"1", "2", t.TempDir(), "200"}), "with snapshots to destroy")
	require.Error(t, run(t.Context(), []string{"2", "3"}))
	require.Error(t, run(t.Context(), []string{"2", "3", dir, "many"}))
	require.Error(t, run(t.Context(), []string{"two", "3", dir}))
	require.Error(t, run(t.Context(), []string{"1", "1", filepath.Join(dir, "missing")}))
}
