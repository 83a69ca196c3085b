package zfs

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

func status(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(testenv.Data(t, "zfs-2.3.9", name))
	require.NoError(t, err)
	return string(text)
}

// TestParseDamage parses the output of zpool status -v of OpenZFS 2.3.9 after a scrub. Blocks of
// files under 64 KiB were overwritten with junk.
func TestParseDamage(t *testing.T) {
	t.Parallel()
	mounted := []Mount{{"/a", "za"}, {"/a/inc", "za/inc"}, {"/a/emb", "za/emb"}}
	d := ParseDamage(status(t, "status-files.txt"), mounted)
	require.Len(t, d.Objects, 35)
	require.False(t, d.Unlisted)
	require.Equal(t, DamagedObject{Dataset: "za/inc", Path: "/f1", Shown: "/a/inc/f1"}, d.Objects[0])
	require.Equal(t, DamagedObject{Dataset: "za/lb", Snapshot: "s1", Path: "/f1", Shown: "za/lb@s1:/f1"}, d.Objects[12])
	require.Equal(t, "za", d.Objects[11].Dataset)
	require.Equal(t, Scan{Errors: 14, Text: "scrub repaired 0B in 00:00:00 with 14 errors on Sun Nov 22 20:22:44 2026"}, d.Scan)
	for _, thing := range d.Within("za/emb").Objects {
		require.Equal(t, "za/emb", thing.Dataset)
	}
	require.Len(t, d.Within("za/emb").Objects, 4)
	require.Len(t, d.Within("za/e").Objects, 0)
}

// TestParseDamageWithoutKey parses the status of the same pool when the key of a damaged dataset is
// not loaded. ZFS then prints "errors: List of errors unavailable: permission denied" to standard
// error.
func TestParseDamageWithoutKey(t *testing.T) {
	t.Parallel()
	d := ParseDamage(status(t, "status-key-not-loaded.txt"), nil)
	require.True(t, d.Unlisted)
	require.Empty(t, d.Objects)
	d = ParseDamage("errors: No known data errors\n", nil)
	require.False(t, d.Unlisted)
}

func TestParseDamagedSpellings(t *testing.T) {
	t.Parallel()
	mounted := []Mount{{"/", "rpool/root"}, {"/home", "tank/home"}, {"/home/b", "tank/b"}, {"/home/.zfs/snapshot/s1", "tank/home@s1"}, {"/two", "tank/x"}, {"/two", "tank/y"}}
	for shown, want := range map[string]DamagedObject{
		"/home/b/x y":               {Dataset: "tank/b", Path: "/x y"},
		"/home/bc":                  {Dataset: "tank/home", Path: "/bc"},
		"/home/.zfs/snapshot/s1/f":  {Dataset: "tank/home", Snapshot: "s1", Path: "/f"},
		"/two/f":                    {},
		"/etc/passwd":               {Dataset: "rpool/root", Path: "/etc/passwd"},
		"tank/enc:/f1":              {Dataset: "tank/enc", Path: "/f1"},
		"tank/sp ace:/a:/b":         {Dataset: "tank/sp ace", Path: "/a:/b"},
		"tank/vol:<0x1>":            {Dataset: "tank/vol", Object: "0x1"},
		"tank/vol@s1:<0x1>":         {Dataset: "tank/vol", Snapshot: "s1", Object: "0x1"},
		"tank/home@a:b:/x":          {Dataset: "tank/home", Snapshot: "a:b", Path: "/x"},
		"<metadata>:<0x0>":          {Object: "0x0"},
		"<0x54>:<0x2>":              {Object: "0x2"},
		"tank/a/../b:/x":            {Path: "/x"},
		"something else altogether": {},
	} {
		want.Shown = shown
		require.Equal(t, want, parseDamaged(shown, mounted), shown)
	}
}

// TestParseMounts expects the mountpoints of the kernel's mount table, which zpool status prints,
// even if they differ from zfs list.
func TestParseMounts(t *testing.T) {
	t.Parallel()
	require.Equal(t, []Mount{{"/srv/my files", "tank/legacy"}, {"/srv/.zfs/snapshot/a", "tank/x@a"}}, ParseMounts(
		"36 25 0:32 / /srv/my\\040files rw,noatime shared:1 - zfs tank/legacy rw,xattr\n"+
			"37 25 0:33 / /boot rw - ext4 tank/fake rw\n38 25 0:34 / /other rw - zfs tanker/x rw\n"+
			"39 25 0:35 / /srv/.zfs/snapshot/a ro - zfs tank/x@a ro\n40 25\n", "tank"))
}

// TestPathOfUnknownDataset lists damaged paths below no known mountpoint. Each dataset may contain
// them, so each dataset reports them without their names.
func TestPathOfUnknownDataset(t *testing.T) {
	t.Parallel()
	const head = "errors: Permanent errors have been detected in the following files:\n\n"
	d := ParseDamage(head+"        /gone/f\n        /gone/g\n        tank/b:/x\n", []Mount{{"/home", "tank/home"}})
	require.Len(t, d.Within("tank").Objects, 3)
	in := d.Within("tank/home")
	require.Equal(t, []DamagedObject{{Shown: "/…"}}, in.Objects)
	require.Equal(t, 1, in.Elsewhere)
}

// TestPoolMetadataDamage expects each dataset to report errors in pool metadata, as a count
// without details.
func TestPoolMetadataDamage(t *testing.T) {
	t.Parallel()
	d := ParseDamage("errors: Permanent errors have been detected in the following files:\n\n        <metadata>:<0x3d>\n        <0x44>:<0x2>\n", nil)
	require.Len(t, d.Within("tank").Objects, 2)
	require.Zero(t, d.Within("tank").PoolErrors)
	require.Equal(t, Damage{PoolErrors: 2}, d.Within("tank/home"))
}

func TestReasonsForUnlistedErrors(t *testing.T) {
	t.Parallel()
	require.Equal(t, "insufficient privileges", UnlistedReason("errors: List of errors unavailable: insufficient privileges\n"))
	require.Equal(t, KeyNotLoaded, UnlistedReason("x\nerrors: List of errors unavailable: permission denied\n"))
	require.Empty(t, UnlistedReason("no such pool\n"))
}

func TestParseDamageDuringScrub(t *testing.T) {
	t.Parallel()
	const text = "  scan: scrub in progress since Sun Nov 22 20:48:25 2026\n\t10.6M / 10.9M scanned, 8.46M / 10.7M issued at 8.46M/s\n\t0B repaired, 79.07% done, no estimated completion time\nconfig:\n\nerrors: No known data errors\n"
	d := ParseDamage(text, nil)
	require.True(t, d.Scan.Running)
	require.InDelta(t, 79.07, d.Scan.Percent, 0.001)
	require.True(t, ParseDamage("scan: scrub paused since Sun\nerrors: No known data errors\n", nil).Scan.Paused)
}

func TestParseDamageIsBounded(t *testing.T) {
	t.Parallel()
	d := ParseDamage("errors: Permanent errors have been detected in the following files:\n\n"+strings.Repeat("        tank/a:<0x1>\n", MaxDamage+3), nil)
	require.Len(t, d.Objects, MaxDamage)
	require.Equal(t, 3, d.More)
}

func FuzzDamage(f *testing.F) {
	f.Add(status(f, "status-files.txt"), "36 25 0:32 / /a rw - zfs za rw\n")
	f.Add("errors: Permanent errors have been detected in the following files:\n\n        <metadata>:<0x0>\n", "")
	f.Fuzz(func(t *testing.T, text, mounted string) {
		d := ParseDamage(text, ParseMounts(mounted, "za"))
		for _, thing := range d.Objects {
			if thing.Snapshot != "" {
				require.NoError(t, CheckComponent(thing.Snapshot))
			}
		}
	})
}

func TestCorrectiveArgs(t *testing.T) {
	t.Parallel()
	r := ReceiveSpec{Target: "tank/a", Corrective: true, Arrival: Arrival{Snapshots: []SnapshotID{{"zxfer-heal-1", 7}}}}
	args, err := ReceiveArgs(r)
	require.NoError(t, err)
	require.Equal(t, []string{"receive", "-c", "tank/a@zxfer-heal-1"}, args)
	for name, bend := range map[string]func(*ReceiveSpec){
		"foreign snapshot": func(r *ReceiveSpec) { r.Arrival.Snapshots = []SnapshotID{{"daily", 7}} },
		"no snapshot":      func(r *ReceiveSpec) { r.Arrival.Snapshots = nil },
		"rollback":         func(r *ReceiveSpec) { r.Rollback = true },
		"a property":       func(r *ReceiveSpec) { r.Set = map[string]string{"readonly": "on"} },
		"a clone":          func(r *ReceiveSpec) { r.Origin = "tank/b@x" },
	} {
		bad := r
		bend(&bad)
		_, err := ReceiveArgs(bad)
		require.Error(t, err, name)
	}
}
