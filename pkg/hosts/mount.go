package hosts

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Mount mounts a filesystem at its mountpoint. It ignores a mounted one.
//
// zfs mount follows symbolic links. If the parent's files came from another host, a link among them could move
// the mount to a directory of the system. Therefore Mount refuses a mountpoint that leads through such a link.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_mount.c (zfs_mount_at)
func (l *Local) Mount(ctx context.Context, dataset string) error {
	found, err := l.Properties(ctx, []string{dataset}, []string{"mountpoint", "mounted"})
	if err != nil {
		return err
	}
	at := found[dataset]["mountpoint"].Value
	if link := linkIn(at, holdsData); link != "" && found[dataset]["mounted"].Value != "yes" {
		return fault.Failf("check where it leads, then choose another mountpoint: "+zfs.CommandLine([]string{"zfs", "set", "mountpoint=/PATH", dataset})+
			"\nthen run the same command again",
			"%s is not mounted at %s: %s is a symbolic link in a ZFS filesystem", dataset, at, link)
	}
	return l.direct.Mount(ctx, dataset)
}

// linkIn returns the first part of an absolute path that is a symbolic link in a directory of which foreign
// returns true, or "".
func linkIn(path string, foreign func(dir string) bool) string {
	if !filepath.IsAbs(path) { // none, legacy
		return ""
	}
	dir := "/"
	for _, name := range strings.Split(strings.Trim(filepath.Clean(path), "/"), "/") {
		at := filepath.Join(dir, name)
		info, err := os.Lstat(at)
		if err != nil { // zfs mount creates the rest
			return ""
		}
		if info.Mode().Type() == os.ModeSymlink && foreign(dir) {
			return at
		}
		dir = at
	}
	return ""
}

// holdsData reports whether a directory is in a ZFS filesystem other than the root filesystem.
func holdsData(dir string) bool {
	var st unix.Statfs_t
	var own, root unix.Stat_t
	const magic = 0x2fc12fc1 // ZFS_SUPER_MAGIC
	return unix.Statfs(dir, &st) == nil && st.Type == magic && unix.Stat(dir, &own) == nil && unix.Stat("/", &root) == nil && own.Dev != root.Dev
}
