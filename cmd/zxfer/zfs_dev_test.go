package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device/devicetest"
	"zxfer/pkg/finding"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/testenv"
)

// The tests of zxfer dev run on the two hosts of the lab, which share one
// kernel and its devices: loop devices, device mapper, LVM and MD.

// writeNoise writes n random bytes at an offset.
func writeNoise(t *testing.T, name string, off, n int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	seed := [32]byte{byte(off), byte(off >> 8), byte(off >> 16), byte(off >> 24), byte(n), byte(n >> 8)}
	_, err = io.CopyN(io.NewOffsetWriter(f, off), rand.NewChaCha8(seed), n)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
}

// devReport decodes what --json printed.
func devReport(t *testing.T, o cmdResult) dev.Report {
	t.Helper()
	var r dev.Report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), "%s", o)
	return r
}

func TestDevCopiesDevices(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	const size = 40 << 20
	src := devicetest.Loop(t, size, 512)
	// The source has an ext4 filesystem with files, random data and zeros.
	run(t, "mkfs.ext4", "-q", "-F", src, "24m")
	mnt := devicetest.Scratch(t)
	run(t, "mount", src, mnt)
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "hello"), []byte(strings.Repeat("hello, world\n", 1<<16)), 0o600))
	run(t, "cp", "-r", "/etc", mnt)
	run(t, "umount", mnt)
	writeNoise(t, src, 26<<20, 7<<20+777*512)
	want := devicetest.Sum(t, src)
	for name, c := range map[string]struct {
		from, to, wire string
		verify         bool // also with --verify-only
	}{
		"push":  {"", "beta:", "tls", false},
		"pull":  {"beta:", "", "signed", true},
		"third": {"alpha:", "beta:", "tls", true},
		"local": {"", "", "auto", true},
		"plain": {"", "beta:", "plain", false},
		"ssh":   {"", "beta:", "ssh", false},
	} {
		t.Run(name, func(t *testing.T) {
			dst := devicetest.Loop(t, size, 512)
			args := []string{"dev", "--json", "--wire", c.wire, c.from + src, c.to + dst}
			if c.wire == "plain" {
				args = append(args, "--trusted-link")
			}
			r := devReport(t, mustZxfer(t, args...))
			require.Equal(t, "done", r.Outcome)
			require.Equal(t, want, devicetest.Sum(t, dst))
			require.Equal(t, r.Results[0].SourceDigest, r.Results[0].TargetDigest)
			require.EqualValues(t, size, r.Results[0].Verified)
			if c.verify {
				mustZxfer(t, "dev", "--verify-only", c.from+src, c.to+dst)
				writeNoise(t, dst, 5<<20, 512)
				o := zxfer(t, "dev", "--verify-only", c.from+src, c.to+dst)
				require.Equal(t, 1, o.code, "%s", o)
				require.Contains(t, o.stderr, "differ")
			}
			requireNoLeftovers(t)
		})
	}
}

func TestDevOddSizes(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	dir := devicetest.Scratch(t)
	sizes := []int64{0, 511, 1 << 20, 5<<20 + 12345}
	if testenv.Long() {
		sizes = append(sizes, 1, 4096, 1<<20-1)
	}
	for _, size := range sizes {
		src, dst := filepath.Join(dir, "src"), filepath.Join(dir, fmt.Sprintf("dst-%d", size))
		require.NoError(t, os.WriteFile(src, nil, 0o600))
		if size > 0 {
			writeNoise(t, src, 0, size)
		}
		mustZxfer(t, "dev", src, "beta:"+dst)
		run(t, "cmp", src, dst)
		// Devices may be larger than the source.
		for _, sector := range []int{512, 4096} {
			dev := devicetest.Loop(t, (size+8191)/4096*4096, sector)
			mustZxfer(t, "dev", src, "beta:"+dev)
			if size > 0 {
				run(t, "cmp", "-n", strconv.FormatInt(size, 10), src, dev)
			}
		}
	}
	// Copy between devices with different sector sizes, and back into a file.
	a, b := devicetest.Loop(t, 7<<20+4096, 4096), devicetest.Loop(t, 7<<20+4096, 512)
	writeNoise(t, a, 0, 7<<20+4096)
	mustZxfer(t, "dev", a, "beta:"+b)
	run(t, "cmp", a, b)
	back := filepath.Join(dir, "back")
	mustZxfer(t, "dev", "beta:"+b, back)
	run(t, "cmp", a, back)
}

func TestDevSparseImages(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	dir := devicetest.Scratch(t)
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	require.NoError(t, os.WriteFile(src, nil, 0o600))
	require.NoError(t, os.Truncate(src, 300<<20))
	writeNoise(t, src, 100<<20, 3<<20)
	mustZxfer(t, "dev", src, "beta:"+dst)
	run(t, "cmp", src, dst)
	var st syscall.Stat_t
	require.NoError(t, syscall.Stat(dst, &st))
	require.Less(t, st.Blocks*512, int64(8<<20), "the copy is not sparse")
}

// TestDevSafetyRules causes a refusal of each kind, which exits with 3 and changes nothing.
// If consent permits the copy, the flags in the message permit it. TestTargetsAreRefused of
// pkg/device covers all uses of a device.
func TestDevSafetyRules(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	const size = 24 << 20
	src := devicetest.Loop(t, size, 512)
	writeNoise(t, src, 0, size)
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dev string) (target string)
		says    string
	}{
		"mounted": {func(t *testing.T, dev string) string {
			run(t, "mkfs.ext4", "-q", dev)
			mnt := devicetest.Scratch(t)
			run(t, "mount", "-o", "ro,noload", dev, mnt) // mounted read-write, ext4 writes in the background
			t.Cleanup(func() { _ = exec.Command("umount", mnt).Run() })
			return dev
		}, "is mounted"},
		"source":         {func(*testing.T, string) string { return src }, "is the source"},
		"missing device": {func(*testing.T, string) string { return "/dev/zxfer-none" }, "there is no device"},
		"filesystem":     {func(t *testing.T, dev string) string { run(t, "mkfs.ext4", "-q", "-L", "precious", dev); return dev }, `ext4 "precious"`},
		"file with data": {func(t *testing.T, _ string) string {
			file := filepath.Join(devicetest.Scratch(t), "image")
			require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
			return file
		}, "file with data"},
	} {
		t.Run(name, func(t *testing.T) {
			target := c.prepare(t, devicetest.Loop(t, size, 512))
			before := ""
			_, missing := os.Stat(target)
			if missing == nil {
				run(t, "sync")
				before = devicetest.Sum(t, target)
			}
			from := src
			if name == "source" {
				from = "alpha:" + src // the same device through another host
			}
			runs := [][]string{{from, "beta:" + target}}
			if testenv.Long() || name == "mounted" || name == "filesystem" {
				runs = append(runs, []string{"-n", src, target}, []string{src, target})
			}
			for _, args := range runs {
				o := zxfer(t, append([]string{"dev"}, args...)...)
				require.Equal(t, 3, o.code, "%v: %s", args, o)
				require.Contains(t, o.stderr, c.says)
			}
			if missing == nil {
				require.Equal(t, before, devicetest.Sum(t, target), "the target was changed")
			} else {
				require.NoFileExists(t, target)
			}
			// Consent to the contents does not override the other rules.
			confirm := "1"
			if missing == nil {
				confirm = strconv.FormatInt(sizeOf(t, target), 10)
			}
			o := zxfer(t, "dev", src, "beta:"+target, "--overwrite", "--confirm", confirm)
			switch name {
			case "filesystem":
				require.Equal(t, 0, o.code, "%s", o)
				run(t, "cmp", src, target)
			case "file with data":
				require.Equal(t, 0, o.code, "%s", o)
				run(t, "cmp", src, target)
				o = zxfer(t, "dev", src, "beta:"+target, "--overwrite", "--confirm", "12345")
				require.Equal(t, 3, o.code, "%s", o)
				require.Contains(t, o.stderr, "--confirm does not match its size in bytes")
			default:
				require.Equal(t, 3, o.code, "%s", o)
				if missing == nil {
					require.Equal(t, before, devicetest.Sum(t, target), "the target was changed")
				}
			}
		})
	}
}

// sizeOf returns the size of a device or file.
func sizeOf(t *testing.T, name string) int64 {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	n, err := f.Seek(0, io.SeekEnd)
	require.NoError(t, err)
	return n
}

// TestDevWarnsOfOldLabels copies onto the start of a former pool member, which has two of
// its labels at its end. zxfer warns of these labels and prints the command that removes
// them.
func TestDevWarnsOfOldLabels(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	src, dst := devicetest.Loop(t, 32<<20, 512), devicetest.Loop(t, 96<<20, 512)
	writeNoise(t, src, 0, 32<<20)
	pool := fmt.Sprintf("zxformer%x", rand.Uint32())
	run(t, "zpool", "create", "-O", "mountpoint=none", pool, dst)
	run(t, "zpool", "export", pool)
	r := devReport(t, mustZxfer(t, "dev", "--json", "--overwrite", "--confirm", strconv.Itoa(96<<20), src, "beta:"+dst))
	i := slices.IndexFunc(r.Problems, func(p finding.Finding) bool { return p.ID == "target-end" })
	require.GreaterOrEqual(t, i, 0, "%+v", r.Problems)
	require.Contains(t, r.Problems[i].Evidence, "zfs_member")
	require.Contains(t, run(t, "wipefs", dst), "zfs_member")
	remedy, ok := strings.CutPrefix(r.Problems[i].Remedy, "afterwards: ")
	require.True(t, ok)
	run(t, "sh", "-c", remedy)
	require.NotContains(t, run(t, "wipefs", dst), "zfs_member")
	run(t, "cmp", "-n", strconv.Itoa(32<<20), src, dst)
}

// TestDevDelta changes two blocks of a device. A delta copy sends these blocks and at most 1 MiB
// more. At the long level the device has 200 blocks, otherwise 48.
func TestDevDelta(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	size := int64(48 << 20)
	if testenv.Long() {
		size = 200 << 20
	}
	src, dst := devicetest.Loop(t, size, 512), devicetest.Loop(t, size, 512)
	writeNoise(t, src, 0, size)
	mustZxfer(t, "dev", src, "beta:"+dst)
	for i := range int64(2) {
		writeNoise(t, src, (i*37+3)<<20+4096, 8192)
	}
	r := devReport(t, mustZxfer(t, "dev", "--json", "--delta", src, "beta:"+dst))
	run(t, "cmp", src, dst)
	require.EqualValues(t, 2<<20, r.Results[0].Data)
	require.Less(t, r.Results[0].WireBytes, int64(3<<20))
}

// waitStarted waits until a copy has started. It reports false if zxfer ended before that.
func (p *process) waitStarted(t *testing.T) bool {
	t.Helper()
	started := func() bool { return strings.Contains(p.stderr.String(), `"event":"started"`) }
	require.Eventually(t, func() bool { return p.ended() || started() }, testenv.Timeout(), 20*time.Millisecond, "%s", p.stderr)
	return started()
}

// waitJournal waits until the only journal records blocks, which a resumed copy skips.
func (p *process) waitJournal(t *testing.T) {
	t.Helper()
	written := func() bool { return journalBytes(journals, "") > 1<<10 }
	require.Eventually(t, func() bool { return p.ended() || written() }, testenv.Timeout(), 20*time.Millisecond, "%s", p.stderr)
	require.True(t, written(), "the copy ended before the journal was written")
}

// TestDevResumesAfterKill kills either end at random moments and expects an identical copy.
// zxfer resumes by itself if the remote end died, otherwise the same command resumes. Only
// the rest is sent.
func TestDevResumesAfterKill(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	const size = 48 << 20
	src, dst := devicetest.Loop(t, size, 512), devicetest.Loop(t, size, 512)
	writeNoise(t, src, 0, size)
	rounds, resumed, killed := randomRounds(t), 0, 0
	for i := range rounds {
		limit := "16MiB"
		if i < 2 { // a journal is written after two seconds
			limit = "6MiB"
		}
		args := []string{"dev", "--json", "--compress", "off", "--bwlimit", limit, "--buffer", "8MiB", src, "beta:" + dst}
		run(t, "blkdiscard", "-z", dst)
		_ = os.RemoveAll("/var/lib/zxfer")
		p := start(t, args...)
		if !p.waitStarted(t) {
			t.Fatalf("the copy did not start: %s", p.wait(t))
		}
		if i < 2 { // ensures that one kill of each end leads to a resumed copy
			p.waitJournal(t)
		} else {
			select {
			case <-p.done:
			case <-time.After(rand.N(3500 * time.Millisecond)):
			}
		}
		var o cmdResult
		if i%2 == 0 {
			_ = p.cmd.Process.Kill() // it may have ended already
			if first := p.wait(t); first.code != 0 {
				killed++
			}
			o = mustZxfer(t, args...)
		} else {
			for _, pid := range pidsOn(t, betaPool, isAgent) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				killed++
			}
			o = p.wait(t)
			require.Equal(t, 0, o.code, "%s", o)
		}
		run(t, "cmp", src, dst)
		r := devReport(t, o)
		last := r.Results[len(r.Results)-1]
		require.LessOrEqual(t, last.WireBytes, int64(size)-last.Resumed+1<<20, "the copy sent data again")
		if last.Resumed > 0 {
			resumed++
		}
		t.Logf("round %d: exit %d, %d tries, %d bytes resumed", i, o.code, len(r.Results), last.Resumed)
	}
	t.Logf("%d of %d copies were killed, %d were resumed", killed, rounds, resumed)
	require.NotZero(t, resumed)
	requireNoLeftovers(t)
}

// TestDevResumesAfterReset resets the connection, and expects zxfer to retry by itself and to
// send only the rest.
func TestDevResumesAfterReset(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	const size = 64 << 20
	src, dst := devicetest.Loop(t, size, 512), devicetest.Loop(t, size, 512)
	writeNoise(t, src, 0, size)
	_ = os.RemoveAll(journals)
	p := start(t, "dev", "--json", "--compress", "off", "--bwlimit", "12MiB", src, "beta:"+dst)
	require.True(t, p.waitStarted(t))
	p.waitJournal(t)
	resetConnections(t, p)
	o := p.wait(t)
	require.Equal(t, 0, o.code, "%s", o)
	run(t, "cmp", src, dst)
	r := devReport(t, o)
	last := r.Results[len(r.Results)-1]
	require.Len(t, r.Results, 2)
	require.NotZero(t, last.Resumed)
	require.LessOrEqual(t, last.WireBytes, int64(size)-last.Resumed+1<<20)
}

// dmDevice creates a device mapper device.
func dmDevice(t *testing.T, name, table string) string {
	t.Helper()
	run(t, "dmsetup", "create", name, "--table", table)
	t.Cleanup(func() { _ = exec.Command("dmsetup", "remove", "--retry", name).Run() })
	return "/dev/mapper/" + name
}

func TestDevBrokenDevices(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	const size, bad = 64 << 20, 20<<20 + 512*7
	good, other := devicetest.Loop(t, size, 512), devicetest.Loop(t, size, 512)
	writeNoise(t, good, 0, size)
	const sectors = size / 512
	broken := func(dev string) string {
		return fmt.Sprintf("0 %d linear %s 0\n%d 3 error\n%d %d linear %s %d", bad/512, dev, bad/512, bad/512+3, sectors-bad/512-3, dev, bad/512+3)
	}

	src := dmDevice(t, "zxbadsrc", broken(good))
	o := zxfer(t, "dev", src, "beta:"+other)
	require.Equal(t, 1, o.code, "%s", o)
	require.Contains(t, o.stderr, "cannot read bytes")
	require.Contains(t, o.stderr, "--skip-errors")

	m := filepath.Join(devicetest.Scratch(t), "map")
	o = zxfer(t, "dev", "--skip-errors", "--map", m, src, "beta:"+other)
	require.Equal(t, 1, o.code, "%s", o)
	text, err := os.ReadFile(m)
	require.NoError(t, err)
	require.Contains(t, string(text), fmt.Sprintf("0x%08X  0x%08X  -\n", bad, 3*512))
	run(t, "cmp", "-n", strconv.Itoa(bad), good, other)
	run(t, "cmp", "-i", strconv.Itoa(bad+3*512), good, other)
	run(t, "cmp", "-n", strconv.Itoa(3*512), "-i", fmt.Sprintf("0:%d", bad), "/dev/zero", other)

	run(t, "blkdiscard", "-z", other)
	dst := dmDevice(t, "zxbaddst", broken(other))
	o = zxfer(t, "dev", good, "beta:"+dst)
	require.Equal(t, 1, o.code, "%s", o)
	require.Contains(t, o.stderr, "write")

	// This device silently drops writes. Only reading back detects that.
	run(t, "dmsetup", "remove", "--retry", "zxbaddst")
	run(t, "blkdiscard", "-z", other)
	lossy := dmDevice(t, "zxlossy", fmt.Sprintf("0 %d flakey %s 0 0 3600 1 drop_writes", sectors, other))
	o = zxfer(t, "dev", good, "beta:"+lossy)
	require.Equal(t, 1, o.code, "%s", o)
	require.Contains(t, o.stderr, "data read back differs from data written")
}

func TestDevDiskFull(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	src := devicetest.Loop(t, 64<<20, 512)
	writeNoise(t, src, 0, 64<<20)
	dir := devicetest.Scratch(t)
	run(t, "mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", dir)
	t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
	o := zxfer(t, "dev", src, "beta:"+filepath.Join(dir, "image"))
	require.Equal(t, 3, o.code, "%s", o)
	require.NoFileExists(t, filepath.Join(dir, "image"))

	// If another program fills the disk while zxfer writes a sparse image, the copy fails.
	// When there is space again, the same command resumes it.
	run(t, "mount", "-o", "remount,size=80m", dir)
	args := []string{"dev", "--json", "--compress", "off", "--bwlimit", "8MiB", "--sparse", src, "beta:" + filepath.Join(dir, "image")}
	p := start(t, args...)
	require.Eventually(t, func() bool {
		var st syscall.Stat_t
		return syscall.Stat(filepath.Join(dir, "image"), &st) == nil && st.Blocks*512 >= 16<<20
	}, testenv.Timeout(), 5*time.Millisecond)
	filler := filepath.Join(dir, "filler")
	_ = exec.Command("dd", "if=/dev/zero", "of="+filler, "bs=1M").Run() // until the disk is full
	o = p.wait(t)
	require.Equal(t, 1, o.code, "%s", o)
	require.Contains(t, o.stderr, "no space left on device")
	require.Contains(t, o.stderr, "free space there, then run the same command again")
	require.NoError(t, os.Remove(filler))
	o = mustZxfer(t, args...)
	require.NotZero(t, devReport(t, o).Results[0].Resumed)
	run(t, "cmp", src, filepath.Join(dir, "image"))
}

// onAlpha runs a shell command on alpha with zxfer in the PATH.
func onAlpha(t *testing.T, script string) string {
	t.Helper()
	return run(t, "ip", "netns", "exec", alphaPool, "env", "PATH="+filepath.Dir(alphaBin)+":"+labDir+"/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"ZXFER_RSH=ssh -F "+labDir+"/ssh_config", "sh", "-c", script)
}

func TestDevStreams(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	dir := devicetest.Scratch(t)
	src, back := filepath.Join(dir, "src"), filepath.Join(dir, "back")
	sizes := []int64{0, 7<<20 + 12345}
	if testenv.Long() {
		sizes = []int64{0, 1, 1 << 20, 1<<20 + 1, 7<<20 + 12345}
	}
	for _, size := range sizes {
		require.NoError(t, os.WriteFile(src, nil, 0o600))
		if size > 0 {
			writeNoise(t, src, 0, size)
		}
		dev := devicetest.Loop(t, 8<<20, 512)
		for _, host := range []string{"", "beta:"} {
			run(t, "blkdiscard", "-z", dev)
			out := onAlpha(t, fmt.Sprintf("cat %s | zxfer dev - %s%s", src, host, dev))
			if size > 0 {
				run(t, "cmp", "-n", strconv.FormatInt(size, 10), src, dev)
			}
			require.Contains(t, out, "read back and verified")
			onAlpha(t, fmt.Sprintf("zxfer dev %s%s - | head -c %d > %s; cat > /dev/null", host, dev, 8<<20, back))
			run(t, "cmp", dev, back)
			onAlpha(t, fmt.Sprintf("zxfer dev %s%s - > %s", host, src, back))
			run(t, "cmp", src, back)
		}
		image := filepath.Join(dir, "image")
		require.Contains(t, onAlpha(t, fmt.Sprintf("cat %s | zxfer dev - beta:%s", src, image)), "read back and verified")
		run(t, "cmp", src, image)
		require.NoError(t, os.Remove(image))
	}
	// If a stream exceeds the target or is interrupted, the copy fails. zxfer then deletes
	// the file.
	full, image := filepath.Join(dir, "full"), filepath.Join(dir, "full", "image")
	require.NoError(t, os.Mkdir(full, 0o700))
	run(t, "mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", full)
	t.Cleanup(func() { _ = exec.Command("umount", full).Run() })
	content, err := os.ReadFile(src)
	require.NoError(t, err)
	for text, n := range map[string]int{"no space left on device": 7 << 20, "start again: a copy of a stream cannot be resumed": 2 << 20} {
		cmd := exec.Command("ip", "netns", "exec", alphaPool, "env", "ZXFER_RSH=ssh -F "+labDir+"/ssh_config", alphaBin, "dev", "-", "beta:"+image)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		_, _ = in.Write(content[:n]) // zxfer may end before it has read everything
		if n > 4<<20 {
			require.NoError(t, in.Close())
		} else {
			require.Eventually(t, func() bool { _, err := os.Stat(image); return err == nil }, testenv.Timeout(), 10*time.Millisecond)
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
		require.Error(t, cmd.Wait())
		require.Contains(t, stderr.String(), text)
		require.NoFileExists(t, image)
	}
	writeNoise(t, src, 0, 9<<20)
	dev := devicetest.Loop(t, 8<<20, 512)
	out, err := exec.Command("ip", "netns", "exec", alphaPool, "sh", "-c", fmt.Sprintf("%s dev - %s < %s", alphaBin, dev, src)).CombinedOutput()
	require.Error(t, err, "%s", out)
	requireNoLeftovers(t)
}

func TestDevLVMSnapshot(t *testing.T) { //nolint:paralleltest // the lab is one
	lab(t)
	pv, dst := devicetest.Loop(t, 160<<20, 512), devicetest.Loop(t, 64<<20, 512)
	run(t, "pvcreate", "-q", pv)
	run(t, "vgcreate", "-q", "zxsnap", pv)
	t.Cleanup(func() {
		_ = exec.Command("vgchange", "-an", "zxsnap").Run()
		_ = exec.Command("vgremove", "-ff", "-y", "zxsnap").Run()
	})
	run(t, "lvcreate", "-q", "-y", "-Zn", "-L", "64m", "-n", "lv", "zxsnap")
	lv := "/dev/mapper/zxsnap-lv"
	run(t, "mkfs.ext4", "-q", lv)
	mnt := devicetest.Scratch(t)
	run(t, "mount", lv, mnt)
	t.Cleanup(func() { _ = exec.Command("umount", mnt).Run() })
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "hello"), []byte("hello"), 0o600))
	o := mustZxfer(t, "dev", "--lvm-snapshot", "32m", lv, "beta:"+dst)
	require.NotContains(t, o.stderr, "mounted read-write")
	run(t, "e2fsck", "-fy", dst) // it replays the journal of a filesystem that was mounted
	require.NotContains(t, run(t, "lvs", "--noheadings", "-o", "name", "zxsnap"), "zxfer-", "the LVM snapshot still exists")

	// zxfer also deletes the snapshot after a failure.
	o = zxfer(t, "dev", "--lvm-snapshot", "32m", lv, "beta:"+devicetest.Loop(t, 32<<20, 512))
	require.Equal(t, 3, o.code, "%s", o)
	require.NotContains(t, run(t, "lvs", "--noheadings", "-o", "name", "zxsnap"), "zxfer-")
	o = zxfer(t, "dev", "--lvm-snapshot", "32m", pv, "beta:"+dst)
	require.Equal(t, 3, o.code, "%s", o)
}
