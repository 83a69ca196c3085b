package job

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// encryptedWorld returns a world with src/a and src/a/b in one encryption root, and copies that are
// separate encryption roots.
func encryptedWorld(t *testing.T) *world {
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
	for _, d := range []string{"a", "a/b"} {
		w.host.Copy("src/"+d, "dst/"+d, "x")
		for dataset, root := range map[string]string{"src/" + d: "src/a", "dst/" + d: "dst/" + d} {
			for name, value := range map[string]string{"encryption": "aes-256-gcm", "encryptionroot": root, "keyformat": "passphrase", "keylocation": "prompt",
				"keystatus": "unavailable", "pbkdf2salt": "1", "pbkdf2iters": "350000", zfs.FlagsProperty: "w"} {
				w.host.Set(dataset, name, value)
			}
		}
	}
	return w
}

// TestCopiesInheritKeys expects that sends and jobs make copies inherit their key. Copies
// that cannot do so remain encryption roots.
func TestCopiesInheritKeys(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(*world) error{
		"send": func(w *world) error {
			_, err := RunSend(t.Context(), sendRequest(nil), hosts.New(w), silent{})
			return err
		},
		"batch": func(w *world) error {
			_, err := RunBatch(t.Context(), w.batch(t, nil), hosts.New(w), silent{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := encryptedWorld(t)
			w.before = failOn("change-key dst/a/b", fault.Refusef("", "not for this key"))
			require.NoError(t, move(w))
			require.Equal(t, "dst/a/b", w.host.Get("dst/a/b", "encryptionroot"))
			w.before = nil
			require.NoError(t, move(w))
			require.Equal(t, "dst/a", w.host.Get("dst/a/b", "encryptionroot"))
			require.Equal(t, "dst/a", w.host.Get("dst/a", "encryptionroot"))
		})
	}
}

// TestDependentsBecomeRootsBeforeKeyChange expects that before a stream changes a copy's key, its
// dependents become encryption roots, even those without a stream. If that fails, no stream starts.
func TestDependentsBecomeRootsBeforeKeyChange(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(*world) error{
		"send alone": func(w *world) error {
			_, err := RunSend(t.Context(), sendRequest(func(s *Send) { s.Plan.Recursive = false }), hosts.New(w), silent{})
			return err
		},
		"batch of known copies": func(w *world) error {
			b := w.batch(t, nil)
			b.Survey.Datasets, b.Copies = b.Survey.Datasets[:1], []string{"dst/a"}
			res, err := RunBatch(t.Context(), b, hosts.New(w), silent{})
			if err == nil && len(res.Datasets) > 0 {
				err = res.Datasets[0].Err
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := encryptedWorld(t)
			w.host.Set("dst/a/b", "encryptionroot", "dst/a")
			require.NoError(t, w.host.Snapshot(t.Context(), []string{"src/a@y"}))
			w.host.Set("src/a", "pbkdf2salt", "2")
			w.changes, w.before = nil, failOn("change-key dst/a/b", fault.Refusef("", "not for this key"))
			require.ErrorContains(t, move(w), "dst/a/b inherits its key from dst/a, which changes: not for this key")
			require.Empty(t, w.changes)
			require.Equal(t, "dst/a", w.host.Get("dst/a/b", "encryptionroot"))
			w.before = nil
			require.NoError(t, move(w))
			require.Contains(t, w.changes, "receive dst/a@y")
			require.Equal(t, "dst/a/b", w.host.Get("dst/a/b", "encryptionroot"))
		})
	}
}

// TestWhyNotJoined expects that if the assertion is refused, the message names the command that
// loads the keys.
func TestWhyNotJoined(t *testing.T) {
	t.Parallel()
	forbidden := fault.Refusef("ask the administrator of that host", "%w: not believed", hosts.ErrForbidden)
	require.Contains(t, whyNotJoined(remedy.Host{}, forbidden, "vault/k", true), "than passphrases; to open all of them, run: zfs load-key -r vault/k")
	require.Contains(t, whyNotJoined(remedy.Host{}, forbidden, "vault/k", false), "(ask the administrator of that host)")
}
