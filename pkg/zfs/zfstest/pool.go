// Package zfstest gives tests pools on real ZFS, and forged streams.
//
//   - Pool: a pool with a random name on a file in its own tmpfs. It is destroyed when its test
//     ends. No other pool is touched.
//   - Stream, Record: a send stream that a test can modify.
//   - Attack: a stream of a hostile sender. A Forger builds attacks.
//
// It does not install ZFS: without it, tests skip.
package zfstest

import (
	"bytes"
	"crypto/rand"
	"io"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// Require skips the test unless it runs as root with /dev/zfs, in the test guest or on a host
// whose owner permits tests with its ZFS.
func Require(t testing.TB) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skip("not at the quick level: needs real ZFS")
	case os.Getenv("ZXFER_GUEST") != "1" && os.Getenv("ZXFER_TEST_NATIVE") != "1":
		t.Skip("needs real ZFS: run it in scripts/guest, or set ZXFER_TEST_NATIVE=1 to use this host's")
	case os.Geteuid() != 0:
		t.Skip("needs root to make pools")
	}
	if _, err := os.Stat("/dev/zfs"); err != nil {
		t.Skipf("needs the ZFS module: %v", err)
	}
}

// Options configure a pool. The zero value is usable.
type Options struct {
	Size   int64    // bytes, 0 = 256 MiB; sparse
	Create []string // additional arguments of zpool create, such as "-d" or "-O", "compression=off"
}

// Pool is a pool for one test.
type Pool struct {
	Name string
	Dir  string // mountpoint of its root dataset
	t    testing.TB
}

// NewPool creates a pool and destroys it when the test ends.
func NewPool(t testing.TB, o Options) *Pool {
	t.Helper()
	Require(t)
	if o.Size == 0 {
		o.Size = 256 << 20
	}
	base, err := os.MkdirTemp("", "zxfer-pool-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Remove(base) })
	require.NoError(t, syscall.Mount("tmpfs", base, "tmpfs", 0, "size="+strconv.FormatInt(o.Size+64<<20, 10)))
	t.Cleanup(func() { _ = syscall.Unmount(base, syscall.MNT_DETACH) })
	file := filepath.Join(base, "vdev")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Truncate(file, o.Size))

	p := &Pool{Name: "zxt" + strings.ToLower(rand.Text()[:10]), Dir: filepath.Join(base, "mnt"), t: t}
	args := append([]string{"create", "-O", "mountpoint=" + p.Dir}, o.Create...)
	Run(t, "zpool", append(args, p.Name, file)...)
	t.Cleanup(p.destroy)
	return p
}

// destroy destroys the pool. The kernel may use it for a moment after the last command has ended.
func (p *Pool) destroy() {
	var out []byte
	var err error
	for began := time.Now(); time.Since(began) < testenv.Timeout(); time.Sleep(50 * time.Millisecond) {
		if out, err = exec.Command("zpool", "destroy", "-f", p.Name).CombinedOutput(); err == nil || !bytes.Contains(out, []byte("busy")) {
			break
		}
	}
	if err != nil {
		p.t.Errorf("zpool destroy %s: %v: %s", p.Name, err, out)
	}
}

// Run runs a command that must succeed, and returns its stdout without the last newline.
func Run(t testing.TB, command string, args ...string) string {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %q: %s", command, args, stderr.String())
	return strings.TrimSuffix(string(out), "\n")
}

// ZFS runs zfs, which must succeed.
func (p *Pool) ZFS(args ...string) string {
	p.t.Helper()
	return Run(p.t, "zfs", args...)
}

// Get returns the value of a property.
func (p *Pool) Get(name, property string) string {
	p.t.Helper()
	return p.ZFS("get", "-Hpo", "value", property, name)
}

// Dataset returns the full name of a dataset of the pool.
func (p *Pool) Dataset(name string) string { return p.Name + "/" + name }

// Create creates a dataset and returns its full name.
func (p *Pool) Create(name string, args ...string) string {
	p.t.Helper()
	ds := p.Dataset(name)
	p.ZFS(append(append([]string{"create"}, args...), ds)...)
	return ds
}

// CreateEncrypted creates an encrypted filesystem with a loaded key. It returns its full name
// and the key file.
func (p *Pool) CreateEncrypted(name string, args ...string) (ds, key string) {
	p.t.Helper()
	key = filepath.Join(filepath.Dir(p.Dir), strings.ReplaceAll(name, "/", "-")+".key")
	require.NoError(p.t, os.WriteFile(key, bytes.Repeat([]byte{'k'}, 32), 0o600))
	return p.Create(name, append([]string{"-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://" + key}, args...)...), key
}

// Path returns the path of a file in a mounted dataset.
func (p *Pool) Path(dataset, file string) string {
	return filepath.Join(p.Dir, strings.TrimPrefix(dataset, p.Name), file)
}

// Write writes size incompressible bytes that depend only on seed.
func (p *Pool) Write(dataset, file string, size int64, seed uint64) {
	p.t.Helper()
	f, err := os.Create(p.Path(dataset, file))
	require.NoError(p.t, err)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, err = io.CopyN(f, mrand.NewChaCha8(key), size)
	require.NoError(p.t, err)
	require.NoError(p.t, f.Close())
}

// Snapshot takes a snapshot and returns its full name.
func (p *Pool) Snapshot(dataset, name string) string {
	p.t.Helper()
	p.ZFS("snapshot", dataset+"@"+name)
	return dataset + "@" + name
}

// blkZName is the ioctl that returns the volume's name (256 bytes) of a device.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/fs/zfs.h (BLKZNAME)
const blkZName = 0x8100127d

// Device opens the block device of a volume. It searches /dev/zd*, because only udev creates
// the links under /dev/zvol.
func Device(t testing.TB, volume string) *os.File {
	t.Helper()
	var found *os.File
	require.Eventually(t, func() bool {
		all, err := filepath.Glob("/dev/zd*")
		require.NoError(t, err)
		for _, path := range all {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil { // it is read-only
				f, err = os.Open(path)
			}
			if err != nil {
				continue // deleted
			}
			if deviceName(f) == volume {
				found = f
				return true
			}
			_ = f.Close()
		}
		return false
	}, testenv.Timeout(), 20*time.Millisecond, "no device of %s", volume)
	return found
}

func deviceName(f *os.File) string {
	name, err := ioctlName(int(f.Fd()))
	if err != nil {
		return ""
	}
	s, _, _ := bytes.Cut(name[:], []byte{0})
	return string(s)
}

func ioctlName(fd int) (name [256]byte, err error) {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), blkZName, uintptr(unsafe.Pointer(&name)))
	if errno != 0 {
		err = errno
	}
	return name, err
}
