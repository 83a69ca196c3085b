package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// poolOf makes a pool of a file for a test.
func poolOf(t *testing.T, name string, options ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pool")
	run(t, "truncate", "-s", "200M", file)
	run(t, append(append([]string{"zpool", "create", "-m", "none"}, options...), name, file)...)
	t.Cleanup(func() { _ = exec.Command("zpool", "destroy", "-f", name).Run() })
}

// A pool that lacks features of the source's takes what it can, by streams
// without what stands in the way; what it cannot is refused before, with the
// command that enables it.
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
	for _, tt := range []struct {
		name    string
		options []string
		refused map[string]string // by dataset, the feature
		note    string
	}{
		{"none", on(), map[string]string{"dnodes": "large_dnode", "secret": "encryption"}, "begins anew"},
		{"resumable", on("extensible_dataset"), map[string]string{"dnodes": "large_dnode", "secret": "encryption"}, ""},
		{"without lz4", on("embedded_data", "large_blocks", "zstd_compress", "large_dnode", "encryption"), map[string]string{"secret": "lz4_compress"}, ""},
		{"without large blocks", on("embedded_data", "lz4_compress", "zstd_compress", "large_dnode", "encryption"), nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const pool = "zxold"
			poolOf(t, pool, tt.options...)
			for _, d := range []string{"small", "big", "zstd", "dnodes", "secret"} {
				before := zfsCmd(t, "list", "-Hr", "-t", "all", "-o", "name", pool)
				o := zxfer(t, "send", src+"/"+d, pool+"/"+d)
				if f := tt.refused[d]; f != "" {
					require.Equal(t, 3, o.code, "%s: %s", d, o)
					require.Contains(t, o.stderr, "zpool set feature@"+f+"=enabled "+pool)
					require.Equal(t, before, zfsCmd(t, "list", "-Hr", "-t", "all", "-o", "name", pool))
					continue
				}
				require.Equal(t, 0, o.code, "%s: %s", d, o)
				require.Equal(t, tt.note != "", strings.Contains(o.stderr, "begins anew"), o.String())
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
				if tt.name == "without lz4" {
					break
				}
				o := zxfer(t, "send", "-o", "recordsize="+size, src+"/small", pool+"/other")
				require.Equal(t, 3, o.code, o.String())
				require.Contains(t, o.stderr, "zpool set feature@large_blocks=enabled "+pool)
			}
		})
	}
}

// What ZFS refuses as the value of a property is refused before anything moves,
// and nothing else is.
func TestZFSValues(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "snapshot", src+"@one")
	zfsCmd(t, "create", dst)
	for _, v := range []string{"recordsize=3K", "recordsize=32M", "recordsize=", "compression=foo", "compression=zstd-20", "compression=zstd-fast-11",
		"checksum=md5", "dedup=edonr", "copies=4", "quota=foo", "reservation=-1", "mountpoint=relative", "atime=yes", "canmount=no", "sync=off",
		"dnodesize=3k", "snapdir=on", "primarycache=on", "filesystem_limit=a", "nosuch=1", "used=1"} {
		require.Error(t, exec.Command("zfs", "create", "-u", "-o", v, dst+"/x").Run(), "ZFS takes %s", v)
		o := zxfer(t, "send", "-o", v, src, dst+"/y")
		require.Equal(t, 3, o.code, "%s: %s", v, o)
		require.Contains(t, o.stderr, "--set "+strings.Split(v, "=")[0])
	}
	for _, v := range []string{"recordsize=1m", "recordsize=128KiB", "compression=zstd-fast-100", "compression=zstd-19", "dedup=sha512,verify", "copies=3", "quota=1.5G",
		"refquota=none", "mountpoint=/a b", "xattr=on", "acltype=posixacl", "dnodesize=2k", "snapshot_limit=none", "filesystem_limit=5", "a:b=", "special_small_blocks=32K"} {
		name, value, _ := strings.Cut(v, "=")
		require.NoError(t, zfs.CheckValue(name, value))
		zfsCmd(t, "create", "-u", "-o", v, dst+"/x")
		zfsCmd(t, "destroy", dst+"/x")
	}
	require.NotContains(t, zfsCmd(t, "list", "-H", "-r", "-o", "name", dst), "/y")
	// A hold's tag.
	for _, tag := range []string{strings.Repeat("t", 256), ".t", "a/b"} {
		o := zxfer(t, "send", "--hold", tag, src, dst+"/y")
		require.Equal(t, 2, o.code, o.String())
		require.Contains(t, o.stderr, "--hold")
	}
	tag := strings.Repeat("t", 255)
	mustZxfer(t, "send", "--hold", tag, src, dst+"/y")
	require.Contains(t, zfsCmd(t, "holds", "-H", dst+"/y@one"), tag)
}
