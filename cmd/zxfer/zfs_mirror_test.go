package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// renamedCopies lists the copies of a dataset that on_divergence = "rotate" or --rotate renamed.
func renamedCopies(t *testing.T, dataset string) (names []string) {
	t.Helper()
	for _, n := range strings.Fields(zfsCmd(t, "list", "-H", "-o", "name", "-r", zfs.ParentOf(dataset))) {
		if before, ok := zfs.NameBeforeRename(n); ok && before == dataset {
			names = append(names, n)
		}
	}
	return names
}

// TestZFSRotate renames diverged copies with their descendants and sends them again from
// the start, in a job with a key that may do only this, and with send.
func TestZFSRotate(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	t.Cleanup(func() {
		for _, d := range append(renamedCopies(t, dst), src+"-anew") {
			cleanUp(d)
		}
	})
	zfsCmd(t, "create", src)
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, src+"/e")
	fill(t, src+"/e", "x", 300<<10)
	now := time.Date(2026, 11, 23, 10, 15, 0, 0, time.UTC)
	rsh, audit := restrictedKey(t, "--allow", "receive="+dst, "--allow", "rotate="+dst, "--append-only")
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
schedule = "hourly"
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
[[job.target]]
name = "far"
to = "beta:%s"
on_divergence = "rotate"
transfer = { rsh = %q }
`, src, dst, rsh))
	r.mustRunAt(t, now, "run", "home")
	first := snapshotNames(t, dst+"/e")

	// Only a descendant has diverged.
	zfsCmd(t, "snapshot", dst+"/e@other")
	now = now.Add(time.Hour)
	before := state(t)
	o := r.mustRunAt(t, now, "check", "home")
	require.Contains(t, o.stdout, "RENAMES "+dst+"/e to "+dst+"/e.zxfer-2026-11-23T11-15-00Z")
	require.Equal(t, before, state(t))
	r.mustRunAt(t, now, "run", "home")
	renamed := renamedCopies(t, dst+"/e")
	require.Equal(t, []string{dst + "/e.zxfer-2026-11-23T11-15-00Z"}, renamed)
	require.Equal(t, append(slices.Clone(first), "other"), snapshotNames(t, renamed[0]))
	require.Empty(t, holdsOf(t, renamed[0]))
	require.Equal(t, guids(t, src+"/e"), guids(t, dst+"/e"))
	require.Contains(t, string(must(os.ReadFile(audit))), `admitted rename-diverged: "`+dst+`/e" as "`+renamed[0]+`"`)

	// The root has diverged. The copy that was renamed earlier moves with it.
	zfsCmd(t, "snapshot", dst+"@other")
	now = now.Add(time.Hour)
	r.mustRunAt(t, now, "run", "home")
	root := renamedCopies(t, dst)
	require.Equal(t, []string{dst + ".zxfer-2026-11-23T12-15-00Z"}, root)
	require.Empty(t, renamedCopies(t, dst+"/e"))
	require.Empty(t, holdsOf(t, root[0]))
	require.Len(t, holdsOf(t, dst), 2)
	o = r.mustRunAt(t, now.Add(time.Minute), "status", "home")
	require.Contains(t, o.stdout, "renamed on far since "+now.Local().Format("2006-01-02 15:04:05")+": "+root[0])
	require.Regexp(t, `hint: to destroy it: ssh \S.*zfs destroy -r `+regexp.QuoteMeta(root[0])+"\n", o.stdout)
	require.Contains(t, r.mustRunAt(t, now, "status", "--nagios", "home").stdout, "aside_home=1;;;0")
	now = now.Add(time.Hour)
	r.mustRunAt(t, now, "run", "home")
	require.Equal(t, guids(t, src+"/e"), guids(t, dst+"/e"))
	zfsCmd(t, "load-key", "-L", "file://"+key, dst+"/e")
	requireSameFiles(t, src+"/e", dst+"/e")

	// send --rotate replaces a copy whose source was recreated.
	zfsCmd(t, "create", src+"-anew")
	zfsCmd(t, "snapshot", src+"-anew@a")
	require.Equal(t, 3, runLocal(t, "send", src+"-anew", dst).code)
	o = mustRunLocal(t, "send", "--rotate", src+"-anew", dst)
	require.Contains(t, o.stdout+o.stderr, "RENAMES "+dst)
	require.Equal(t, guids(t, src+"-anew"), guids(t, dst))
	require.Len(t, renamedCopies(t, dst), 2)
}

// TestZFSMirror destroys target snapshots that no longer exist on the source, within mirror.limit, and
// datasets after mirror.gone. Its key may do only this. Datasets in use keep their snapshots.
func TestZFSMirror(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	for _, d := range []string{"", "/a", "/a/b", "/kept"} {
		zfsCmd(t, "create", src+d)
	}
	text := `
[[job]]
name = "home"
source = %q
recursive = true
snapshots = { adopt = ["s*"] }
[[job.target]]
name = "far"
to = "beta:%s"
mirror = { limit = 2, gone = "4d" }
transfer = { rsh = %q }
`
	appendOnly, _ := restrictedKey(t, "--allow", "receive="+dst, "--append-only")
	r := newReplication(t, fmt.Sprintf(text, src, dst, appendOnly))
	now := time.Date(2026, 11, 23, 10, 15, 0, 0, time.UTC)
	take := func(names ...string) {
		for _, n := range names {
			zfsCmd(t, "snapshot", "-r", src+"@"+n)
		}
	}
	take("s1", "s2", "s3", "s4", "s5", "s6")
	o := r.runAt(t, now, "check", "home")
	require.Equal(t, 1, o.code, o.String())
	require.Contains(t, o.stdout, "far: mirror: a run would fail when the source no longer has a snapshot of a copy")
	require.Contains(t, o.stdout, "in authorized_keys on beta: omit --append-only; the key has: --allow receive="+dst)
	require.Contains(t, o.stdout, "in authorized_keys on beta: add --allow remove="+dst)
	rsh, audit := restrictedKey(t, "--allow", "receive="+dst, "--allow", "remove="+dst)
	r.write(t, fmt.Sprintf(text, src, dst, rsh))
	r.mustRunAt(t, now, "check", "home")
	r.mustRunAt(t, now, "run", "home")
	require.Len(t, snapshotNames(t, dst), 6)

	zfsCmd(t, "destroy", src+"@s1,s2")
	require.Contains(t, r.mustRunAt(t, now, "check", "home").stdout, "mirror on far: would destroy 2 snapshots")
	r.mustRunAt(t, now, "run", "home")
	require.Equal(t, []string{"s3", "s4", "s5", "s6"}, snapshotNames(t, dst))
	require.Len(t, snapshotNames(t, dst+"/a"), 6)
	zfsCmd(t, "destroy", src+"/kept@s1,s2,s3")
	o = r.runAt(t, now, "run", "home")
	require.Equal(t, 1, o.code, o.String())
	require.Contains(t, o.stderr, "3 snapshots of "+dst+"/kept were deleted on the source, but mirror.limit is 2 per run")
	require.Len(t, snapshotNames(t, dst+"/kept"), 6)
	r.mustRunAt(t, now, "prune", "--beyond-limit", "home")
	require.Equal(t, guids(t, src+"/kept"), guids(t, dst+"/kept"))

	zfsCmd(t, "snapshot", dst+"/kept@mine")
	for _, d := range []string{src + "/a", src + "/kept"} {
		require.NoError(t, destroyAll(d))
	}
	for day := range 5 { // each run counts at most a quarter of mirror.gone
		now = now.AddDate(0, 0, 1)
		require.NotEmpty(t, snapshotNames(t, dst+"/a/b"), day)
		if day == 4 {
			o = r.mustRunAt(t, now, "check", "-v", "home")
			require.Contains(t, o.stdout, "2 datasets deleted on the source ("+dst+"/a/b, "+dst+"/a)")
			require.Contains(t, o.stdout, dst+"/kept is kept: @mine does not belong to the job")
		}
		r.mustRunAt(t, now, "run", "home")
		if day == 0 {
			o = r.mustRunAt(t, now, "status", "home")
			require.Contains(t, o.stdout, "deleted on the source since "+now.Local().Format("2006-01-02 15:04:05")+": "+src+"/a; its copy on far may be destroyed at "+
				now.AddDate(0, 0, 4).Local().Format("2006-01-02 15:04:05")+": "+dst+"/a\n")
			require.Contains(t, r.mustRunAt(t, now, "status", "--nagios", "home").stdout, "gone_home=3;;;0")
		}
	}
	left := strings.Fields(zfsCmd(t, "list", "-H", "-o", "name", "-r", dst))
	require.Equal(t, []string{dst, dst + "/kept"}, left)
	require.Contains(t, string(must(os.ReadFile(audit))), `admitted destroy-orphans: "`+dst+`/a/b" of "zxfer:home:far"`)
	require.Equal(t, guids(t, src), guids(t, dst))

	// Copies in use also keep their snapshots.
	zfsCmd(t, "create", src+"/used")
	zfsCmd(t, "create", "-V", "1M", src+"/vol")
	take("s7")
	r.mustRunAt(t, now, "run", "home")
	for _, d := range []string{src + "/used", src + "/vol"} {
		require.NoError(t, destroyAll(d))
	}
	device := zfstest.Device(t, dst+"/vol")
	defer device.Close()
	link := zfs.DeviceOf(dst + "/vol") // udev would create this link
	require.NoError(t, os.MkdirAll(filepath.Dir(link), 0o755))
	require.NoError(t, os.Symlink(device.Name(), link))
	defer os.Remove(link)
	mounted := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", `mount -t zfs -o zfsutil "$0" /mnt && echo so && exec cat`, dst+"/used")
	hold, err := mounted.StdinPipe()
	require.NoError(t, err)
	stdout, err := mounted.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, mounted.Start())
	_, err = io.ReadFull(stdout, make([]byte, 3))
	require.NoError(t, err)
	for range 5 {
		now = now.AddDate(0, 0, 1)
		o = r.mustRunAt(t, now, "run", "home")
	}
	require.Contains(t, o.stderr, dst+"/used is kept: it is mounted at /mnt")
	require.Contains(t, o.stderr, dst+"/vol is kept: it is in use")
	for _, d := range []string{"/used", "/vol"} {
		require.Equal(t, []string{"s7"}, snapshotNames(t, dst+d))
	}
	require.NoError(t, hold.Close())
	require.NoError(t, mounted.Wait())
	require.NoError(t, device.Close())
	r.mustRunAt(t, now.AddDate(0, 0, 1), "run", "home")
	require.Equal(t, left, strings.Fields(zfsCmd(t, "list", "-H", "-o", "name", "-r", dst)))
}

// TestZFSMirrorAsUser runs the commands that check prints for an ordinary user, and
// expects them to suffice for on_divergence = "rotate" and for a mirror.
func TestZFSMirrorAsUser(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	device, err := os.Stat("/dev/zfs")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.Chmod("/dev/zfs", device.Mode().Perm()) })
	require.NoError(t, os.Chmod("/dev/zfs", 0o666), "permissions of /dev/zfs with udev")
	for _, d := range []string{src, src + "/a", src + "/b"} {
		zfsCmd(t, "create", "-o", "canmount=off", d)
	}
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
snapshots = { adopt = ["s*"] }
[[job.target]]
name = "near"
to = "%s/copy"
mirror = { gone = "4d" }
on_divergence = "rotate"
`, src, dst))
	r.state = filepath.Join("/var/tmp", filepath.Base(dst))
	require.NoError(t, os.MkdirAll(r.state, 0o777))
	t.Cleanup(func() { _ = os.RemoveAll(r.state) })
	require.NoError(t, os.Chmod(r.state, 0o777))
	for dir := r.file; dir != "/"; dir = filepath.Dir(dir) { // the user must be able to read the file
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(dir, info.Mode().Perm()|0o555))
	}
	r.runAt(t, time.Now(), "status", "home") // creates the program with another clock
	now := time.Date(2026, 11, 23, 10, 15, 0, 0, time.UTC)
	runAs := func(verb string, args ...string) cmdResult {
		bin := filepath.Join(filepath.Dir(alphaBin), "zxfer-at")
		return runAsBackup(t, append([]string{"env", fmt.Sprint("ZXFER_TEST_NOW=", now.Unix()), bin, "replicate", verb, "-c", r.file, "--state-dir", r.state}, args...)...)
	}
	zfsCmd(t, "snapshot", "-r", src+"@s1")
	printed := runAs("check", "home").stdout
	allow := regexp.MustCompile(`(?m)zfs allow .*$`).FindAllString(printed, -1)
	require.Len(t, allow, 2, printed)
	for _, a := range allow {
		run(t, "sh", "-ec", a)
		t.Cleanup(func() { run(t, "sh", "-ec", strings.Replace(a, "zfs allow", "zfs unallow", 1)) })
	}
	runAgain := func() {
		t.Helper()
		o := runAs("run", "home")
		require.Equal(t, 0, o.code, o.String())
		now = now.AddDate(0, 0, 1)
	}
	runAgain()
	zfsCmd(t, "snapshot", dst+"/copy/b@other")
	zfsCmd(t, "snapshot", "-r", src+"@s2")
	runAgain()
	require.Len(t, renamedCopies(t, dst+"/copy/b"), 1)
	require.Equal(t, guids(t, src+"/b"), guids(t, dst+"/copy/b"))
	zfsCmd(t, "destroy", src+"/b@s1")
	require.NoError(t, destroyAll(src+"/a"))
	for range 5 {
		runAgain()
	}
	require.Equal(t, guids(t, src+"/b"), guids(t, dst+"/copy/b"))
	require.NotContains(t, zfsCmd(t, "list", "-H", "-o", "name", "-r", dst), dst+"/copy/a")
}
