package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// diskPool is the name of the pools on disks that come and go.
const diskPool = "zxoffsite"

// diskSize is the size of such a disk. A pool needs 64 MiB.
const diskSize = 128 << 20

// diskJob returns a job with a target on disks. more are further keys of the disk.
func diskJob(src, pools, more string) string {
	return fmt.Sprintf(`[[job]]
name = "j"
source = %q
recursive = true
retries = 0
snapshots = { take = "s-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 2 }
[[job.target]]
name = "offsite"
to = "%s/copy"
[job.target.disk]
pools = { %s }
import = true
export = true
directories = ["/dev/mapper"]
%s`, src, diskPool, pools, more)
}

// importedPool reports whether a pool is imported.
func importedPool(pool string) bool { return exec.Command("zpool", "list", pool).Run() == nil }

// target returns the record of one target.
func target(t *testing.T, r *statedir.Run, name string) *statedir.TargetRun {
	t.Helper()
	i := slices.IndexFunc(r.Targets, func(x *statedir.TargetRun) bool { return x.Target == name })
	require.GreaterOrEqual(t, i, 0)
	return r.Targets[i]
}

// TestZFSDisk rotates two disks whose pools have the same name. Each gets increments, the source keeps
// the common snapshot of the disk that is away, and later its bookmark. The disks are scrubbed and
// exported, and status knows the age of each.
func TestZFSDisk(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/a")
	fill(t, src+"/a", "x", 4<<20)
	disks := map[string]*labDisk{"blue": newLabDisk(t, "zxblue", diskSize), "red": newLabDisk(t, "zxred", diskSize)}
	guid := map[string]string{}
	for label, d := range disks {
		guid[label] = d.createExported(diskPool)
		d.detach()
	}
	pools := fmt.Sprintf("blue = %q, red = %q", guid["blue"], guid["red"])
	r := newReplication(t, diskJob(src, pools, "scrub = \"30d\"\nlate = \"14d\"\nhold = \"20d\"\n"))
	now := time.Now()
	run := func() *statedir.Run {
		now = now.Add(time.Hour)
		r.mustRunAt(t, now, "run", "j")
		return r.lastRun(t, "j")
	}
	first := run()
	require.Equal(t, 2, first.Snapshots)
	require.Equal(t, "away", target(t, first, "offsite-blue").Disk)

	for round, label := range []string{"blue", "red", "blue", "red"} {
		d := disks[label]
		d.attach()
		o := r.runAt(t, now.Add(time.Minute), "check", "j")
		require.Equal(t, 0, o.code, o.String())
		require.Contains(t, o.stdout, "is attached; a run imports it, and sends to it")
		require.False(t, importedPool(diskPool), "check imports nothing")
		fill(t, src+"/a", fmt.Sprint(round), 1<<20)
		now = now.Add(time.Hour)
		o = r.mustRunAt(t, now, "run", "j")
		require.Contains(t, o.stdout+o.stderr, "disk offsite-"+label+" (pool "+diskPool+", GUID "+guid[label]+") may be removed")
		sent := target(t, r.lastRun(t, "j"), "offsite-"+label)
		require.Equal(t, "removable", sent.Disk)
		require.Positive(t, sent.Sent)
		for _, x := range sent.Datasets {
			require.Equal(t, round < 2, x.Full > 0, "%s gets an increment: %+v", label, x)
		}
		require.Equal(t, round < 2, strings.Contains(o.stdout+o.stderr, "scrubbed pool"), "%s", o)
		require.False(t, importedPool(diskPool), "exported")
		d.detach()
		for range 3 { // retention runs while the disk is away
			run()
		}
	}
	require.Len(t, snapshotNames(t, src+"/a"), 4, "two by retention, and one for each disk")
	held := strings.Join(holdsOf(t, src+"/a"), "\n")
	require.Contains(t, held, "zxfer:j:offsite-blue")
	require.Contains(t, held, "zxfer:j:offsite-red")

	o := r.runAt(t, now, "status", "j")
	require.Equal(t, 0, o.code, o.String())
	require.Contains(t, o.stdout, "disk offsite-blue (pool "+diskPool+", GUID "+guid["blue"]+"): away since")
	now = now.Add(15 * 24 * time.Hour)
	run()
	o = r.runAt(t, now, "status", "j")
	require.Equal(t, 1, o.code, o.String())
	require.Contains(t, o.stdout, "LATE")
	o = r.runAt(t, now, "status", "--nagios", "j")
	require.Equal(t, 1, o.code, o.String())
	require.Contains(t, o.stdout, "ZXFER WARNING: j: late: to offsite-blue: the disk (pool "+diskPool+") is away since")

	now = now.Add(6 * 24 * time.Hour) // the holds end
	for range 4 {
		run()
	}
	require.NotContains(t, strings.Join(holdsOf(t, src+"/a"), "\n"), "zxfer:j:offsite")
	for _, line := range strings.Split(held, "\n") {
		full, _, _ := strings.Cut(line, " ")
		_, name, _ := strings.Cut(full, "@")
		require.NotContains(t, snapshotNames(t, src+"/a"), name, "retention destroys it")
	}
	for _, label := range []string{"blue", "red"} {
		disks[label].attach()
		for _, x := range target(t, run(), "offsite-"+label).Datasets {
			require.Zero(t, x.Full, "%s gets an increment from its bookmark", label)
		}
		disks[label].detach()
	}
	o = r.runAt(t, now, "status", "j")
	require.Equal(t, 0, o.code, o.String())

	// The records are moved away while both disks are away.
	held = strings.Join(holdsOf(t, src+"/a"), "\n")
	require.Contains(t, held, "zxfer:j:offsite-blue")
	require.NoError(t, os.Rename(filepath.Join(r.state, "j", "state.json"), filepath.Join(t.TempDir(), "state.json")))
	run()
	r.mustRunAt(t, now, "holds", "--gc")
	require.Equal(t, held, strings.Join(holdsOf(t, src+"/a"), "\n"))
	for range 3 {
		run()
	}
	for _, label := range []string{"blue", "red"} {
		disks[label].attach()
		for _, x := range target(t, run(), "offsite-"+label).Datasets {
			require.Zero(t, x.Full, "%s gets an increment from the held snapshot", label)
		}
		disks[label].detach()
	}
}

// TestZFSDiskVanishes replaces the disk's device with one that fails, in the middle of a transfer. The run
// ends as interrupted although the kernel blocks zfs receive. After zpool clear, the next run resumes.
func TestZFSDiskVanishes(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "x", faultSize)
	d := newLabDisk(t, "zxgone", diskSize)
	guid := d.createExported(diskPool)
	text := diskJob(src, fmt.Sprintf("blue = %q", guid), "")
	slow := strings.Replace(text, "retries = 0\n", "retries = 0\ntransfer = { bandwidth = \"4MiB\", buffer = \"2MiB\" }\n", 1)
	r := newReplication(t, slow)
	now := time.Now()
	p := r.startAt(t, now, "run", "j")
	waitReceived(t, p, alphaPool, isZFS("receive"), 12<<20)
	run(t, "zpool", "sync", diskPool) // so that a part is stored
	d.setTable(d.errorTable())
	o := p.wait(t)
	require.Equal(t, 4, o.code, o.String())
	require.Contains(t, o.stderr, "pool "+diskPool+": it is suspended, because its disk is gone")
	require.Contains(t, o.stderr, "next run")
	require.Equal(t, "suspended", target(t, r.lastRun(t, "j"), "offsite-blue").Disk)
	o = r.runAt(t, now, "status", "j")
	require.Contains(t, o.stdout, "zpool clear "+diskPool)

	o = r.runAt(t, now.Add(time.Hour), "run", "j")
	require.Equal(t, 1, o.code, "the run does not hang, and says why: %s", o)
	require.Contains(t, o.stderr, "zpool clear "+diskPool)

	d.setTable(d.healthyTable())
	run(t, "zpool", "clear", diskPool)
	waitEnded(t, alphaPool, isZFS("receive"))
	r.write(t, text)
	r.mustRunAt(t, now.Add(2*time.Hour), "run", "j")
	sent := target(t, r.lastRun(t, "j"), "offsite-blue")
	require.Less(t, sent.Bytes, uint64(faultSize), "it resumes")
	require.Equal(t, "removable", sent.Disk)
	run(t, "zpool", "import", "-N", "-d", "/dev/mapper", diskPool)
	for name := range guids(t, src) {
		require.Contains(t, guids(t, diskPool+"/copy"), name)
	}
}

// TestZFSDiskForeign attaches a disk with the same pool name and another GUID, and one with the right
// GUID and without the copy. Both are refused and not changed.
func TestZFSDiskForeign(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	mine, other := newLabDisk(t, "zxmine", diskSize), newLabDisk(t, "zxother", diskSize)
	guid := mine.createExported(diskPool)
	foreign := other.createExported(diskPool)
	r := newReplication(t, diskJob(src, fmt.Sprintf("blue = %q", guid), ""))
	now := time.Now()
	r.mustRunAt(t, now, "run", "j") // next to the foreign one

	mine.detach()
	before := fileSum(t, other.loop)
	o := r.runAt(t, now.Add(time.Hour), "run", "j")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "has GUID "+foreign+", which is not in disk.pools")
	require.Equal(t, before, fileSum(t, other.loop), "nothing was written to it")
	run(t, "zpool", "import", "-N", "-d", "/dev/mapper", diskPool)
	o = r.runAt(t, now.Add(2*time.Hour), "run", "j")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "the imported pool")
	require.Equal(t, diskPool+"\n", run(t, "zfs", "list", "-H", "-o", "name", "-r", diskPool))

	// The same GUID on another disk: a copy of the disk from before the first run would have no copy.
	run(t, "zpool", "export", diskPool)
	other.detach()
	mine.attach()
	run(t, "zpool", "import", "-N", "-d", "/dev/mapper", diskPool)
	for _, h := range holdsOf(t, diskPool+"/copy") {
		snapshot, tag, _ := strings.Cut(h, " ")
		zfsCmd(t, "release", tag, snapshot)
	}
	zfsCmd(t, "destroy", "-r", diskPool+"/copy")
	run(t, "zpool", "export", diskPool)
	before = fileSum(t, mine.loop)
	o = r.runAt(t, now.Add(3*time.Hour), "run", "j")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "it may be another disk with the same GUID")
	require.False(t, importedPool(diskPool), "exported again")
	require.Equal(t, before, fileSum(t, mine.loop), "nothing was written to it")
}

// fileSum returns the digest of a device. Without the flush, it would read an earlier state from the page cache: the
// writes come through a device mapper.
func fileSum(t *testing.T, name string) string {
	t.Helper()
	run(t, "blockdev", "--flushbufs", name)
	return run(t, "sha256sum", name)
}

// TestZFSDiskMounts expects that a run writes nothing to a disk whose filesystems ZFS would mount, and names the commands
// that change it. Afterwards the disk mounts nothing, even if another program mounts its filesystems during a run. Without that, an absolute link in one filesystem of the disk would lead the mount of its child out of the
// alternate root.
func TestZFSDiskMounts(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "x", faultSize)
	d := newLabDisk(t, "zxhostile", diskSize)
	guid := d.createExported(diskPool)
	run(t, "zpool", "import", "-N", "-d", "/dev/mapper", diskPool)
	live := t.TempDir()
	zfsCmd(t, "create", "-o", "mountpoint="+live+"/evil", "-o", "setuid=on", diskPool+"/evil")
	require.NoError(t, os.WriteFile(live+"/shadow", []byte("mine"), 0o600))
	require.NoError(t, os.Symlink(live, live+"/evil/child"))
	zfsCmd(t, "create", "-u", diskPool+"/evil/child")
	run(t, "zpool", "export", diskPool)
	r := newReplication(t, strings.Replace(diskJob(src, fmt.Sprintf("blue = %q", guid), ""), "retries = 0\n", "retries = 0\ntransfer = { bandwidth = \"4MiB\", buffer = \"2MiB\" }\n", 1))
	before := fileSum(t, d.loop)
	o := r.runAt(t, time.Now(), "run", "j")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "ZFS would mount filesystems of the disk that are not in the copy "+diskPool+"/copy: "+diskPool+"/evil, "+diskPool+"/evil/child")
	require.Equal(t, before, fileSum(t, d.loop), "nothing was written to it")
	require.False(t, importedPool(diskPool))
	run(t, "zpool", "import", "-N", "-d", "/dev/mapper", diskPool)
	o = r.runAt(t, time.Now(), "run", "j")
	require.Equal(t, 3, o.code, "imported by hand: %s", o)
	run(t, "zpool", "export", diskPool)
	commands := regexp.MustCompile(`(?m)^(?:hint: | +)((?:zpool|zfs) .*)$`).FindAllStringSubmatch(r.runAt(t, time.Now(), "run", "j").stderr, -1)
	require.Len(t, commands, 3)
	for _, c := range commands {
		run(t, "sh", "-c", c[1])
	}
	p := r.startAt(t, time.Now(), "run", "j")
	waitReceived(t, p, alphaPool, isZFS("receive"), 4<<20)
	require.Equal(t, "none", strings.TrimSpace(run(t, "zpool", "get", "-H", "-o", "value", "cachefile", diskPool)))
	require.Error(t, exec.Command("zfs", "mount", diskPool+"/evil").Run())
	_ = exec.Command("zfs", "mount", "-a").Run() // it fails for the disk
	require.FileExists(t, live+"/shadow")
	for _, d := range []string{diskPool + "/evil", diskPool + "/evil/child"} {
		require.Equal(t, "no", strings.TrimSpace(run(t, "zfs", "get", "-H", "-o", "value", "mounted", d)))
	}
	info, err := os.Lstat("/run/zxfer/pools/" + guid)
	require.NoError(t, err)
	require.True(t, info.Mode().IsRegular(), "the alternate root")
	o = p.wait(t)
	require.Equal(t, 0, o.code, o.String())
	require.False(t, importedPool(diskPool))
}

// TestZFSDiskKilled kills a run while it imports, scrubs and exports. The next run continues, and exports
// the pool only because zxfer imported it.
func TestZFSDiskKilled(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	d := newLabDisk(t, "zxkilled", diskSize)
	guid := d.createExported(diskPool)
	r := newReplication(t, diskJob(src, fmt.Sprintf("blue = %q", guid), "scrub = \"1d\"\n"))
	now := time.Now()
	// A zpool that stops before or after the real one. Its directory is first in PATH.
	stop := filepath.Join(labDir, "bin", "zpool")
	real, err := exec.LookPath("zpool")
	require.NoError(t, err)
	marker := filepath.Join(t.TempDir(), "stopped")
	for _, c := range []struct {
		verb     string
		readOnly string // state of the pool: "on" while the run inspects it
		after    bool
	}{{"import -N", "on", false}, {"import -N", "on", true}, {"export", "on", false}, {"export", "on", true},
		{"import -N", "off", false}, {"import -N", "off", true}, {"scrub", "off", false}, {"scrub", "off", true}, {"export", "off", false}, {"export", "off", true}} {
		t.Run(fmt.Sprint(c.verb, " readonly=", c.readOnly, " after=", c.after), func(t *testing.T) {
			now = now.Add(48 * time.Hour)
			body := "touch " + marker + "; exec sleep 1000"
			if c.after {
				body = real + ` "$@"; ` + body
			}
			when := `[ "$(` + real + " get -H -o value readonly " + diskPool + `)" = ` + c.readOnly + " ]"
			if c.verb == "import -N" {
				when = `[ "$(case "$*" in *readonly=on*) echo on;; *) echo off;; esac)" = ` + c.readOnly + " ]"
			}
			testenv.WriteProgram(t, stop, "#!/bin/sh\ncase \"$*\" in\n\""+c.verb+"\"*) if "+when+"; then "+body+"; fi;;\nesac\nexec "+real+" \"$@\"\n")
			p := r.startAt(t, now, "run", "j")
			require.Eventually(t, func() bool { _, err := os.Stat(marker); return err == nil || p.ended() }, testenv.Timeout(), 20*time.Millisecond)
			require.False(t, p.ended(), p.stderr.String())
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
			p.wait(t)
			require.NoError(t, os.Remove(stop))
			require.NoError(t, os.Remove(marker))
			now = now.Add(time.Hour)
			o := r.mustRunAt(t, now, "run", "j")
			require.Equal(t, "removable", target(t, r.lastRun(t, "j"), "offsite-blue").Disk, o.String())
			require.False(t, importedPool(diskPool))
			if c.verb == "scrub" {
				require.Contains(t, o.stdout+o.stderr, "scrubbed pool")
			}
		})
	}
	run(t, "zpool", "import", "-N", "-d", "/dev/mapper", diskPool)
	r.mustRunAt(t, now.Add(time.Hour), "run", "j")
	require.True(t, importedPool(diskPool), "zxfer does not export the administrator's pool")
	require.Equal(t, "present", target(t, r.lastRun(t, "j"), "offsite-blue").Disk)
}

// TestZFSDiskOtherHost attaches a disk that another host used and did not export. ZFS refuses the import,
// and zxfer does not force it.
func TestZFSDiskOtherHost(t *testing.T) {
	lab(t)
	const param = "/sys/module/spl/parameters/spl_hostid"
	setHost := func(id string) { require.NoError(t, os.WriteFile(param, []byte(id), 0o644)) }
	before, err := os.ReadFile(param)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.WriteFile(param, before, 0o644) })
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	d := newLabDisk(t, "zxhost", diskSize)
	guid := d.createExported(diskPool)
	r := newReplication(t, diskJob(src, fmt.Sprintf("blue = %q", guid), ""))
	setHost("33")
	run(t, "zpool", "import", "-N", "-d", "/dev/mapper", diskPool)
	run(t, "zpool", "sync", diskPool)
	d.setTable(d.dropWritesTable()) // as if that host lost power
	run(t, "zpool", "export", diskPool)
	d.setTable(d.healthyTable())
	setHost("44")
	before1 := fileSum(t, d.loop)
	o := r.runAt(t, time.Now(), "run", "j")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "another host may use the pool")
	require.Contains(t, o.stderr, "hint: export it on the other host: zpool export POOL")
	require.False(t, importedPool(diskPool))
	require.Equal(t, before1, fileSum(t, d.loop), "nothing was written to it")
}

// TestZFSDiskIncomplete attaches one of two disks of a mirror. zxfer waits for the other one, and then
// refuses the pool: it would be degraded, and need a resilver.
func TestZFSDiskIncomplete(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	a, b := newLabDisk(t, "zxmirrora", diskSize), newLabDisk(t, "zxmirrorb", diskSize)
	run(t, "zpool", "create", "-O", "mountpoint=none", diskPool, "mirror", a.path(), b.path())
	guid := strings.TrimSpace(run(t, "zpool", "get", "-Hp", "-o", "value", "guid", diskPool))
	run(t, "zpool", "export", diskPool)
	t.Cleanup(func() { _ = exec.Command("zpool", "export", "-f", diskPool).Run() })
	b.detach()
	r := newReplication(t, diskJob(src, fmt.Sprintf("blue = %q", guid), ""))
	o := r.runAt(t, time.Now(), "run", "j")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "is DEGRADED: zxfer imports only a complete pool")
	require.False(t, importedPool(diskPool))
	p := r.startAt(t, time.Now().Add(time.Hour), "run", "j")
	b.attach() // while the run waits, or before
	require.Equal(t, 0, p.wait(t).code, p.stderr.String())
	require.Equal(t, "removable", target(t, r.lastRun(t, "j"), "offsite-blue").Disk)
}
