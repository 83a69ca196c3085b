package zfs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]uint64{
		"0": 0, "512": 512, "1M": 1 << 20, "1m": 1 << 20, "1048576": 1 << 20, "128KiB": 128 << 10, "128kb": 128 << 10,
		"1.5G": 3 << 29, "7B": 7, ".5K": 512, "15E": 15 << 60, "0.001Z": 1180591620717411328,
	} {
		got, ok := parseSize(s)
		require.True(t, ok, s)
		require.Equal(t, want, got, s)
	}
	for _, s := range []string{"", "K", "1X", "1BB", "1MBi", "-1", "+1", "1e3", "1 K", "16E", "1Z", "0x10", "1.2.3", "99999999999999999999", "none", "1KM", "1iB"} {
		_, ok := parseSize(s)
		require.False(t, ok, s)
	}
}

// Values that ZFS takes, and those that it refuses (TestZFSValues tries both).
func TestCheckValue(t *testing.T) {
	t.Parallel()
	for _, v := range goodValues() {
		name, value, _ := strings.Cut(v, "=")
		require.NoError(t, CheckValue(name, value), v)
	}
	for _, v := range badValues() {
		name, value, _ := strings.Cut(v, "=")
		require.ErrorContains(t, CheckValue(name, value), name+"=", v)
	}
	require.Error(t, CheckValue("a:b", strings.Repeat("x", 8<<10)))
	require.Less(t, len(CheckValue("a:b", strings.Repeat("x", 8<<10)).Error()), 200)
}

func goodValues() []string {
	return []string{"recordsize=1M", "recordsize=1048576", "recordsize=512", "compression=zstd-19", "compression=zstd-fast-100", "compression=zstd-fast",
		"compression=gzip-9", "compression=lz4", "compression=off", "checksum=blake3", "dedup=sha512,verify", "copies=3", "quota=none", "quota=10G",
		"reservation=0", "refreservation=none", "filesystem_limit=12", "snapshot_limit=none", "mountpoint=/a b", "mountpoint=none", "mountpoint=legacy",
		"atime=off", "xattr=sa", "acltype=posixacl", "canmount=noauto", "primarycache=metadata", "sync=always", "logbias=throughput",
		"redundant_metadata=some", "dnodesize=2k", "snapdir=hidden", "special_small_blocks=32K", "org.example:x=", "org.example:x=grün, a=b", "volmode=dev"}
}

func badValues() []string {
	return []string{"recordsize=3K", "recordsize=", "recordsize=32M", "recordsize=256", "recordsize=foo", "compression=foo", "compression=zstd-20",
		"compression=gzip-0", "compression=zstd-fast-11", "compression=zstd-03", "compression=", "checksum=md5", "dedup=edonr", "copies=4", "copies=0",
		"quota=foo", "quota=", "quota=-1", "reservation=x", "mountpoint=relative", "mountpoint=", "atime=yes", "atime=1", "xattr=", "canmount=no",
		"sync=off", "dnodesize=3k", "primarycache=on", "special_small_blocks=x", "filesystem_limit=a", "snapdir=on",
		"org.example:x=a\nb", "org.example:x=a\tb", "org.example:x=\xff", "org.example:x=\x1b[2J", "mountpoint=/a\nb", "sharenfs=on\n", "keylocation=file:///a\tb"}
}

func TestCheckTag(t *testing.T) {
	t.Parallel()
	for _, tag := range []string{"keep", "zxfer:job", strings.Repeat("t", 255)} {
		require.NoError(t, CheckTag(tag), tag)
	}
	for _, tag := range []string{"", ".keep", "-r", "a/b", "a\nb", "a\tb", strings.Repeat("t", 256), "ä"} {
		require.Error(t, CheckTag(tag), tag)
	}
}

// Features that streams need, by their flags.
func TestStreamFeatures(t *testing.T) {
	t.Parallel()
	names := func(f StreamFlags) string {
		var out []string
		for _, x := range f.Features() {
			if x.Name != "large_dnode" && x.Name != "longname" && x.Name != "large_microzap" {
				out = append(out, x.Name)
			}
		}
		return strings.Join(out, " ")
	}
	require.Empty(t, names(StreamFlags{}))
	require.True(t, StreamFlags{}.Needs("large_dnode"))
	require.Equal(t, "large_blocks", names(StreamFlags{LargeBlocks: true}))
	require.Equal(t, "embedded_data lz4_compress", names(StreamFlags{Embedded: true}))
	require.Equal(t, "lz4_compress zstd_compress", names(StreamFlags{Compressed: true}))
	require.Equal(t, "encryption lz4_compress large_blocks zstd_compress", names(StreamFlags{Raw: true}))
}
