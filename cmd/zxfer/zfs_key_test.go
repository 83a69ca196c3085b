package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireKeyOpens checks that a key opens a copy. It unloads the present key, loads the other one and
// mounts the copy.
func requireKeyOpens(t *testing.T, root, copied, key string) {
	t.Helper()
	if strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keystatus", root)) == "available" {
		zfsCmd(t, "unload-key", root)
	}
	zfsCmd(t, "load-key", "-L", "file://"+key, root)
	zfsCmd(t, "mount", copied)
	zfsCmd(t, "unmount", copied)
	zfsCmd(t, "unload-key", root)
}

// TestZFSTargetKeyChanged sends raw to a copy that inherits its key from another encryption
// root, and expects a refusal, because no key could open the result (openzfs#12614). If the
// copy is an encryption root again, the send succeeds with a warning.
func TestZFSTargetKeyChanged(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	own := filepath.Join(t.TempDir(), "own")
	run(t, "dd", "if=/dev/urandom", "of="+own, "bs=32", "count=1", "status=none")
	zfsCmd(t, "snapshot", src+"@one")
	zfsCmd(t, "create", "-u", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+own, dst)
	in := dst + "/in"
	mustZxfer(t, "send", src, "beta:"+in)
	zfsCmd(t, "load-key", "-L", "file://"+key, in)
	zfsCmd(t, "change-key", "-i", in)
	zfsCmd(t, "snapshot", src+"@two")
	before := state(t)
	o := zxfer(t, "send", src, "beta:"+in)
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "openzfs#12614")
	require.Contains(t, o.stderr, "zfs change-key -o keyformat=passphrase -o keylocation=prompt "+in)
	require.Equal(t, before, state(t))
	requireKeyOpens(t, dst, in, own)

	// The hint's remedy makes the copy an encryption root again. The key can be any key.
	zfsCmd(t, "load-key", "-L", "file://"+own, dst)
	zfsCmd(t, "change-key", "-o", "keyformat=raw", "-o", "keylocation=file://"+own, in)
	o = mustZxfer(t, "send", src, "beta:"+in)
	require.Contains(t, o.stderr, "this stream brings the key of local:"+src+"; from then on only that key opens it (its keylocation is still file://"+own+")")
	requireKeyOpens(t, in, in, key)
	o = mustZxfer(t, "send", src, "beta:"+in)
	require.NotContains(t, o.stderr, "this stream")
}

// TestZFSTargetInheritsKey sends to a copy that inherits its key from the copy of its
// source's encryption root. The send succeeds unless this root has a different key.
func TestZFSTargetInheritsKey(t *testing.T) {
	lab(t)
	for _, format := range []string{"passphrase", "raw"} {
		t.Run(format, func(t *testing.T) {
			src, dst := dataset(t)
			key := filepath.Join(t.TempDir(), "key")
			require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
			zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat="+format, "-o", "keylocation=file://"+key, src)
			zfsCmd(t, "create", src+"/c")
			zfsCmd(t, "snapshot", "-r", src+"@one")
			mustZxfer(t, "send", "-R", src, "beta:"+dst)
			require.Equal(t, dst, strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "encryptionroot", dst+"/c")))
			zfsCmd(t, "snapshot", "-r", src+"@two")
			o := zxfer(t, "send", src+"/c", "beta:"+dst+"/c")
			require.Equal(t, 0, o.code, o.String())
			requireKeyOpens(t, dst, dst+"/c", key)
			zfsCmd(t, "snapshot", "-r", src+"@three")
			mustZxfer(t, "send", "-R", "--verify", src, "beta:"+dst)
			requireKeyOpens(t, dst, dst+"/c", key)

			// After the target's root changes its key, it no longer has the source's key.
			zfsCmd(t, "load-key", "-L", "file://"+key, dst)
			zfsCmd(t, "change-key", "-o", "keyformat="+format, "-o", "keylocation=file://"+key, dst)
			zfsCmd(t, "unload-key", dst)
			zfsCmd(t, "snapshot", "-r", src+"@four")
			o = zxfer(t, "send", src+"/c", "beta:"+dst+"/c")
			if format == "raw" { // only the stream shows the difference
				require.Equal(t, 1, o.code, o.String())
				require.Contains(t, o.stderr, "hint: send its whole tree together, from "+src+" (--recursive)")
			} else {
				require.Equal(t, 3, o.code, o.String())
			}
			mustZxfer(t, "send", "-R", src, "beta:"+dst)
			require.Equal(t, dst, value(t, dst+"/c", "encryptionroot"))
			requireKeyOpens(t, dst, dst+"/c", key)
		})
	}
}

// TestZFSStreamPackageKeys sends to a tree that zfs receive created from a stream package (zfs
// send -R -w). If the source's key changes, zxfer refuses to send a part of the tree, and
// sends the whole tree.
func TestZFSStreamPackageKeys(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	zfsCmd(t, "create", src+"/c")
	zfsCmd(t, "snapshot", "-r", src+"@one")
	run(t, "sh", "-c", "zfs send -R -w "+src+"@one | zfs receive -u "+dst)
	for _, d := range []string{dst, dst + "/c"} {
		zfsCmd(t, "set", "canmount=noauto", "readonly=on", d)
	}
	require.Equal(t, dst, strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "encryptionroot", dst+"/c")))
	zfsCmd(t, "snapshot", "-r", src+"@two")
	mustZxfer(t, "send", "-R", src, "beta:"+dst)
	requireKeyOpens(t, dst, dst+"/c", key)
	pass := filepath.Join(t.TempDir(), "pass")
	run(t, "sh", "-c", "echo a passphrase >"+pass)
	zfsCmd(t, "change-key", "-o", "keyformat=passphrase", "-o", "keylocation=file://"+pass, src)
	zfsCmd(t, "snapshot", "-r", src+"@three")
	o := zxfer(t, "send", src+"/c", "beta:"+dst+"/c")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "inherits its key from "+dst)
	o = mustZxfer(t, "send", "-R", src, "beta:"+dst)
	require.Contains(t, o.stderr, "the key of beta:"+dst+" differs from the key of local:"+src)
	requireKeyOpens(t, dst, dst+"/c", pass)
	require.Equal(t, guids(t, src+"/c"), guids(t, dst+"/c"))
}
