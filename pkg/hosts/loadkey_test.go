package hosts

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs/zfsmem"
)

// TestSharedKeyIsUnloadedLast expects that a key that several hosts share is loaded until the last use
// ends, even if others ended earlier or were killed.
func TestSharedKeyIsUnloadedLast(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, nil, 0o600))
	h := zfsmem.New()
	h.Run = filepath.Join(t.TempDir(), "run")
	h.Create("vault/e", map[string]string{"encryption": "on", "encryptionroot": "vault/e", "keystatus": "unavailable"})
	use := func(ctx context.Context) *keyUse {
		s := On(h, "test", func(string) {})
		k, err := s.openKey(ctx, "vault/e")
		require.NoError(t, err)
		require.NoError(t, k.start(ctx, key))
		return k
	}
	ends := func(k *keyUse) { require.NoError(t, k.finish(t.Context())) }
	dies := func(k *keyUse) { require.NoError(t, k.file.Close()) } // the kernel closes it
	status := func() string { return h.Get("vault/e", "keystatus") }

	for _, first := range []func(*keyUse){ends, dies} {
		a, b, c := use(t.Context()), use(t.Context()), use(t.Context())
		first(a)
		dies(b)
		require.Equal(t, "available", status())
		ends(c)
		require.Equal(t, "unavailable", status())
	}

	// A key remains loaded if a person loaded it, or if the last user was killed.
	dies(use(t.Context()))
	a, b := use(t.Context()), use(t.Context())
	ends(a)
	ends(b)
	require.Equal(t, "available", status())
	require.NoError(t, h.UnloadKey(t.Context(), "vault/e"))

	// A failed load does not end other uses or block them.
	s := On(h, "test", func(string) {})
	_, err := s.useKey(t.Context(), "vault/e", key+".none")
	require.ErrorIs(t, err, os.ErrNotExist)
	ends(use(t.Context()))

	// A process that cannot write the lock file uses a loaded key, but loads none.
	run := h.Run
	h.Run = "/sys/zxfer" // nobody can create a directory there
	_, err = s.useKey(t.Context(), "vault/e", key)
	require.ErrorContains(t, err, "mkdir /sys/zxfer")
	require.NoError(t, h.LoadKey(t.Context(), "vault/e", key))
	unload, err := s.useKey(t.Context(), "vault/e", key)
	require.NoError(t, err)
	require.NoError(t, unload())
	require.Equal(t, "available", status())
	require.NoError(t, h.UnloadKey(t.Context(), "vault/e"))
	h.Run = run

	// With many concurrent uses, each finds the key loaded.
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
	defer cancel()
	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			for range 20 {
				k := use(ctx)
				if !assertLoaded(t, status()) {
					return nil
				}
				ends(k)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, "unavailable", status())
}

func assertLoaded(t *testing.T, status string) bool {
	if status != "available" {
		t.Errorf("the key is %s while it is used", status)
	}
	return status == "available"
}
