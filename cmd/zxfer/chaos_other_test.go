package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/runner"
)

// job is the work of zxfer replicate: datasets, with a job file.
type chaosJob struct {
	*datasets
	r *replication
	// opts are the settings of the job that the seed chose.
	opts string
}

func newChaosJob(t *testing.T, c chaos) *chaosJob {
	t.Helper()
	j := &chaosJob{datasets: newDatasets(t, c)}
	trusted := ""
	if c.wire == "plain" {
		trusted = "trusted_link = true\n"
	}
	transfer := ""
	if c.way != "local" {
		transfer = fmt.Sprintf("wire = %q\n", c.wire) + trusted
	}
	j.r = newReplication(t, fmt.Sprintf(`
[[job]]
name = "chaos"
source = %q
recursive = true
parallel = %d
retries = %d
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ", adopt = ["s*"] }
holds = %q
bookmarks = %q
[job.transfer]
bandwidth = "%dMiB"
%s[[job.target]]
name = "near"
to = %q
`, j.p.from+j.src, 1+j.rand.IntN(3), j.rand.IntN(6), one(j.rand, "both", "both", "source", "target", "none"), one(j.rand, "sent", "none"),
		c.rate, transfer, j.p.to+j.dst))
	text, err := os.ReadFile(j.r.file)
	require.NoError(t, err)
	j.opts = string(text)
	if j.rand.IntN(2) == 0 {
		o := mustZxfer(t, j.argv()...)
		t.Logf("before: %s", o)
		j.change(t, c.mib)
	}
	return j
}

func (j *chaosJob) argv() []string {
	return []string{"replicate", "run", "-c", j.r.file, "--state-dir", j.r.state, "chaos"}
}

// whole: the newest snapshot of every dataset is on the target, and all of what
// was taken before; the newest is what is held and bookmarked.
func (j *chaosJob) whole(t *testing.T) {
	t.Helper()
	seen := j.seen(t)
	j.soundIn(t, seen)
	j.loadKeys(t, seen)
	for _, b := range j.below {
		names := seen.versions(j.src+b, "@")
		j.wholeCopy(t, b, seen, names)
		newest := names[len(names)-1]
		var holds, bookmarks []string
		for end, name := range map[string]string{"source": j.src + b, "target": j.dst + b} {
			if strings.Contains(j.opts, `holds = "both"`) || strings.Contains(j.opts, fmt.Sprintf("holds = %q", end)) {
				holds = append(holds, name+"@"+newest+" "+runner.Tag("chaos", "near"))
			}
		}
		if strings.Contains(j.opts, `bookmarks = "sent"`) {
			bookmarks = []string{"zxfer:chaos:" + newest}
		}
		j.kept(t, b, seen, holds, bookmarks)
	}
}

// device is the work of zxfer dev.
type device struct {
	c        chaos
	p        chaosPlace
	dir      string // of images and the journal
	src, dst string
	size     int64
	want     string // hash of the source
	confirm  string // the target's size, where it is overwritten
	disk     *labDisk
}

// journals is where zxfer keeps them on both hosts.
const journals = "/var/lib/zxfer"

func newDevice(t *testing.T, c chaos) *device {
	t.Helper()
	r := seeded(c.seed, "device")
	d := &device{c: c, p: placeOf(c), dir: scratch(t), size: int64(c.mib) << 20}
	if c.kind == "file" {
		d.size += r.Int64N(1 << 20)
	}
	// Room for both images, and little more.
	run(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", 2*d.size+4<<20), "tmpfs", d.dir)
	t.Cleanup(func() { run(t, "umount", "-l", d.dir) })
	d.src, d.dst = d.make(t, "source", d.size), filepath.Join(d.dir, "target")
	if c.kind == "device" {
		d.dst = d.make(t, "target", d.size+int64(r.IntN(2))<<16)
	}
	for range 1 + r.IntN(3) { // zeros stay between
		n := min(d.size, int64(1+r.IntN(c.mib))<<20)
		noise(t, d.src, r.Int64N((d.size-n)/512+1)*512, n)
	}
	if c.work == "delta" {
		run(t, "dd", "if="+d.src, "of="+d.dst, "bs=1M", "conv=fsync", "status=none")
		for range 1 + r.IntN(6) {
			n := 512 * (1 + r.Int64N(1000))
			noise(t, d.src, r.Int64N((d.size-n)/512)*512, n)
		}
		if noise(t, d.dst, 0, 4096); r.IntN(2) == 0 { // not blank, whatever the source is
			noise(t, d.dst, d.size/2, d.size/4)
		}
		d.confirm = strconv.FormatInt(sizeOf(t, d.dst), 10)
	}
	d.want = sum(t, d.src)
	return d
}

// make makes an image or a device.
func (d *device) make(t *testing.T, end string, size int64) string {
	t.Helper()
	if d.c.kind == "file" {
		name := filepath.Join(d.dir, end)
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		require.NoError(t, os.Truncate(name, size))
		return name
	}
	if d.c.disk == end {
		d.disk = newLabDisk(t, "zxchaos"+end, size)
		return d.disk.path()
	}
	return loop(t, size, 512)
}

func (d *device) argv() []string {
	args := append([]string{"dev", "--json", "--bwlimit", fmt.Sprintf("%dMiB", d.c.rate)}, d.c.wireArgs()...)
	args = append(args, d.c.flags...)
	if d.c.work == "delta" {
		args = append(args, "--delta", "--overwrite", "--confirm", d.confirm)
	}
	return append(args, d.p.from+d.src, d.p.to+d.dst)
}

// A copy that is done holds data, which is not overwritten without consent.
func (d *device) repeatable() bool { return d.c.work == "delta" }

func (d *device) state(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(d.dst); err != nil {
		return "missing"
	}
	return sum(t, d.dst)
}

func (d *device) sound(t *testing.T) {
	t.Helper()
	require.Equal(t, d.want, sum(t, d.src), "the source was changed")
}

func (d *device) whole(t *testing.T) {
	t.Helper()
	d.sound(t)
	run(t, "cmp", "-n", strconv.FormatInt(d.size, 10), d.src, d.dst)
	if d.c.kind == "file" {
		require.Equal(t, d.size, sizeOf(t, d.dst))
	}
	left, err := filepath.Glob(journals + "/*")
	require.NoError(t, err)
	require.Empty(t, left, "a journal of a copy that is complete")
}
