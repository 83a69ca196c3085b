package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device/devicetest"
)

// chaosDevice runs zxfer dev in a chaos round.
type chaosDevice struct {
	c        chaos
	p        chaosEnds
	dir      string // holds the images and the journal
	src, dst string
	size     int64
	want     string // hash of the source
	confirm  string // the target's size, if the copy overwrites it
	disk     *labDisk
}

// journals is the directory for zxfer's journals on both hosts.
const journals = "/var/lib/zxfer"

func newChaosDevice(t *testing.T, c chaos) *chaosDevice {
	t.Helper()
	r := newRand(c.seed, "device")
	d := &chaosDevice{c: c, p: endsOf(c), dir: devicetest.Scratch(t), size: int64(c.mib) << 20}
	if c.kind == "file" {
		d.size += r.Int64N(1 << 20)
	}
	// Room for both images and little else, so that fill can exhaust it.
	run(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", 2*d.size+4<<20), "tmpfs", d.dir)
	t.Cleanup(func() { run(t, "umount", "-l", d.dir) })
	d.src, d.dst = d.create(t, "source", d.size), filepath.Join(d.dir, "target")
	if c.kind == "device" {
		d.dst = d.create(t, "target", d.size+int64(r.IntN(2))<<16)
	}
	for range 1 + r.IntN(3) { // leave zeros between the noise
		n := min(d.size, int64(1+r.IntN(c.mib))<<20)
		writeNoise(t, d.src, r.Int64N((d.size-n)/512+1)*512, n)
	}
	if c.work == "delta" {
		run(t, "dd", "if="+d.src, "of="+d.dst, "bs=1M", "conv=fsync", "status=none")
		for range 1 + r.IntN(6) {
			n := 512 * (1 + r.Int64N(1000))
			writeNoise(t, d.src, r.Int64N((d.size-n)/512)*512, n)
		}
		if writeNoise(t, d.dst, 0, 4096); r.IntN(2) == 0 { // the target is not blank, even if the source is
			writeNoise(t, d.dst, d.size/2, d.size/4)
		}
		d.confirm = strconv.FormatInt(sizeOf(t, d.dst), 10)
	}
	d.want = devicetest.Sum(t, d.src)
	return d
}

// create creates an image file or a device.
func (d *chaosDevice) create(t *testing.T, end string, size int64) string {
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
	return devicetest.Loop(t, size, 512)
}

func (d *chaosDevice) argv() []string {
	args := append([]string{"dev", "--json", "--bwlimit", fmt.Sprintf("%dMiB", d.c.rate)}, d.c.wireArgs()...)
	args = append(args, d.c.flags...)
	if d.c.work == "delta" {
		args = append(args, "--delta", "--overwrite", "--confirm", d.confirm)
	}
	return append(args, d.p.from+d.src, d.p.to+d.dst)
}

// repeatable returns true only for delta copies. zxfer refuses to repeat a full copy because
// the target contains data.
func (d *chaosDevice) repeatable() bool { return d.c.work == "delta" }

func (d *chaosDevice) state(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(d.dst); err != nil {
		return "missing"
	}
	return devicetest.Sum(t, d.dst)
}

func (d *chaosDevice) requireSound(t *testing.T) {
	t.Helper()
	require.Equal(t, d.want, devicetest.Sum(t, d.src), "the source was changed")
}

func (d *chaosDevice) requireComplete(t *testing.T) {
	t.Helper()
	d.requireSound(t)
	run(t, "cmp", "-n", strconv.FormatInt(d.size, 10), d.src, d.dst)
	if d.c.kind == "file" {
		require.Equal(t, d.size, sizeOf(t, d.dst))
	}
	left, err := filepath.Glob(journals + "/*")
	require.NoError(t, err)
	require.Empty(t, left, "a completed copy left its journal")
}
