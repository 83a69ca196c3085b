package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireRoots requires datasets at or below another to have certain encryption roots.
func requireRoots(t *testing.T, of string, want map[string]string) {
	t.Helper()
	for below, root := range want {
		require.Equal(t, of+root, value(t, of+below, "encryptionroot"), below)
	}
}

// keyOptions returns the options for a key in a file. A passphrase gets the fewest PBKDF2
// iterations that ZFS accepts, because each use of the key repeats them.
func keyOptions(format, file string) []string {
	options := []string{"-o", "keyformat=" + format, "-o", "keylocation=file://" + file}
	if format == "passphrase" {
		options = append(options, "-o", "pbkdf2iters=100000")
	}
	return options
}

// changeKey gives an encryption root another passphrase, and returns its file.
func changeKey(t *testing.T, root, passphrase string) (keyFile string) {
	t.Helper()
	keyFile = filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(keyFile, []byte(passphrase), 0o600))
	zfsCmd(t, slices.Concat([]string{"change-key"}, keyOptions("passphrase", keyFile), []string{root})...)
	return keyFile
}

// TestZFSTreeKeepsKey sends a tree with one encryption root, later children and
// increments, and expects the same roots in the copy. A new passphrase arrives with the
// next increments. Datasets without increments keep the former one.
func TestZFSTreeKeepsKey(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := passphraseDataset(t, src, "correct horse battery")
	zfsCmd(t, "create", src+"/a")
	zfsCmd(t, "create", src+"/a/b")
	zfsCmd(t, "create", "-V", "8m", src+"/vol")
	other := passphraseDataset(t, src+"/own", "another passphrase")
	zfsCmd(t, "create", src+"/own/below")
	for _, below := range []string{"", "/a", "/a/b", "/own/below"} {
		fill(t, src+below, "f", 300<<10)
	}
	zfsCmd(t, "snapshot", "-r", src+"@one")
	o := mustZxfer(t, "send", "-R", "-n", src, "beta:"+dst)
	require.Contains(t, o.stdout, "inherits its key from "+dst)
	o = mustZxfer(t, "send", "-R", src, "beta:"+dst)
	require.Contains(t, o.stderr, "one zfs load-key of "+dst+" also opens 3 more datasets below it")
	tree := map[string]string{"": "", "/a": "", "/a/b": "", "/vol": "", "/own": "/own", "/own/below": "/own"}
	requireRoots(t, dst, tree)
	requireKeyOpens(t, dst, dst+"/a/b", key)
	requireKeyOpens(t, dst+"/own", dst+"/own/below", other)

	// Send increments and a later child, and then one dataset alone.
	zfsCmd(t, "create", src+"/a/late")
	fill(t, src+"/a/b", "g", 300<<10)
	fill(t, src+"/a/late", "f", 300<<10)
	zfsCmd(t, "snapshot", "-r", src+"@two")
	o = mustZxfer(t, "send", "-R", src, "beta:"+dst)
	require.Contains(t, o.stderr, "opens 1 more dataset below it")
	tree["/a/late"] = ""
	requireRoots(t, dst, tree)
	requireKeyOpens(t, dst, dst+"/a/late", key)
	requireKeyOpens(t, dst, dst+"/a/b", key)
	fill(t, src+"/a/b", "h", 300<<10)
	zfsCmd(t, "snapshot", src+"/a/b@three")
	mustZxfer(t, "send", src+"/a/b", "beta:"+dst+"/a/b")
	requireKeyOpens(t, dst, dst+"/a/b", key)

	// A dataset that was a separate encryption root joins the tree again, even if there is
	// nothing to send.
	run(t, "python3", "-c", "import libzfs_core as l; l.lzc_change_key(b'"+dst+"/a', 'force_new_key')")
	require.Equal(t, dst+"/a", value(t, dst+"/a", "encryptionroot"))
	mustZxfer(t, "send", "-R", src, "beta:"+dst)
	requireRoots(t, dst, tree)

	// Change the passphrase. A dataset that was deleted on the source receives no more
	// increments.
	zfsCmd(t, "destroy", "-r", src+"/a/late")
	next := changeKey(t, src, "the next passphrase")
	zfsCmd(t, "snapshot", "-r", src+"@four")
	o = mustZxfer(t, "send", "-R", src, "beta:"+dst)
	require.Contains(t, o.stderr, dst+"/a/late inherits its key from "+dst+", whose key changes")
	tree["/a/late"] = "/a/late"
	requireRoots(t, dst, tree)
	requireKeyOpens(t, dst, dst+"/a/b", next)
	requireKeyOpens(t, dst+"/a/late", dst+"/a/late", key)
	requireKeyOpens(t, dst+"/own", dst+"/own/below", other)

	// Send only the root. Its descendants keep their keys.
	last := changeKey(t, src, "the last passphrase")
	zfsCmd(t, "snapshot", "-r", src+"@five")
	mustZxfer(t, "send", src, "beta:"+dst)
	requireKeyOpens(t, dst, dst, last)
	requireKeyOpens(t, dst+"/a", dst+"/a", next)
	requireKeyOpens(t, dst+"/a/b", dst+"/a/b", next)
	mustZxfer(t, "send", "-R", src, "beta:"+dst)
	requireRoots(t, dst, tree)
	requireKeyOpens(t, dst, dst+"/a/b", last)
	require.Equal(t, guids(t, src+"/a/b"), guids(t, dst+"/a/b"))
}

// TestZFSTreeKeepsKeyRestricted sends a tree with a restricted key, and expects one
// encryption root, although the key may not replace keys. The key may not change the
// encryption roots of other datasets.
func TestZFSTreeKeepsKeyRestricted(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := passphraseDataset(t, src, "correct horse battery")
	zfsCmd(t, "create", src+"/a")
	fill(t, src+"/a", "f", 300<<10)
	zfsCmd(t, "snapshot", "-r", src+"@one")
	zfsCmd(t, "create", "-u", dst)
	passphraseDataset(t, dst+"/mine", "a passphrase of beta")
	passphraseDataset(t, dst+"/mine/own", "another of beta")
	rsh, _ := restrictedKey(t, "--allow", "receive="+dst, "--append-only")
	in := dst + "/in"
	o := mustZxfer(t, "send", "-e", rsh, "-R", src, "beta:"+in)
	require.Contains(t, o.stderr, "opens 1 more dataset")
	requireRoots(t, in, map[string]string{"": "", "/a": ""})
	requireKeyOpens(t, in, in+"/a", key)
	fill(t, src+"/a", "g", 300<<10)
	zfsCmd(t, "snapshot", "-r", src+"@two")
	mustZxfer(t, "send", "-e", rsh, "-R", src, "beta:"+in)
	requireKeyOpens(t, in, in+"/a", key)

	zfsCmd(t, "load-key", "-L", "file://"+key, in)
	answer, all := sendHostile(t, rsh, request("digest", `{"dataset":"`+in+`/a","to":"one","flags":{}}`))
	require.Contains(t, answer["error"].(map[string]any)["text"], "--allow send-decrypted="+in+"/a", all)
	zfsCmd(t, "unload-key", in)
	for _, message := range []struct{ op, dataset string }{{"inherit-key", dst + "/mine/own"}, {"make-encryption-root", in + "/a"}, {"make-encryption-root", dst + "/mine"}, {"inherit-key", alphaPool}} {
		answer, all := sendHostile(t, rsh, request(message.op, `"`+message.dataset+`"`))
		require.NotNil(t, answer, all)
		require.NotNil(t, answer["error"], "%s: %v", message, answer)
	}
	changeKey(t, src, "the next passphrase")
	zfsCmd(t, "snapshot", "-r", src+"@three")
	o = zxfer(t, "send", "-e", rsh, "-R", src, "beta:"+in)
	require.NotEqual(t, 0, o.code, o)
	require.Contains(t, o.stdout+o.stderr, "receive-rekey")
	requireRoots(t, in, map[string]string{"": "", "/a": ""})
	requireKeyOpens(t, in, in+"/a", key)
}

// TestZFSReplicateKeepsTreeKey does the same with a job. It also covers new data in only
// one child, and a new key of a dataset that the job no longer sends.
func TestZFSReplicateKeepsTreeKey(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := passphraseDataset(t, src, "correct horse battery")
	for _, below := range []string{"/a", "/gone"} {
		zfsCmd(t, "create", src+below)
		fill(t, src+below, "f", 100<<10)
	}
	r := newReplication(t, fmt.Sprintf("[[job]]\nname = \"tree\"\nsource = %q\nrecursive = true\n[job.snapshots]\nadopt = [\"s*\"]\n[[job.target]]\nname = \"beta\"\nto = \"beta:%s\"\n", src, dst))
	at := time.Now()
	next := func() cmdResult { at = at.Add(time.Hour); return r.mustRunAt(t, at, "run", "tree") }
	zfsCmd(t, "snapshot", "-r", src+"@s1")
	o := next()
	require.Contains(t, o.stderr, "one zfs load-key of "+dst+" also opens 2 more datasets below it")
	tree := map[string]string{"": "", "/a": "", "/gone": ""}
	requireRoots(t, dst, tree)
	requireKeyOpens(t, dst, dst+"/a", key)
	nextSecond(t) // zxfer caches that there is nothing to do only two seconds after a change
	nextSecond(t)
	next()
	fill(t, src+"/a", "g", 100<<10)
	zfsCmd(t, "snapshot", src+"/a@s2")
	o = next()
	require.NotContains(t, o.stderr, "load-key")
	requireKeyOpens(t, dst, dst+"/a", key)
	require.Equal(t, guids(t, src+"/a"), guids(t, dst+"/a"))

	require.NoError(t, destroyAll(src+"/gone"))
	pass := changeKey(t, src, "the next passphrase")
	zfsCmd(t, "snapshot", "-r", src+"@s3")
	next()
	tree["/gone"] = "/gone"
	requireRoots(t, dst, tree)
	requireKeyOpens(t, dst, dst+"/a", pass)
	requireKeyOpens(t, dst+"/gone", dst+"/gone", key)
}

// TestZFSTreeKeepsRawKey does the same with a raw key, for which zxfer
// relies on the source. Only the streams show that the key changed, so datasets that
// inherit it become roots first.
func TestZFSTreeKeepsRawKey(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	for _, below := range []string{"/a", "/a/b", "/gone"} {
		zfsCmd(t, "create", src+below)
		fill(t, src+below, "f", 100<<10)
	}
	zfsCmd(t, "snapshot", "-r", src+"@one")
	o := mustZxfer(t, "send", "-R", src, "beta:"+dst)
	require.Contains(t, o.stderr, "one zfs load-key of "+dst+" also opens 3 more datasets below it")
	tree := map[string]string{"": "", "/a": "", "/a/b": "", "/gone": ""}
	requireRoots(t, dst, tree)
	requireKeyOpens(t, dst, dst+"/a/b", key)
	zfsCmd(t, "create", src+"/a/late")
	zfsCmd(t, "snapshot", "-r", src+"@two")
	mustZxfer(t, "send", "-R", src, "beta:"+dst)
	tree["/a/late"] = ""
	requireRoots(t, dst, tree)
	zfsCmd(t, "snapshot", src+"/a/b@three")
	mustZxfer(t, "send", src+"/a/b", "beta:"+dst+"/a/b")
	requireKeyOpens(t, dst, dst+"/a/b", key)

	zfsCmd(t, "destroy", "-r", src+"/gone")
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("0123456789abcdef0123456789abcdef"), 0o600))
	zfsCmd(t, "change-key", "-o", "keyformat=raw", "-o", "keylocation=file://"+other, src)
	zfsCmd(t, "snapshot", "-r", src+"@four")
	o = zxfer(t, "send", src+"/a/b", "beta:"+dst+"/a/b")
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "hint: send its whole tree together, from "+src)
	requireKeyOpens(t, dst, dst+"/a/b", key)
	o = mustZxfer(t, "send", "-R", src, "beta:"+dst)
	require.Contains(t, o.stderr, "the source has another key now")
	tree["/gone"] = "/gone"
	requireRoots(t, dst, tree)
	requireKeyOpens(t, dst, dst+"/a/b", other)
	requireKeyOpens(t, dst+"/gone", dst+"/gone", key)

	// The agent does not trust a restricted key, so each dataset remains an encryption
	// root.
	in := dst + "/in"
	rsh, _ := restrictedKey(t, "--allow", "receive="+in)
	o = mustZxfer(t, "send", "-e", rsh, "-R", src, "beta:"+in)
	require.Contains(t, o.stderr, "datasets remain encryption roots, in addition to "+in)
	requireKeyOpens(t, in+"/a/b", in+"/a/b", other)
}

// TestZFSTreePartKeepsKey sends part of a tree, without the encryption root above it.
// It expects the copy to have one encryption root.
func TestZFSTreePartKeepsKey(t *testing.T) {
	lab(t)
	for _, format := range []string{"passphrase", "raw"} {
		t.Run(format, func(t *testing.T) {
			src, dst := dataset(t)
			keys := [2]string{}
			for i, text := range []string{"0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"} {
				keys[i] = filepath.Join(t.TempDir(), "key")
				require.NoError(t, os.WriteFile(keys[i], []byte(text), 0o600))
			}
			zfsCmd(t, slices.Concat([]string{"create", "-o", "encryption=on"}, keyOptions(format, keys[0]), []string{src})...)
			zfsCmd(t, "create", src+"/home")
			zfsCmd(t, "create", src+"/home/x")
			fill(t, src+"/home/x", "f", 100<<10)
			zfsCmd(t, "snapshot", "-r", src+"/home@one")
			mustRunLocal(t, "send", "-R", src+"/home", dst)
			requireRoots(t, dst, map[string]string{"": "", "/x": ""})
			zfsCmd(t, "snapshot", src+"/home/x@two")
			mustRunLocal(t, "send", "-R", src+"/home", dst)
			requireKeyOpens(t, dst, dst+"/x", keys[0])
			zfsCmd(t, slices.Concat([]string{"change-key"}, keyOptions(format, keys[1]), []string{src})...)
			zfsCmd(t, "snapshot", "-r", src+"/home@three")
			mustRunLocal(t, "send", "-R", src+"/home", dst)
			requireRoots(t, dst, map[string]string{"": "", "/x": ""})
			requireKeyOpens(t, dst, dst+"/x", keys[1])
		})
	}
}

// TestZFSTreeSplits sends a tree after zfs change-key on its descendants. The copy gets the
// same roots, each with the source's key, and a dataset that was deleted on the source
// keeps its former key.
func TestZFSTreeSplits(t *testing.T) {
	lab(t)
	for _, format := range []string{"passphrase", "raw"} {
		t.Run(format, func(t *testing.T) {
			src, dst := dataset(t)
			keys := make([]string, 3)
			for i := range keys {
				keys[i] = filepath.Join(t.TempDir(), "key")
				require.NoError(t, os.WriteFile(keys[i], []byte(fmt.Sprintf("%032d", i)), 0o600))
			}
			zfsCmd(t, slices.Concat([]string{"create", "-o", "encryption=on"}, keyOptions(format, keys[0]), []string{src})...)
			for _, below := range []string{"/c", "/c/d", "/c/gone", "/e"} {
				zfsCmd(t, "create", src+below)
				fill(t, src+below, "f", 100<<10)
			}
			zfsCmd(t, "snapshot", "-r", src+"@one")
			mustRunLocal(t, "send", "-R", src, dst)
			requireRoots(t, dst, map[string]string{"": "", "/c": "", "/c/d": "", "/c/gone": "", "/e": ""})

			zfsCmd(t, "destroy", "-r", src+"/c/gone")
			zfsCmd(t, slices.Concat([]string{"change-key"}, keyOptions(format, keys[1]), []string{src + "/c"})...)
			fill(t, src+"/c/d", "g", 100<<10)
			zfsCmd(t, "snapshot", "-r", src+"@two")
			before := state(t)
			o := mustRunLocal(t, "send", "-R", "-n", src, dst)
			require.Contains(t, o.stdout, "first makes "+dst+"/c an encryption root with its present key")
			require.Equal(t, before, state(t))
			mustRunLocal(t, "send", "-R", src, dst)
			after := map[string]string{"": "", "/c": "/c", "/c/d": "/c", "/c/gone": "/c/gone", "/e": ""}
			check := func() {
				t.Helper()
				requireRoots(t, dst, after)
				requireKeyOpens(t, dst+"/c", dst+"/c/d", keys[1])
				requireKeyOpens(t, dst+"/c", dst+"/c", keys[1])
				requireKeyOpens(t, dst+"/c/gone", dst+"/c/gone", keys[0])
				requireKeyOpens(t, dst, dst+"/e", keys[0])
				require.Equal(t, guids(t, src+"/c/d"), guids(t, dst+"/c/d"))
			}
			check()
			fill(t, src+"/c/d", "h", 100<<10)
			zfsCmd(t, "snapshot", "-r", src+"@three")
			o = mustRunLocal(t, "send", "-R", src, dst)
			require.NotContains(t, o.stdout+o.stderr, "full")
			check()

			// Send only the new encryption root.
			zfsCmd(t, slices.Concat([]string{"change-key"}, keyOptions(format, keys[2]), []string{src + "/e"})...)
			zfsCmd(t, "snapshot", src+"/e@four")
			mustRunLocal(t, "send", src+"/e", dst+"/e")
			after["/e"] = "/e"
			requireRoots(t, dst, after)
			requireKeyOpens(t, dst+"/e", dst+"/e", keys[2])
		})
	}
}
