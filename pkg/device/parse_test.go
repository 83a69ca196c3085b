package device

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/testenv"
)

// golden compares facts with a file.
func golden(t *testing.T, name string, f Facts) {
	t.Helper()
	raw, err := json.MarshalIndent(f, "", "  ")
	require.NoError(t, err)
	testenv.Golden(t, name, string(raw)+"\n")
}

func TestParseWipefs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		raw  string
		want []Signature
		fail string
	}{
		"nothing":       {"", nil, ""},
		"nothing, 2.41": {"{\n   \"signatures\": []\n}\n", nil, ""},
		"several labels of a pool": {
			`{"signatures":[{"offset":"0x3f000","type":"zfs_member","uuid":"7","label":"tank"},{"offset":"0x2f000","type":"zfs_member","uuid":"7","label":"tank"}]}`,
			[]Signature{{"sda", "zfs_member", 0x2f000, 0x3f000, "tank", "7"}}, "",
		},
		"two kinds": {
			`{"signatures":[{"offset":"0x438","type":"ext4","uuid":"u","label":null},{"offset":"0x1fe","type":"dos","uuid":null,"label":null}]}`,
			[]Signature{{"sda", "ext4", 0x438, 0, "", "u"}, {"sda", "dos", 0x1fe, 0, "", ""}}, "",
		},
		"not JSON":        {"wipefs: error", nil, "wipefs of sda"},
		"no offset":       {`{"signatures":[{"type":"ext4"}]}`, nil, `offset ""`},
		"no type":         {`{"signatures":[{"offset":"0x1"}]}`, nil, `type ""`},
		"negative offset": {`{"signatures":[{"offset":"-1","type":"x"}]}`, nil, "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseWipefs([]byte(c.raw), "sda")
			if c.fail != "" {
				require.ErrorContains(t, err, c.fail)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestPartitionTable(t *testing.T) {
	t.Parallel()
	found := []Signature{{Device: "sda", Type: "PMBR"}, {Device: "sda", Type: "gpt"}, {Device: "sda1", Type: "dos"}}
	require.Equal(t, "gpt", tableOf(found, "sda"))
	require.Equal(t, "dos", tableOf(found, "sda1"))
	require.Empty(t, tableOf(found, "sda2"))
}

func FuzzParseWipefs(f *testing.F) {
	f.Add(`{"signatures":[{"offset":"0x438","type":"ext4","uuid":"u","label":null}]}`)
	f.Add(`{"signatures":[]}`)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseWipefs([]byte(s), "x")
		for _, g := range got {
			require.NoError(t, err)
			require.GreaterOrEqual(t, g.Offset, int64(0))
			require.NotEmpty(t, g.Type)
		}
	})
}

func TestParseMountinfo(t *testing.T) {
	t.Parallel()
	got := parseMountinfo(strings.Join([]string{
		`22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro`,
		`30 22 8:3 / /mnt/with\040blank ro,relatime shared:2 master:1 - xfs /dev/sda3 ro,attr2`,
		`31 22 8:3 /sub /ro-mount ro - xfs /dev/sda3 rw`,
		`32 22 0:40 /@ /srv rw - btrfs /dev/mapper/a\040b rw,ssd`,
		`33 22 0:41 / /noopts rw - tmpfs tmpfs`,
		`broken line - x`, ``, `1 2 3 4 5 6`,
	}, "\n"))
	require.Equal(t, []mountLine{
		{"8:2", "/", "ext4", "/dev/sda2", false},
		{"8:3", "/mnt/with blank", "xfs", "/dev/sda3", true},
		{"8:3", "/ro-mount", "xfs", "/dev/sda3", false},
		{"0:40", "/srv", "btrfs", "/dev/mapper/a b", false},
		{"0:41", "/noopts", "tmpfs", "tmpfs", false},
	}, got)
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add(`22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw`)
	f.Add(`30 22 8:3 / /a\040b\134 rw - xfs \`)
	f.Fuzz(func(t *testing.T, s string) {
		for _, m := range parseMountinfo(s) {
			require.NotEmpty(t, m.number)
			require.NotEmpty(t, m.point)
		}
		require.LessOrEqual(t, len(unescape(s)), len(s))
		for _, p := range parseSwaps(s) {
			require.Equal(t, byte('/'), p[0])
		}
	})
}

func TestLVMNames(t *testing.T) {
	t.Parallel()
	for dm, want := range map[string]string{"vg-lv": "vg/lv", "my--vg-my--lv": "my-vg/my-lv", "vg-lv-real": "vg/lv-real", "x": "x", "": ""} {
		require.Equal(t, want, lvmName(dm), dm)
	}
}

func TestParseLVS(t *testing.T) {
	t.Parallel()
	// LVM 2.03.31
	r, err := parseLVS([]byte(`{"report":[{"lv":[{"lv_dm_path":"/dev/mapper/vg-s","lv_attr":"sri-a-s---","data_percent":"12.50"}]}],"log":[]}`))
	require.NoError(t, err)
	require.Equal(t, &lvReport{"/dev/mapper/vg-s", 12.5, false}, r)
	r, err = parseLVS([]byte(`{"report":[{"lv":[{"lv_dm_path":"/dev/mapper/vg-s","lv_attr":"sri-I-s---","data_percent":"100.00"}]}]}`))
	require.NoError(t, err)
	require.True(t, r.Lost)
	for _, bad := range []string{"", "{}", `{"report":[{"lv":[]}]}`, `{"report":[{"lv":[{"lv_attr":"s"}]}]}`,
		`{"report":[{"lv":[{"lv_dm_path":"/x","lv_attr":"sri-a-s---","data_percent":"many"}]}]}`} {
		_, err := parseLVS([]byte(bad))
		require.ErrorContains(t, err, "lvs", bad)
	}
}

// TestSystemDisk inspects the disk of the running system, with mounts everywhere. The facts are
// modeled on a laptop: a disk with EFI, boot, and LVM in LUKS.
func TestSystemDisk(t *testing.T) {
	t.Parallel()
	root := fstest.MapFS{}
	add := func(name, data string) { root[name] = &fstest.MapFile{Data: []byte(data)} }
	dev := func(name, number string) {
		add("sys/dev/block/"+number+"/uevent", "DEVNAME="+name+"\n")
		add("sys/class/block/"+name+"/dev", number+"\n")
		add("sys/class/block/"+name+"/size", "2048\n")
	}
	dev("nvme0n1", "259:0")
	for i, p := range []string{"nvme0n1p1", "nvme0n1p2", "nvme0n1p3"} {
		dev(p, "259:"+string(rune('1'+i)))
		add("sys/class/block/"+p+"/partition", "1\n")
		add("sys/class/block/nvme0n1/"+p+"/partition", "1\n")
	}
	for i, name := range []string{"luks", "vg-root", "vg-swap"} {
		d := "dm-" + string(rune('0'+i))
		dev(d, "253:"+string(rune('0'+i)))
		add("sys/class/block/"+d+"/dm/name", name+"\n")
		add("sys/class/block/"+d+"/dm/uuid", map[bool]string{true: "CRYPT-x\n", false: "LVM-x\n"}[i == 0])
	}
	add("sys/class/block/nvme0n1p3/holders/dm-0/x", "")
	add("sys/class/block/dm-0/holders/dm-1/x", "")
	add("sys/class/block/dm-0/holders/dm-2/x", "")
	add("sys/class/block/dm-0/slaves/nvme0n1p3/x", "")
	add("sys/class/block/dm-1/slaves/dm-0/x", "")
	add("sys/class/block/nvme0n1/wwid", "eui.0025\n")
	add("sys/class/block/nvme0n1/device/serial", "S6  \n")
	add("sys/class/block/nvme0n1/device/model", "Fast SSD   \n")
	add("sys/class/block/nvme0n1/queue/logical_block_size", "512\n")
	add("run/udev/data/b259:0", "E:ID_WWN=eui.0025ff\nE:ID_SERIAL_SHORT=other\n")
	add("proc/self/mountinfo", "1 1 253:1 / / rw - ext4 /dev/mapper/vg-root rw\n2 1 259:1 / /boot/efi rw - vfat /dev/nvme0n1p1 rw\n3 1 0:9 / /data rw - btrfs /dev/nvme0n1p2 rw\n")
	add("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/dm-2                               partition\t8388604\t\t0\t\t-2\n")
	v := view{root: root, number: func(path string) string {
		return map[string]string{"/dev/dm-2": "253:2", "/dev/nvme0n1p2": "259:2"}[path]
	}}
	f := Facts{Path: "/dev/nvme0n1", Name: "nvme0n1"}
	f.describe(v)
	f.inspectUses(v, f.Name)
	require.Equal(t, []string{"/", "/boot/efi", "swap"}, f.System)
	require.Len(t, f.Mounts, 3)
	require.Equal(t, []string{"dm-2"}, f.Swap)
	require.Equal(t, []string{"S6", "eui.0025ff", "Fast SSD"}, []string{f.Serial, f.WWN, f.Model})
	require.Equal(t, []string{"target-system", "target-mounted", "target-swap", "target-held"},
		ids(checkTarget(Facts{Boot: "another"}, f, Allow{Overwrite: true, Confirm: "S6"}), finding.Fail))
	require.Equal(t, []string{"source-mounted", "source-swap"}, ids(checkSource(f), finding.Warn))

	part := Facts{Path: "/dev/nvme0n1p3", Name: "nvme0n1p3"}
	part.describe(v)
	require.Equal(t, KindPartition, part.Kind)
	require.Equal(t, "S6", part.Serial)
	below, _ := v.underlying("dm-1")
	require.Equal(t, []string{"dm-0", "nvme0n1p3", "nvme0n1"}, below)
}
