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

// Several use a key at once, each through a Site of its own: it is loaded until the
// last one ends, whichever was the first, and whichever was killed.
func TestKeyIsUsedBySeveral(t *testing.T) {
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
		require.NoError(t, k.begin(ctx, key))
		return k
	}
	ends := func(k *keyUse) { require.NoError(t, k.end(t.Context())) }
	dies := func(k *keyUse) { require.NoError(t, k.notes.Close()) } // as the kernel closes it
	status := func() string { return h.Get("vault/e", "keystatus") }

	for _, first := range []func(*keyUse){ends, dies} {
		a, b, c := use(t.Context()), use(t.Context()), use(t.Context())
		first(a)
		dies(b)
		require.Equal(t, "available", status())
		ends(c)
		require.Equal(t, "unavailable", status())
	}

	// What the last one left loaded, as it was killed, or a person has loaded, stays.
	dies(use(t.Context()))
	a, b := use(t.Context()), use(t.Context())
	ends(a)
	ends(b)
	require.Equal(t, "available", status())
	require.NoError(t, h.UnloadKey(t.Context(), "vault/e"))

	// One that cannot load it ends no other, and nobody waits for it.
	s := On(h, "test", func(string) {})
	_, err := s.useKey(t.Context(), "vault/e", key+".none")
	require.ErrorIs(t, err, os.ErrNotExist)
	ends(use(t.Context()))

	// Who may not tell others, uses a key that is loaded, and loads none.
	run := h.Run
	h.Run = "/sys/zxfer" // where nobody makes a directory
	_, err = s.useKey(t.Context(), "vault/e", key)
	require.ErrorContains(t, err, "mkdir /sys/zxfer")
	require.NoError(t, h.LoadKey(t.Context(), "vault/e", key))
	unload, err := s.useKey(t.Context(), "vault/e", key)
	require.NoError(t, err)
	require.NoError(t, unload())
	require.Equal(t, "available", status())
	require.NoError(t, h.UnloadKey(t.Context(), "vault/e"))
	h.Run = run

	// Many come and go: whoever uses it finds it loaded.
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
