package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// newFilePool creates a pool on a file and destroys it after the test.
func newFilePool(t *testing.T, name string, options ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pool")
	run(t, "truncate", "-s", "200M", file)
	run(t, append(append([]string{"zpool", "create", "-m", "none"}, options...), name, file)...)
	t.Cleanup(func() { _ = exec.Command("zpool", "destroy", "-f", name).Run() })
}

// TestZFSPoolFeatures sends to pools that lack features which the source uses. zxfer sends
// streams without these features, or refuses and prints the command that enables the
// missing one.
func TestZFSPoolFeatures(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	for name, options := range map[string][]string{"small": nil, "big": {"-o", "recordsize=1M"}, "zstd": {"-o", "compression=zstd"}, "dnodes": {"-o", "dnodesize=1k", "-o", "xattr=sa"}} {
		zfsCmd(t, append(append([]string{"create"}, options...), src+"/"+name)...)
		fill(t, src+"/"+name, "a", 3<<20)
		run(t, "sh", "-c", "echo embedded >"+mountpoint(t, src+"/"+name)+"/b; yes | head -c 1000000 >"+mountpoint(t, src+"/"+name)+"/c")
		zfsCmd(t, "snapshot", src+"/"+name+"@one")
	}
	encryptedDataset(t, src+"/secret")
	fill(t, src+"/secret", "a", 1<<20)
	zfsCmd(t, "snapshot", src+"/secret@one")
	on := func(features ...string) (options []string) {
		options = []string{"-d"}
		for _, f := range features {
			options = append(options, "-o", "feature@"+f+"=enabled")
		}
		return options
	}
	datasets := []string{"small", "big", "zstd", "dnodes", "secret"}
	for _, tt := range []struct {
		name    string
		options []string
		refused map[string]string // the missing feature by dataset
		note    string
		matter  []string // datasets for which its features matter; only these are sent below the long level
	}{
		{"no features", on(), map[string]string{"dnodes": "large_dnode", "secret": "encryption"}, "restarts from the start", datasets},
		{"resumable", on("extensible_dataset"), map[string]string{"dnodes": "large_dnode", "secret": "encryption"}, "", []string{"small"}},
		{"without lz4", on("embedded_data", "large_blocks", "zstd_compress", "large_dnode", "encryption"), map[string]string{"secret": "lz4_compress"}, "", []string{"small", "dnodes", "secret"}},
		{"without large blocks", on("embedded_data", "lz4_compress", "zstd_compress", "large_dnode", "encryption"), nil, "", []string{"big", "zstd", "secret"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const pool = "zxold"
			newFilePool(t, pool, tt.options...)
			sent := tt.matter
			if testenv.Long() {
				sent = datasets
			}
			for _, d := range sent {
				before := zfsCmd(t, "list", "-Hr", "-t", "all", "-o", "name", pool)
				o := zxfer(t, "send", src+"/"+d, pool+"/"+d)
				if f := tt.refused[d]; f != "" {
					require.Equal(t, 3, o.code, "%s: %s", d, o)
					require.Contains(t, o.stderr, "zpool set feature@"+f+"=enabled "+pool)
					require.Equal(t, before, zfsCmd(t, "list", "-Hr", "-t", "all", "-o", "name", pool))
					continue
				}
				require.Equal(t, 0, o.code, "%s: %s", d, o)
				require.Equal(t, tt.note != "", strings.Contains(o.stderr, "restarts from the start"), o.String())
				if d != "secret" {
					zfsCmd(t, "set", "mountpoint=/tmp/zxold", pool+"/"+d)
					zfsCmd(t, "mount", pool+"/"+d)
					run(t, "diff", "-r", mountpoint(t, src+"/"+d), "/tmp/zxold")
					zfsCmd(t, "unmount", pool+"/"+d)
				}
				zfsCmd(t, "snapshot", src+"/"+d+"@two")
				mustZxfer(t, "send", src+"/"+d, pool+"/"+d)
				zfsCmd(t, "destroy", src+"/"+d+"@two")
			}
			for _, size := range []string{"1M", "1048576", "1MiB"} {
				if tt.name != "no features" && !(testenv.Long() && tt.name != "without lz4") {
					break
				}
				o := zxfer(t, "send", "-o", "recordsize="+size, src+"/small", pool+"/other")
				require.Equal(t, 3, o.code, o.String())
				require.Contains(t, o.stderr, "zpool set feature@large_blocks=enabled "+pool)
			}
		})
	}
}

// TestZFSPropertyValues expects zxfer to refuse, before anything changes, exactly those property
// values that ZFS refuses. It sends with two values that zfs.CheckValue refuses, and with
// each value that only a plan refuses.
func TestZFSPropertyValues(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "snapshot", src+"@one")
	zfsCmd(t, "create", dst)
	for _, v := range []string{"recordsize=3K", "recordsize=32M", "recordsize=", "compression=foo", "compression=zstd-20", "compression=zstd-fast-11",
		"checksum=md5", "dedup=edonr", "copies=4", "quota=foo", "reservation=-1", "mountpoint=relative", "atime=yes", "canmount=no", "sync=off",
		"dnodesize=3k", "snapdir=on", "primarycache=on", "filesystem_limit=a", "nosuch=1", "used=1"} {
		require.Error(t, exec.Command("zfs", "create", "-u", "-o", v, dst+"/x").Run(), "ZFS accepts %s", v)
		name, value, _ := strings.Cut(v, "=")
		if zfs.CheckValue(name, value) != nil && !slices.Contains([]string{"recordsize=3K", "copies=4"}, v) {
			continue // a plan refuses all values that this function refuses
		}
		o := zxfer(t, "send", "-o", v, src, dst+"/y")
		require.Equal(t, 3, o.code, "%s: %s", v, o)
		require.Contains(t, o.stderr, "--set "+name)
	}
	taken := [2][]string{} // a command line can set each property once, so the values need two
	for _, v := range []string{"recordsize=1m", "recordsize=128KiB", "compression=zstd-fast-100", "compression=zstd-19", "dedup=sha512,verify", "copies=3", "quota=1.5G",
		"refquota=none", "mountpoint=/a b", "xattr=on", "acltype=posixacl", "dnodesize=2k", "snapshot_limit=none", "filesystem_limit=5", "a:b=", "special_small_blocks=32K"} {
		name, value, _ := strings.Cut(v, "=")
		require.NoError(t, zfs.CheckValue(name, value))
		i := 0
		if slices.ContainsFunc(taken[0], func(o string) bool { return strings.HasPrefix(o, name+"=") }) {
			i = 1
		}
		taken[i] = append(taken[i], "-o", v)
	}
	for i, options := range taken {
		zfsCmd(t, slices.Concat([]string{"create", "-u"}, options, []string{fmt.Sprint(dst, "/x", i)})...)
	}
	require.NotContains(t, zfsCmd(t, "list", "-H", "-r", "-o", "name", dst), "/y")
	// Hold tags are checked too.
	for _, tag := range []string{strings.Repeat("t", 256), ".t", "a/b"} {
		o := zxfer(t, "send", "--hold", tag, src, dst+"/y")
		require.Equal(t, 2, o.code, o.String())
		require.Contains(t, o.stderr, "--hold")
	}
	tag := strings.Repeat("t", 255)
	mustZxfer(t, "send", "--hold", tag, src, dst+"/y")
	require.Contains(t, zfsCmd(t, "holds", "-H", dst+"/y@one"), tag)
}
