package hosts_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestReadFilesLoadsKeyTemporarily expects that a key is loaded only if it is named and needed, and
// only during the read.
func TestReadFilesLoadsKeyTemporarily(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, []byte("secret"), 0o600))
	h := zfsmem.New()
	h.Run = t.TempDir()
	h.Create("vault/e", map[string]string{"encryption": "on", "encryptionroot": "vault/e", "keystatus": "unavailable"})
	h.Create("vault/e/sub", map[string]string{"encryption": "on", "encryptionroot": "vault/e", "keystatus": "unavailable"})
	h.SetFiles("vault/e/sub@x", dir)
	s := hosts.On(h, "test", func(string) {})
	defer s.Close()
	q := files.Query{Snapshot: "vault/e/sub@x", Sample: 1}
	_, err := s.ReadFiles(t.Context(), q, nil)
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.KeyMissing})
	require.ErrorContains(t, err, "the key of vault/e is not loaded")

	q.KeyFile = key
	d, err := s.ReadFiles(t.Context(), q, nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Files)
	require.NoError(t, (&hosts.Request{Op: hosts.OpReadFiles, Args: q, Answer: &d}).CheckAnswer())
	require.Equal(t, "unavailable", h.Get("vault/e", "keystatus"))

	q.Path = "nope"
	_, err = s.ReadFiles(t.Context(), q, nil)
	require.Error(t, err)
	require.Equal(t, "unavailable", h.Get("vault/e", "keystatus"), "unloaded also after a failure")

	require.NoError(t, h.LoadKey(t.Context(), "vault/e", key))
	q.Path, q.KeyFile = "", filepath.Join(dir, "other")
	_, err = s.ReadFiles(t.Context(), q, nil)
	require.NoError(t, err)
	require.Equal(t, "available", h.Get("vault/e", "keystatus"), "the key was already loaded")

	_, err = s.ReadFiles(t.Context(), files.Query{Snapshot: "vault/e@none", Sample: 1}, nil)
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotFound})
}
