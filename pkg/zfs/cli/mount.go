package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// Mount mounts a filesystem at its mountpoint. It completes the request for a mounted one. loose is why
// the filesystem is not mounted at boot although the request asks for it, or "".
//
// zfs mount follows symbolic links, and mounts by a name that may have changed since it was checked. The files
// of the parent may come from another host, or belong to another user. Therefore Mount opens the directory
// without following links, and mounts onto the descriptor. It follows only links that root placed outside of
// other ZFS filesystems.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_mount.c (zfs_mount_at)
func (c *CLI) Mount(ctx context.Context, m zfs.MountRequest) (loose string, err error) {
	found, err := c.Properties(ctx, []string{m.Dataset}, zfs.MountProperties())
	if err != nil {
		return "", err
	}
	p := found[m.Dataset]
	at := p["mountpoint"].Value
	switch {
	case p["type"].Value != "filesystem":
		return "", &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpMount, Subject: m.Dataset, Detail: "no such filesystem"}
	case !filepath.IsAbs(at) || filepath.Clean(at) != at:
		return "", fault.Failf("", "%s has no mountpoint: mountpoint=%s", m.Dataset, at)
	case m.At != "" && m.At != at:
		return "", fault.Failf("run the same command again", "%s has the mountpoint %s, expected %s", m.Dataset, at, m.At)
	case p["keystatus"].Value == "unavailable":
		return "", &zfs.Error{Kind: zfs.KeyMissing, Op: zfs.OpMount, Subject: m.Dataset, Detail: "its key is not loaded"}
	}
	place, err := findPlace(at)
	if err != nil {
		return "", refuseLink(m.Dataset, at, err)
	}
	distrust := map[string]string{}
	if !m.Trusted {
		distrust = zfs.Distrust(p, false)
	}
	if m.Boot { // the mount options below do not apply to the mounts of ZFS
		if err := c.SetProperties(ctx, zfs.PropertyChange{Dataset: m.Dataset, Set: distrust}); err != nil {
			return "", err
		}
	}
	for name, value := range distrust {
		p[name] = zfs.Property{Value: value, Source: "local"}
	}
	if p["mounted"].Value != "yes" {
		if err := c.attach(m, place, p); err != nil {
			return "", err
		}
		if err := c.share(ctx, m, p); err != nil {
			return "", err
		}
	} else if m.Boot {
		if at := mountOf(m.Dataset); at != place.path {
			return "", fault.Failf("unmount it, then run the same command again: "+zfs.CommandLine([]string{"zfs", "unmount", m.Dataset}),
				"%s is mounted at %s, not at %s", m.Dataset, at, place.path)
		}
	}
	if !m.Boot {
		return "", nil
	}
	change := zfs.PropertyChange{Dataset: m.Dataset}
	if p["canmount"].Value != "on" && place.loose == "" {
		change.Set = map[string]string{"canmount": "on"}
	}
	if p[zfs.CanMountProperty].Local() {
		change.Revert = []string{zfs.CanMountProperty}
	}
	return place.loose, c.SetProperties(ctx, change)
}

// share shares a filesystem of this host if its properties say so, because zfs unmount ended that. Without the program
// that ZFS uses, it was not shared.
func (c *CLI) share(ctx context.Context, m zfs.MountRequest, p map[string]zfs.Property) error {
	shared := func(property, program string) bool {
		_, err := os.Stat(program)
		return err == nil && !slices.Contains([]string{"", "-", "off"}, p[property].Value)
	}
	if !m.Trusted || !shared("sharenfs", "/usr/sbin/exportfs") && !shared("sharesmb", "/usr/bin/net") {
		return nil
	}
	args := []string{"share", m.Dataset}
	if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpMount, Subject: m.Dataset}, args); err != nil {
		return fault.Failf("share it: "+zfs.CommandLine(append([]string{"zfs"}, args...)), "%s is mounted, but not shared: %w", m.Dataset, err)
	}
	return nil
}

// Mountpoints returns the filesystems of all pools that zfs mount -a would mount, also if their key is not loaded.
func (c *CLI) Mountpoints(ctx context.Context) ([]zfs.Mountpoint, error) {
	out, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpList}, zfs.MountpointArgs(responding()))
	if err != nil {
		return nil, err
	}
	return zfs.ParseMountpoints(out)
}

// responding returns the imported pools that are not suspended, on which zfs(8) would hang. nil = unknown.
func responding() (pools []string) {
	states, _ := filepath.Glob(filepath.Join(statistics, "*", "state")) // a valid pattern never fails
	for _, at := range states {
		if text, _ := readText(at); !strings.Contains(text, "SUSPENDED") {
			pools = append(pools, filepath.Base(filepath.Dir(at)))
		}
	}
	return pools
}

// attach mounts a filesystem onto the directory of a place, and proves that it is mounted there.
func (c *CLI) attach(m zfs.MountRequest, at place, p map[string]zfs.Property) error {
	dir, err := at.open()
	if err != nil {
		return refuseLink(m.Dataset, at.path, err)
	}
	defer dir.Close()
	if isMountRoot(dir) {
		return fault.Failf("unmount it, then run the same command again", "%s cannot mount at %s, where another filesystem is mounted", m.Dataset, at.path)
	}
	if why := contentsOf(dir); why != "" && !m.Over {
		return fault.Failf("empty it, then run the same command again", "%s cannot mount at %s, which %s", m.Dataset, at.path, why)
	}
	root, err := files.MountDetached(m.Dataset, mountOptions(at.path, p))
	if err != nil {
		return mountError(m.Dataset, err)
	}
	defer root.Close()
	if err := unix.MoveMount(int(root.Fd()), "", int(dir.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return mountError(m.Dataset, fmt.Errorf("move_mount: %w", err))
	}
	if now, err := at.open(); err == nil {
		defer now.Close()
		if sameMount(root, now) {
			return nil
		}
	}
	// Its parent was renamed or covered in the meantime.
	err = unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", root.Fd()), unix.MNT_DETACH)
	return errors.Join(fault.Failf("run the same command again", "%s is not mounted at %s: the directory was moved during the mount", m.Dataset, at.path), err)
}

// mountOptions returns the options that zfs mount derives from the properties.
func mountOptions(at string, p map[string]zfs.Property) (o files.MountOptions) {
	is := func(name, value string) bool { return p[name].Value == value }
	o.Text = map[string]string{"mntpoint": at} // for .zfs/snapshot
	if strings.Contains(at, ",") {             // the kernel would cut it, as with zfs mount
		o.Text = map[string]string{}
	}
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		for _, name := range []string{"context", "fscontext", "defcontext", "rootcontext"} {
			if value := p[name].Value; value != "" && value != "none" && value != "-" {
				o.Text[name] = value
			}
		}
	}
	if is("readonly", "on") {
		o.Flags = append(o.Flags, "ro")
		o.Attributes |= unix.MOUNT_ATTR_RDONLY
	}
	if !is("setuid", "on") {
		o.Attributes |= unix.MOUNT_ATTR_NOSUID
	}
	if !is("devices", "on") {
		o.Attributes |= unix.MOUNT_ATTR_NODEV
	}
	if is("exec", "off") {
		o.Attributes |= unix.MOUNT_ATTR_NOEXEC
	}
	switch {
	case is("atime", "off"):
		o.Attributes |= unix.MOUNT_ATTR_NOATIME
	case is("relatime", "off"):
		o.Attributes |= unix.MOUNT_ATTR_STRICTATIME
	}
	return o
}

// mountOf returns where a filesystem is mounted for this process, "" if it is not.
func mountOf(dataset string) (at string) {
	table, _ := os.ReadFile("/proc/self/mountinfo") // always readable
	for _, m := range zfs.ParseMounts(string(table), zfs.PoolOf(dataset)) {
		if m.Of == dataset {
			at = m.At
		}
	}
	return at
}

// isMountRoot reports whether something is mounted on a directory.
func isMountRoot(dir *os.File) bool {
	var s unix.Statx_t
	return unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, 0, &s) == nil && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// sameMount reports whether two descriptors are of one filesystem.
func sameMount(a, b *os.File) bool {
	var x, y unix.Stat_t
	return unix.Fstat(int(a.Fd()), &x) == nil && unix.Fstat(int(b.Fd()), &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// contentsOf returns what a mount on a directory would hide, or "".
func contentsOf(dir *os.File) string {
	if names, _ := dir.Readdirnames(3); len(names) > 0 {
		return fmt.Sprintf("is not empty (%q)", names[0])
	}
	return ""
}

// place is the directory of a mountpoint.
type place struct {
	path string // without symbolic links
	// loose is why users other than root can redirect a mount by the name of the path; "" if they cannot.
	loose string
}

// errLink is the error for a path that leads through a symbolic link.
type errLink struct{ at string }

func (e errLink) Error() string {
	return e.at + " is a symbolic link in a ZFS filesystem, or of another user"
}

// refuseLink names the filesystem that is not mounted because of a link.
func refuseLink(dataset, at string, err error) error {
	var link errLink
	if !errors.As(err, &link) {
		return fmt.Errorf("%s is not mounted at %s: %w", dataset, at, err)
	}
	return fault.Failf("check where it leads, then choose another mountpoint: "+remedy.Mark(remedy.Command("zfs", "set", "mountpoint=/PATH", dataset))+
		"\nthen run the same command again", "%s is not mounted at %s: %w", dataset, at, link)
}

// maxLinks limits the links that findPlace follows.
const maxLinks = 20

// findPlace returns the directory of an absolute path. It follows links that only root can change and that are
// in no ZFS filesystem except the root filesystem. Parts of the path need not exist.
func findPlace(at string) (p place, err error) {
	return findPlaceIn(at, holdsData)
}

func findPlaceIn(at string, foreign func(dir string) bool) (p place, err error) {
	dir, rest := "/", strings.Split(strings.Trim(filepath.Clean(at), "/"), "/")
	for links := 0; len(rest) > 0; {
		next := filepath.Join(dir, rest[0])
		var entry unix.Stat_t
		missing := unix.Lstat(next, &entry)
		other := otherOwner(dir, missing == nil && entry.Uid == 0)
		if p.loose == "" {
			p.loose = other
		}
		if missing != nil { // it will be created
			break
		}
		rest = rest[1:]
		if entry.Mode&unix.S_IFMT != unix.S_IFLNK {
			dir = next
			continue
		}
		target, err := os.Readlink(next)
		if links++; other != "" || foreign(dir) || err != nil || links > maxLinks {
			return p, errLink{next}
		}
		if filepath.IsAbs(target) {
			dir = "/"
		}
		rest = append(strings.Split(strings.Trim(filepath.Clean(target), "/"), "/"), rest...)
	}
	p.path = filepath.Join(append([]string{dir}, rest...)...)
	return p, nil
}

// otherOwner returns who can replace an entry of a directory although he is not root, or "". In a directory with the
// sticky bit, others cannot replace an entry of root.
func otherOwner(dir string, ofRoot bool) string {
	var st unix.Stat_t
	switch err := unix.Lstat(dir, &st); {
	case err != nil:
		return fmt.Sprintf("%s cannot be read", dir)
	case st.Uid != 0:
		return fmt.Sprintf("user %d can change %s", st.Uid, dir)
	case st.Mode&0o022 != 0 && (st.Mode&unix.S_ISVTX == 0 || !ofRoot):
		return fmt.Sprintf("other users can change %s", dir)
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

// open opens the directory, and creates missing parts. It follows no links.
func (p place) open() (*os.File, error) {
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := openat2(unix.AT_FDCWD, "/", how)
	at := "/"
	for _, name := range strings.Split(strings.Trim(p.path, "/"), "/") {
		if err != nil {
			break
		}
		parent := fd
		if name == "" { // the path is "/"
			continue
		}
		at = filepath.Join(at, name)
		fd, err = openat2(parent, name, how)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(parent, name, 0o755); err == nil || errors.Is(err, unix.EEXIST) {
				fd, err = openat2(parent, name, how)
			}
		}
		_ = unix.Close(parent)
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, errLink{at}
	case err != nil:
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return os.NewFile(uintptr(fd), p.path), nil
}

func openat2(parent int, name string, how *unix.OpenHow) (fd int, err error) {
	for {
		fd, err = unix.Openat2(parent, name, how)
		switch {
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // some system call filters return EPERM
			return fd, files.NotSupported(fmt.Errorf("openat2: %w", err))
		case !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN):
			return fd, err
		}
	}
}
