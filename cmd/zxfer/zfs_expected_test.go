package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
)

// delayed is a pool on a disk whose reads and writes can be made to take
// longer (dm-delay over a loop device).
type delayed struct {
	t                *testing.T
	pool, name, loop string
	sectors          string
}

func newDelayed(t *testing.T, pool string) *delayed {
	t.Helper()
	d := &delayed{t: t, pool: pool, name: pool + "disk"}
	file := filepath.Join(labDir, "disk", pool)
	run(t, "truncate", "-s", "512m", file)
	d.loop = strings.TrimSpace(run(t, "losetup", "--show", "-f", file))
	d.sectors = strings.TrimSpace(run(t, "blockdev", "--getsz", d.loop))
	run(t, "dmsetup", "create", d.name, "--table", d.table(0, 0))
	run(t, "zpool", "create", "-O", "mountpoint="+filepath.Join(labDir, pool), pool, "/dev/mapper/"+d.name)
	t.Cleanup(func() {
		d.set(0, 0)
		_ = exec.Command("zpool", "destroy", "-f", pool).Run()
		_ = exec.Command("dmsetup", "remove", "--retry", d.name).Run()
		_ = exec.Command("losetup", "-d", d.loop).Run()
		_ = os.Remove(file)
		_ = os.RemoveAll(filepath.Join(labDir, pool))
	})
	return d
}

func (d *delayed) table(read, write int) string {
	return fmt.Sprintf("0 %s delay %s 0 %d %s 0 %d", d.sectors, d.loop, read, d.loop, write)
}

// set makes every read and write take so many milliseconds.
func (d *delayed) set(read, write int) {
	run(d.t, "zpool", "sync")
	run(d.t, "dmsetup", "suspend", d.name)
	run(d.t, "dmsetup", "load", d.name, "--table", d.table(read, write))
	run(d.t, "dmsetup", "resume", d.name)
}

// foretold sends with --measure and compares what was expected with what came.
func foretold(t *testing.T, limit, destroy string, args ...string) {
	t.Helper()
	measured(t, func() error {
		o := mustZxfer(t, append([]string{"send", "--measure", "--json"}, args...)...)
		zfsCmd(t, "destroy", "-r", destroy)
		run(t, "zpool", "wait", "-t", "free", strings.Split(destroy, "/")[0])
		var r job.Report
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
		require.NotNil(t, r.Expected, o.stdout)
		require.Len(t, r.Results, 1)
		got := r.Results[0]
		t.Logf("expected %+v; got %d B/s in %.2f s, limited by %s", *r.Expected, got.Rate, got.Seconds, got.LimitedBy)
		if r.Expected.LimitedBy != got.LimitedBy || !strings.Contains(got.LimitedBy, limit) {
			return fmt.Errorf("limited by %s, expected %+v", got.LimitedBy, *r.Expected)
		}
		return within(float64(r.Expected.BytesPerSecond), float64(got.Rate), 0.25)
	})
}

// What --measure foretells, against the transfer that follows, with each part
// of the way the slowest one in turn. In a guest of one processor all parts
// share it: TestDoctorForetellsProcessor has two.
func TestZFSDoctorForetells(t *testing.T) {
	lab(t)
	mustZxfer(t, "doctor", "--quick", "beta") // zxfer is there from now on
	t.Run("source disk", func(t *testing.T) {
		d := newDelayed(t, "zxslow")
		zfsCmd(t, "create", "-o", "primarycache=metadata", "zxslow/a")
		fill(t, "zxslow/a", "f", 64<<20)
		zfsCmd(t, "snapshot", "zxslow/a@x")
		d.set(20, 0)
		_, dst := dataset(t)
		foretold(t, "source", dst, "zxslow/a", "beta:"+dst)
	})
	t.Run("target disk", func(t *testing.T) {
		d := newDelayed(t, "zxslow")
		src, _ := dataset(t)
		zfsCmd(t, "create", src)
		fill(t, src, "f", 40<<20)
		zfsCmd(t, "snapshot", src+"@x")
		d.set(0, 20)
		foretold(t, "target", "zxslow/a", src, "beta:zxslow/a")
	})
	t.Run("a limit that was asked for", func(t *testing.T) {
		src, dst := dataset(t)
		zfsCmd(t, "create", src)
		fill(t, src, "f", 24<<20)
		zfsCmd(t, "snapshot", src+"@x")
		foretold(t, "bandwidth", dst, "--bwlimit", "8MiB", src, "beta:"+dst)
	})
}
