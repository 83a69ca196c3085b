package device

import (
	"slices"
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/option"
)

// TestCheckTarget checks rules that need no device.
func TestCheckTarget(t *testing.T) {
	t.Parallel()
	src := Facts{Path: "/dev/sda", Kind: KindDisk, Name: "sda", Size: 100, LogicalSector: 512, PartitionTable: "gpt", Boot: "here", Major: 8}
	blank := Facts{Path: "/dev/sdb", Kind: KindDisk, Name: "sdb", Size: 100, LogicalSector: 512, Serial: "S2", WWN: "naa.5", Boot: "here", Major: 8, Minor: 16}
	used := blank
	used.Signatures = []Signature{{Device: "sdb1", Type: "ext4", Label: "home"}}
	with := func(f Facts, change func(*Facts)) Facts { change(&f); return f }
	for _, c := range []struct {
		name       string
		dst        Facts
		allow      Allow
		fail, warn []string
	}{
		{"blank", blank, Allow{}, nil, nil},
		{"used", used, Allow{}, []string{"target-contents"}, nil},
		{"overwrite alone", used, Allow{Overwrite: true}, []string{"target-confirm"}, nil},
		{"confirm alone", used, Allow{Confirm: "S2"}, []string{"target-contents"}, nil},
		{"serial", used, Allow{Overwrite: true, Confirm: " s2 "}, nil, nil},
		{"WWN", used, Allow{Overwrite: true, Confirm: "naa.5"}, nil, nil},
		{"size instead of the serial", used, Allow{Overwrite: true, Confirm: "100"}, []string{"target-confirm"}, nil},
		{"size", with(used, func(f *Facts) { f.Serial, f.WWN = "", "" }), Allow{Overwrite: true, Confirm: "100"}, nil, nil},
		{"wrong size", with(used, func(f *Facts) { f.Serial, f.WWN = "", "" }), Allow{Overwrite: true, Confirm: "1000"}, []string{"target-confirm"}, nil},
		{"unknown contents", with(blank, func(f *Facts) { f.Unprobed = "no wipefs" }), Allow{}, []string{"target-contents"}, nil},
		{"cannot read", with(blank, func(f *Facts) { f.Unprobed, f.Denied = "open: permission denied", true }), Allow{}, []string{"target-denied"}, nil},
		{"larger, other sectors", with(blank, func(f *Facts) { f.Size, f.LogicalSector = 101, 4096 }), Allow{}, nil, []string{"sector-size", "gpt-end"}},
		{"larger, with labels at its end", with(used, func(f *Facts) {
			f.Size, f.Signatures = 200, []Signature{{Device: "sdb", Type: "zfs_member", Offset: 10, Last: 190}}
		}), Allow{Overwrite: true, Confirm: "S2"}, nil, []string{"target-end", "gpt-end"}},
		{"larger, with a table's copy at its end", with(used, func(f *Facts) {
			f.Size, f.Signatures = 200, []Signature{{Device: "sdb", Type: "gpt", Offset: 1, Last: 199}, {Device: "sdb", Type: "ext4", Offset: 99}, {Device: "sdb1", Type: "linux_raid_member", Offset: 150}}
		}), Allow{Overwrite: true, Confirm: "S2"}, nil, []string{"gpt-end"}},
		{"smaller", with(blank, func(f *Facts) { f.Size = 99 }), Allow{Overwrite: true, Confirm: "S2"}, []string{"target-too-small"}, nil},
		{"in use by an unknown program", with(blank, func(f *Facts) { f.Busy = true }), Allow{Overwrite: true, Confirm: "S2"}, []string{"target-held"}, nil},
		{"same number on another host", with(blank, func(f *Facts) { f.Boot, f.Minor = "there", 0 }), Allow{}, nil, nil},
		{"file", Facts{Path: "/a", Real: "/a", Kind: KindFile, Size: 100, HasData: true, FilesystemFree: 100}, Allow{}, []string{"target-contents"}, nil},
		{"file without data", Facts{Path: "/a", Real: "/a", Kind: KindFile, Size: 100, FilesystemFree: 100}, Allow{}, nil, nil},
		{"space already allocated", Facts{Path: "/a", Real: "/a", Kind: KindFile, Size: 100, Allocated: 60, FilesystemFree: 40}, Allow{}, nil, nil},
		{"longer file", Facts{Path: "/a", Real: "/a", Kind: KindFile, Size: 101, FilesystemFree: 100}, Allow{}, nil, []string{"target-longer"}},
		{"no space", Facts{Path: "/a", Real: "/a", Kind: KindMissing, FilesystemFree: 99}, Allow{}, []string{"target-no-space"}, nil},
		{"possibly no space", Facts{Path: "/a", Real: "/a", Kind: KindMissing, FilesystemFree: 99}, Allow{Sparse: true}, nil, []string{"target-no-space"}},
		{"read-only file system", Facts{Path: "/a", Real: "/a", Kind: KindMissing, FilesystemFree: 100, ReadOnly: true}, Allow{}, []string{"target-read-only"}, nil},
		{"misspelled device", Facts{Path: "/dev/sdx", Real: "/dev/sdx", Kind: KindMissing, FilesystemFree: 100}, Allow{}, []string{"target-no-device"}, nil},
		{"another path to the source", with(blank, func(f *Facts) { f.WWN = "0x5000C500A" }), Allow{}, nil, []string{"target-same-disk"}},
		{"same disk on another host", with(blank, func(f *Facts) { f.WWN, f.Boot = "naa.5000c500a", "there" }), Allow{}, nil, []string{"target-same-disk"}},
		{"partition by another path", with(blank, func(f *Facts) { f.WWN, f.Start, f.Size = "naa.5000c500a", 50, 100 }), Allow{}, nil, []string{"target-same-disk"}},
		{"area beyond the source", with(blank, func(f *Facts) { f.WWN, f.Start = "naa.5000c500a", 100 }), Allow{}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			src := src
			src.WWN = "naa.5000c500a"
			got := checkTarget(src, c.dst, c.allow)
			require.Equal(t, c.fail, ids(got, finding.Fail), "%+v", got)
			require.Equal(t, c.warn, ids(got, finding.Warn), "%+v", got)
			for _, p := range got {
				require.NotEmpty(t, p.Remedy)
				require.Contains(t, p.Summary, c.dst.Path)
			}
		})
	}
}

func TestImageWithOtherSectorSize(t *testing.T) {
	t.Parallel()
	src := Facts{Path: "/a.img", Kind: KindFile, Size: 100, LogicalSector: 512, PartitionTable: "dos"}
	dst := Facts{Path: "/dev/sdb", Kind: KindDisk, Name: "sdb", Size: 100, LogicalSector: 4096}
	require.Equal(t, []string{"sector-size"}, ids(checkTarget(src, dst, Allow{}), finding.Warn))
	src.PartitionTable = ""
	require.Empty(t, checkTarget(src, dst, Allow{}))
}

// TestDiskWithTwoPaths expects that a disk in use is not overwritten through a second path. WWNs
// that are not world-wide do not identify a disk.
func TestDiskWithTwoPaths(t *testing.T) {
	t.Parallel()
	src := Facts{Path: "/dev/sda", Kind: KindDisk, Name: "sda", Size: 100, WWN: "naa.5", Busy: true}
	dst := Facts{Path: "/dev/sdb", Kind: KindDisk, Name: "sdb", Size: 100, WWN: "naa.5", Minor: 16}
	require.Equal(t, []string{"target-same-disk"}, ids(checkTarget(src, dst, Allow{Overwrite: true, Confirm: "naa.5"}), finding.Fail))
	src.WWN, dst.WWN = "t10.ATA     QEMU HARDDISK", "t10.ATA     QEMU HARDDISK"
	require.Empty(t, checkTarget(src, dst, Allow{}))
	src.WWN, dst.WWN = "", ""
	require.Empty(t, checkTarget(src, dst, Allow{}))
}

// TestCheckSource expects that a drive without a medium is rejected.
func TestCheckSource(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"source-empty"}, ids(checkSource(Facts{Path: "/dev/sdx", Name: "sdx", Kind: KindDisk}), finding.Fail))
	require.Empty(t, checkSource(Facts{Path: "/dev/sdx", Name: "sdx", Kind: KindDisk, Size: 1}))
	require.Empty(t, checkSource(Facts{Path: "/empty", Kind: KindFile}))
	require.Empty(t, checkSource(Facts{Path: "-", Kind: "stream"}))
}

// TestHintsQuoteRemoteNames expects that hints quote names from another host, because users paste
// hints into a shell.
func TestHintsQuoteRemoteNames(t *testing.T) {
	t.Parallel()
	const evil = `$(reboot)'; reboot "\`
	src := Facts{Path: "/dev/" + evil, Kind: KindDisk, Name: "sda", Size: 100, LogicalSector: 512, PartitionTable: "gpt"}
	src.Mounts = []Mount{{Device: "sda", Point: "/" + evil, Type: "ext4"}}
	dst := Facts{Path: "/dev/" + evil, Kind: KindDisk, Name: "sdb", Size: 200, LogicalSector: 512, Minor: 16, Machine: "another"}
	used := dst
	used.Serial, used.Signatures = evil, []Signature{{Device: "sdb", Type: "ext4", Last: 150}}
	held := dst
	held.Mounts = []Mount{{Device: "sdb", Point: "/" + evil, Type: "ext4"}, {Device: "sdb", Point: "-" + evil, Type: "ext4"}}
	for _, kind := range []string{KindLVM, KindDM, KindMD, KindLoop, KindDisk} {
		held.Holders = append(held.Holders, Holder{Name: evil, Kind: kind, Label: evil, On: "sdb"})
	}
	commands := map[string]int{}
	for _, f := range slices.Concat(checkSource(src), checkTarget(src, held, Allow{}), checkTarget(src, used, Allow{}),
		checkTarget(src, used, Allow{Overwrite: true, Confirm: evil})) {
		if !strings.Contains(f.Remedy, "reboot") {
			continue
		}
		commands[f.ID]++
		words, err := shellquote.Split(option.Flags(f.Remedy))
		require.NoError(t, err, f.Remedy)
		for i, w := range words {
			if strings.Contains(w, "reboot") {
				require.Contains(t, w, evil, f.Remedy)
				require.True(t, w[0] != '-' || words[i-1] == "--", f.Remedy)
			}
		}
	}
	require.Equal(t, map[string]int{"source-mounted": 1, "target-mounted": 2, "target-held": 5, "target-contents": 1, "gpt-end": 2, "target-end": 2}, commands)
}
