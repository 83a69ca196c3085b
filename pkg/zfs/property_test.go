package zfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
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

// TestCheckValue checks values that ZFS accepts and refuses. TestZFSPropertyValues tries both on real
// pools.
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

// TestStreamFeatures checks the features that streams need, by their flags.
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

// registered returns the native properties of each captured release: attribute and dataset types by
// name.
func registered(t *testing.T) map[string]map[string][]string {
	files, err := filepath.Glob(testenv.Data(t, "zfs-2.1-2.4", "properties-*.txt"))
	require.NoError(t, err)
	require.Len(t, files, 4)
	out := map[string]map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		release := map[string][]string{}
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(strings.TrimSpace(line), "\t"); !strings.HasPrefix(line, "#") {
				require.Len(t, f, 4, line)
				release[f[0]] = f[1:]
			}
		}
		require.Greater(t, len(release), 90, file)
		out[strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "properties-"), ".txt")] = release
	}
	return out
}

// TestEveryNativePropertyHasClass expects that every native property of OpenZFS 2.1 to 2.4 has a
// class and the dataset types that all releases give it. It fails for a property that is not in the
// table.
func TestEveryNativePropertyHasClass(t *testing.T) {
	t.Parallel()
	all := registered(t)
	for version, release := range all {
		for name, of := range release {
			n := nativeOf(name)
			require.NotNil(t, n, "OpenZFS %s has %s, and natives does not: decide its class", version, name)
			require.Equal(t, of[0] == "readonly" || name == "pbkdf2salt", n.of == report, "%s of %s: read-only", name, version)
			if strings.HasPrefix(of[0], "onetime") && name != "pbkdf2salt" {
				require.Contains(t, []class{encryption, fixed}, n.of, name)
			}
			for typ, letter := range map[string]string{"filesystem": "f", "volume": "v"} {
				if has := strings.Contains(of[1], typ); name == "special_small_blocks" && version == "2.4.4" && typ == "volume" {
					require.True(t, has) // volumes have it only since 2.4
				} else {
					require.Equal(t, has, strings.Contains(n.on, letter), "%s of %s: %s", name, version, typ)
				}
			}
		}
	}
	seen := map[string]bool{"jailed": true} // exists only on FreeBSD
	for _, release := range all {
		for name := range release {
			seen[name] = true
		}
	}
	var names []string
	for _, n := range nativeProperties {
		require.NotZero(t, n.of, n.name)
		require.True(t, seen[n.name], "no release has %s", n.name)
		for _, v := range n.foreign {
			require.NoError(t, CheckValue(n.name, v), n.name)
		}
		names = append(names, n.name)
	}
	slices.Sort(names)
	require.Equal(t, slices.Compact(slices.Clone(names)), names)
	for _, file := range []string{"get-survey.txt", "get-local.txt"} { // output of zfs get of 2.3.9
		for line := range strings.Lines(string(fixture(t, file))) {
			if f := strings.Split(line, "\t"); len(f) == 4 {
				require.True(t, KnownProperty(f[1]), "%s: %s", file, f[1])
			}
		}
	}
}

// TestCarry checks which values another host may choose, by the requested properties.
func TestCarry(t *testing.T) {
	t.Parallel()
	const note, forged = "org.example:note", "x\nvault/x\t/root/.ssh\ton\toff"
	for _, tt := range []struct {
		property, value     string
		always, asked, name error // by default, with -p or in a restore, with -p and named
	}{
		{"recordsize", "1048576", nil, nil, nil},
		{"compression", "zstd-3", nil, nil, nil},
		{"copies", "3", nil, nil, nil},
		{"checksum", "sha512", nil, nil, nil},
		{"checksum", "off", ErrNotNamed, ErrNotNamed, nil},
		{"checksum", "noparity", ErrNotNamed, ErrNotNamed, nil},
		{"atime", "off", ErrNotRequested, nil, nil},
		{"xattr", "sa", ErrNotRequested, nil, nil},
		{"sync", "disabled", ErrNotRequested, nil, nil},
		{"defaultuserquota", "1000", ErrNotRequested, nil, nil},
		{"dedup", "on", ErrNotRequested, ErrNotNamed, nil},
		{"dedup", "off", ErrNotRequested, nil, nil},
		{"special_small_blocks", "32768", ErrNotRequested, ErrNotNamed, nil},
		{"snapdev", "visible", ErrNotRequested, ErrNotNamed, nil},
		{"volmode", "full", ErrNotRequested, ErrNotNamed, nil},
		{"volmode", "none", ErrNotRequested, nil, nil},
		{"setuid", "on", ErrNotRequested, ErrPrivileges, ErrPrivileges},
		{"setuid", "off", nil, nil, nil},
		{"acltype", "posix", nil, nil, nil},
		{"nbmand", "on", nil, nil, nil},
		{"longname", "on", nil, nil, nil},
		{"devices", "on", ErrNotRequested, ErrPrivileges, ErrPrivileges},
		{"exec", "on", ErrNotRequested, ErrPrivileges, ErrPrivileges},
		{"exec", "off", nil, nil, nil},
		{"context", "system_u:object_r:bin_t:s0", ErrNotRequested, ErrPrivileges, ErrPrivileges},
		{"zoned", "on", ErrNotRequested, ErrPrivileges, ErrPrivileges},
		{"mountpoint", "/root/.ssh", ErrNotRequested, ErrLocation, ErrLocation},
		{"canmount", "on", ErrNotRequested, ErrLocation, ErrLocation},
		{"readonly", "off", ErrNotRequested, ErrLocation, ErrLocation},
		{"overlay", "on", ErrNotRequested, ErrLocation, ErrLocation},
		{"sharenfs", "rw", ErrNotRequested, ErrLocation, ErrLocation},
		{"quota", "7", ErrNotRequested, ErrLocation, ErrLocation},
		{"encryption", "off", ErrNotRequested, ErrNotRequested, ErrNotRequested},
		{"keylocation", "https://evil", ErrNotRequested, ErrNotRequested, ErrNotRequested},
		{"volsize", "7", ErrNotRequested, ErrNotRequested, ErrNotRequested},
		{"origin", "a@b", ErrNotRequested, ErrNotRequested, ErrNotRequested},
		{"filesystem_count", "7", ErrNotRequested, ErrNotRequested, ErrNotRequested},
		{"later", "on", ErrNotRequested, ErrUnknown, ErrUnknown},
		{note, "kept", ErrNotRequested, ErrNotNamed, nil},
		{"com.sun:auto-snapshot", "true", ErrNotRequested, ErrNotNamed, nil},
		{"org.zfsbootmenu:commandline", "init=/x", ErrNotRequested, ErrNotNamed, nil},
		{"org.openzfs.systemd:required-by", "x.service", ErrNotRequested, ErrReserved, ErrReserved},
		{"zxfer:job", "offsite", ErrNotRequested, ErrReserved, ErrReserved},
		{"zxfer:drill", "j", ErrNotRequested, ErrReserved, ErrReserved},
		{"zxfer:consistent", "all", ErrNotRequested, ErrReserved, ErrReserved},
		{FlagsProperty, "w", ErrNotRequested, ErrNotRequested, ErrNotRequested},
		{RestoreProperty, "on", ErrNotRequested, ErrNotRequested, ErrNotRequested},
	} {
		named := []string{tt.property}
		for c, want := range map[*Carry]error{{}: tt.always, {All: true}: tt.asked, {All: true, Named: named}: tt.name} {
			require.ErrorIs(t, c.Check(Filesystem, tt.property, tt.value), want, "%s=%s of %v", tt.property, tt.value, *c)
		}
		for _, value := range []string{forged, "a\tb", "\xff", "\ufffd", "\x1b[2J", strings.Repeat("x", 9000)} {
			require.Error(t, Carry{All: true, Named: named}.Check(Filesystem, tt.property, value), "%s=%q", tt.property, value)
		}
		if tt.name == nil && classOf(tt.property) != rights {
			require.NoError(t, CheckNamed(tt.property))
		} else {
			require.Error(t, CheckNamed(tt.property), tt.property)
		}
	}
	require.ErrorIs(t, Carry{All: true}.Check(Volume, "atime", "off"), ErrNotRequested)
	require.NoError(t, Carry{All: true}.Check(Volume, "volthreading", "off"))
	require.ErrorIs(t, Carry{All: true}.Check(Filesystem, "volthreading", "off"), ErrNotRequested)
	require.Error(t, Carry{All: true, Named: []string{"a b"}}.Check(Filesystem, "a b", "x"))
	require.Error(t, Carry{}.Check(Filesystem, "recordsize", "3"))
	require.Error(t, Carry{All: true}.Check(Filesystem, "atime", "off\n"))
}
