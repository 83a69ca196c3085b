package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// optionsOf returns the options of a mount.
func optionsOf(t *testing.T, dataset string) string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 3 && f[0] == strings.ReplaceAll(dataset, " ", `\040`) {
			return f[1] + " " + f[3]
		}
	}
	return ""
}

// TestZFSMount expects that zxfer mounts as zfs mount does, and that zfs(8) knows the mount: it lists and
// unmounts it, changes its properties, and finds its snapshots.
func TestZFSMount(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{Create: []string{"-O", "canmount=off"}})
	c := New(nil)
	for name, properties := range map[string][]string{
		"plain":      nil,
		"restricted": {"setuid=off", "devices=off", "exec=off", "atime=off", "readonly=on"},
		"relatime":   {"atime=on", "relatime=on", "xattr=sa", "acltype=posix"},
		"strict":     {"atime=on", "relatime=off", "nbmand=off"},
		"a b":        {"canmount=noauto", "mountpoint=" + p.Dir + "/x,y"},
	} {
		ds := p.Create(name, "-u")
		for _, value := range properties {
			p.ZFS("set", value, ds)
		}
		p.ZFS("mount", ds)
		want := optionsOf(t, ds)
		p.ZFS("unmount", ds)
		_, err := c.Mount(t.Context(), zfs.MountRequest{Dataset: ds, Trusted: true, Boot: true})
		require.NoError(t, err)
		require.Equal(t, want, optionsOf(t, ds), name)
		require.Equal(t, "yes", p.Get(ds, "mounted"))
		for _, property := range []string{"readonly", "atime", "exec", "setuid", "devices", "relatime", "xattr"} {
			require.NotContains(t, p.ZFS("get", "-H", "-o", "source", property, ds), "temporary", "%s of %s", property, name)
		}
		require.Equal(t, "on", p.Get(ds, "canmount"))
		p.ZFS("snapshot", ds+"@s")
		if name != "a b" { // the kernel cuts the option at the comma
			_, err = os.ReadDir(p.Get(ds, "mountpoint") + "/.zfs/snapshot/s")
			require.NoError(t, err)
			_ = exec.Command("umount", p.Get(ds, "mountpoint")+"/.zfs/snapshot/s").Run() // it may not be mounted
		}
		p.ZFS("mount", "-a")
		p.ZFS("set", "atime=off", ds)
		require.Contains(t, optionsOf(t, ds), "noatime", "a remount")
		moved := filepath.Join(p.Dir, "moved")
		p.ZFS("set", "mountpoint="+moved, ds)
		require.Contains(t, optionsOf(t, ds), moved+" ")
		p.ZFS("unmount", moved)
		_, err = c.Mount(t.Context(), zfs.MountRequest{Dataset: ds})
		require.NoError(t, err)
		require.Contains(t, optionsOf(t, ds), "nosuid,nodev")
		p.ZFS("share", "-a")
		p.ZFS("unmount", ds)
		p.ZFS("inherit", "mountpoint", ds)
	}
}

// TestZFSMountForeign mounts files of another host. Their setuid programs and devices have no effect, also after the next
// boot, unless this host set the properties.
func TestZFSMountForeign(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	c := New(nil)
	atBoot := func(ds string) string {
		t.Helper()
		p.ZFS("unmount", ds)
		p.ZFS("mount", "-a")
		return optionsOf(t, ds)
	}
	for name, tt := range map[string]struct {
		create []string
		m      zfs.MountRequest
		both   bool // has both
		set    string
	}{
		"foreign":       {nil, zfs.MountRequest{Boot: true}, false, "off off"},
		"own":           {nil, zfs.MountRequest{Boot: true, Trusted: true}, true, "on on"},
		"set":           {[]string{"-o", "setuid=on", "-o", "devices=on"}, zfs.MountRequest{Boot: true}, true, "on on"},
		"not at boot":   {nil, zfs.MountRequest{}, false, "on on"},
		"already there": {nil, zfs.MountRequest{Boot: true}, false, "off off"},
	} {
		ds := p.Create(strings.ReplaceAll(name, " ", "-"), append([]string{"-u", "-o", "canmount=noauto"}, tt.create...)...)
		if name == "already there" {
			p.ZFS("mount", ds)
		}
		tt.m.Dataset = ds
		_, err := c.Mount(t.Context(), tt.m)
		require.NoError(t, err, name)
		require.Equal(t, tt.both, !strings.Contains(optionsOf(t, ds), "nosuid"), name)
		require.Equal(t, tt.both, !strings.Contains(optionsOf(t, ds), "nodev"), name)
		options := atBoot(ds)
		require.Equal(t, tt.set, p.Get(ds, "setuid")+" "+p.Get(ds, "devices"), name)
		if tt.m.Boot {
			require.Equal(t, tt.both, !strings.Contains(options, "nosuid,nodev"), name)
		} else {
			require.Empty(t, options, name)
		}
	}
	p.ZFS("set", "setuid=on", p.Name)
	child := p.Create("child", "-u", "-o", "canmount=noauto")
	_, err := c.Mount(t.Context(), zfs.MountRequest{Dataset: child, Boot: true})
	require.NoError(t, err)
	require.Equal(t, "on off", p.Get(child, "setuid")+" "+p.Get(child, "devices"))
	require.NotContains(t, atBoot(child), "nosuid")
}

// TestZFSMountRefuses expects that no mount hides files, follows a link of other files, takes the key's absence for
// a mount, or believes another mountpoint.
func TestZFSMountRefuses(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	c := New(nil)
	victim := t.TempDir()
	require.NoError(t, os.WriteFile(victim+"/shadow", []byte("mine"), 0o600))
	child := p.Create("a", "-u")
	mount := func(m zfs.MountRequest) (string, error) { m.Dataset = child; return c.Mount(t.Context(), m) }
	at := p.Dir + "/a"

	require.NoError(t, os.Symlink(victim, at))
	_, err := mount(zfs.MountRequest{Boot: true, Over: true})
	require.ErrorContains(t, err, "is not mounted at "+at+": "+at+" is a symbolic link in a ZFS filesystem")
	require.NoError(t, os.Remove(at))

	require.NoError(t, os.Mkdir(at, 0o755))
	require.NoError(t, os.WriteFile(at+"/file", nil, 0o600))
	_, err = mount(zfs.MountRequest{Boot: true})
	require.ErrorContains(t, err, "cannot mount at "+at+", which is not empty")
	_, err = mount(zfs.MountRequest{At: "/elsewhere"})
	require.ErrorContains(t, err, "has the mountpoint "+at+", expected /elsewhere")
	require.Equal(t, "no", p.Get(child, "mounted"))

	loose, err := mount(zfs.MountRequest{Over: true, Boot: true})
	require.NoError(t, err)
	require.Empty(t, loose)
	require.Equal(t, "on", p.Get(child, "canmount"))
	p.ZFS("unmount", child)
	p.ZFS("set", "canmount=noauto", child)
	require.NoError(t, os.Chmod(filepath.Dir(p.Dir), 0o755))
	require.NoError(t, os.Chown(p.Dir, 1000, 0))
	loose, err = mount(zfs.MountRequest{Over: true, Boot: true})
	require.NoError(t, err)
	require.Equal(t, "user 1000 can change "+p.Dir, loose)
	require.Equal(t, "noauto", p.Get(child, "canmount"))
	require.NoError(t, os.Chown(p.Dir, 0, 0))
	_, err = mount(zfs.MountRequest{Boot: true})
	require.NoError(t, err, "it is mounted already")
	require.Equal(t, "on", p.Get(child, "canmount"))

	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	locked := p.Create("locked", "-u", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key)
	p.ZFS("unload-key", locked)
	_, err = c.Mount(t.Context(), zfs.MountRequest{Dataset: locked, Boot: true})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.KeyMissing})
	all, err := c.Mountpoints(t.Context())
	require.NoError(t, err)
	require.Contains(t, all, zfs.Mountpoint{Dataset: locked, At: p.Dir + "/locked"}, "it is mounted there later")
}

// TestZFSMountLinks expects that no link in a ZFS filesystem leads a mount, wherever it is in the path and however it is
// written, and that a link of root outside of ZFS filesystems does.
func TestZFSMountLinks(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	c := New(nil)
	require.NoError(t, os.Chmod(filepath.Dir(p.Dir), 0o755))
	outside := t.TempDir()
	victim := filepath.Join(outside, "etc")
	require.NoError(t, os.MkdirAll(victim+"/ssh", 0o755))
	require.NoError(t, os.WriteFile(victim+"/shadow", []byte("mine"), 0o600))
	relative, err := filepath.Rel(p.Dir, victim)
	require.NoError(t, err)
	child := p.Create("child", "-u", "-o", "canmount=noauto") // zfs set mountpoint mounts another one
	require.NoError(t, os.MkdirAll(p.Dir+"/dir/dir", 0o755))
	for name, tt := range map[string]struct{ link, to, at string }{
		"absolute, end":    {p.Dir + "/x", victim, p.Dir + "/x"},
		"relative, end":    {p.Dir + "/x", relative, p.Dir + "/x"},
		"absolute, middle": {p.Dir + "/x", victim, p.Dir + "/x/ssh"},
		"relative, middle": {p.Dir + "/x", relative, p.Dir + "/x/ssh"},
		"missing, middle":  {p.Dir + "/x", victim, p.Dir + "/x/new/dir"},
		"deep":             {p.Dir + "/dir/dir/x", "../../" + relative, p.Dir + "/dir/dir/x"},
		"inside":           {p.Dir + "/x", "dir", p.Dir + "/x"},
		"dangling":         {p.Dir + "/x", outside + "/new", p.Dir + "/x"},
		"to itself":        {p.Dir + "/x", "x", p.Dir + "/x"},
		"from outside":     {p.Dir + "/x", victim, outside + "/pool/x"}, // through a link of root into the pool
	} {
		require.NoError(t, os.Symlink(tt.to, tt.link))
		if name == "from outside" {
			require.NoError(t, os.Symlink(p.Dir, outside+"/pool"))
		}
		p.ZFS("set", "mountpoint="+tt.at, child)
		for range 2 { // the second is as after the first, which may have created directories
			_, err := c.Mount(t.Context(), zfs.MountRequest{Dataset: child, Over: true, Boot: true, Trusted: true})
			require.ErrorContains(t, err, "is a symbolic link in a ZFS filesystem", name)
		}
		require.Equal(t, "no", p.Get(child, "mounted"), name)
		require.NoDirExists(t, victim+"/new")
		require.NoDirExists(t, outside+"/new")
		require.FileExists(t, victim+"/shadow")
		require.NoError(t, os.Remove(tt.link))
	}
	require.NoError(t, os.Mkdir(outside+"/mnt", 0o755))
	require.NoError(t, os.Symlink("mnt", outside+"/link"))
	p.ZFS("set", "mountpoint="+outside+"/link", child)
	_, err = c.Mount(t.Context(), zfs.MountRequest{Dataset: child})
	require.NoError(t, err)
	require.Equal(t, outside+"/mnt", mountOf(child))
	p.ZFS("unmount", child)
}

// TestZFSMountRace mounts a filesystem while another user exchanges a directory of the mountpoint's path, the last or the
// one before, with a link to a directory of the system.
func TestZFSMountRace(t *testing.T) {
	for _, below := range []string{"", "/deep"} {
		t.Run("exchange above "+below, func(t *testing.T) { mountRace(t, below) })
	}
}

// mountRace exchanges the directory home. The mountpoint is below in it.
func mountRace(t *testing.T, below string) {
	p := zfstest.NewPool(t, zfstest.Options{})
	c := New(nil)
	require.NoError(t, os.Chmod(filepath.Dir(p.Dir), 0o755))
	victim := t.TempDir()
	require.NoError(t, os.MkdirAll(victim+below, 0o755))
	require.NoError(t, os.WriteFile(victim+below+"/shadow", []byte("mine"), 0o600))
	child := p.Create("home", "-u")
	p.ZFS("set", "mountpoint="+p.Dir+"/home"+below, child)
	require.NoError(t, os.Chmod(p.Dir, 0o777))
	script := `cd "$1"; mkdir -p "dir$3"; ln -s "$2" link; while :; do mv -T dir home; mv -T home dir; mv -T link home; mv -T home link; done 2>/dev/null`
	user := exec.Command("sh", "-c", script, "sh", p.Dir, victim, below)
	user.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}, Pdeathsig: syscall.SIGKILL}
	require.NoError(t, user.Start())
	defer func() { _ = user.Process.Kill(); _ = user.Wait() }()
	mounted := 0
	for n, began := 0, time.Now(); n < 25 || mounted == 0 && time.Since(began) < time.Minute; n++ {
		loose, err := c.Mount(t.Context(), zfs.MountRequest{Dataset: child, Over: true, Boot: true})
		require.FileExists(t, victim+below+"/shadow", "mount %d: %v", n, err)
		if err != nil {
			continue
		}
		mounted++
		require.NotEmpty(t, loose)
		require.Equal(t, p.Dir+"/home"+below, mountOf(child))
		p.ZFS("unmount", child)
		require.NotEqual(t, "on", p.ZFS("get", "-H", "-s", "local", "-o", "value", "canmount", child))
	}
	t.Log(strconv.Itoa(mounted) + " mounts")
}
