package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// labDisk is a disk that can be made to fail. It uses device mapper over a loop device.
type labDisk struct {
	t          *testing.T
	name, loop string
	sectors    int64
}

func newLabDisk(t *testing.T, name string, size int64) *labDisk {
	t.Helper()
	file := filepath.Join(labDir, "disk", name)
	run(t, "truncate", "-s", strconv.FormatInt(size, 10), file)
	d := &labDisk{t: t, name: name, sectors: size / 512}
	d.loop = strings.TrimSpace(run(t, "losetup", "--show", "-f", file))
	run(t, "dmsetup", "create", name, "--table", d.healthyTable())
	t.Cleanup(func() {
		_ = exec.Command("dmsetup", "remove", "--retry", name).Run()
		_ = exec.Command("losetup", "-d", d.loop).Run()
		_ = os.Remove(file)
	})
	return d
}

func (d *labDisk) path() string { return "/dev/mapper/" + d.name }

// These are tables for dmsetup(8): a healthy disk, a disk on which every read and write fails,
// and a disk that accepts writes and drops them.
func (d *labDisk) healthyTable() string { return fmt.Sprintf("0 %d linear %s 0", d.sectors, d.loop) }
func (d *labDisk) errorTable() string   { return fmt.Sprintf("0 %d error", d.sectors) }
func (d *labDisk) dropWritesTable() string {
	return fmt.Sprintf("0 %d flakey %s 0 0 3600 1 drop_writes", d.sectors, d.loop)
}

// setTable replaces the table of the disk.
func (d *labDisk) setTable(table string) {
	d.t.Helper()
	run(d.t, "dmsetup", "suspend", d.name)
	run(d.t, "dmsetup", "load", d.name, "--table", table)
	run(d.t, "dmsetup", "resume", d.name)
}

// detach removes the disk, which no pool may use, and attach brings it back.
func (d *labDisk) detach() { d.t.Helper(); run(d.t, "dmsetup", "remove", "--retry", d.name) }
func (d *labDisk) attach() {
	d.t.Helper()
	run(d.t, "dmsetup", "create", d.name, "--table", d.healthyTable())
}

// createExported creates a pool on the disk and exports it. It returns the pool's GUID. After the test,
// it makes the disk healthy and exports the pool again.
func (d *labDisk) createExported(pool string) (guid string) {
	d.t.Helper()
	run(d.t, "zpool", "create", "-O", "mountpoint=none", pool, d.path())
	guid = strings.TrimSpace(run(d.t, "zpool", "get", "-Hp", "-o", "value", "guid", pool))
	run(d.t, "zpool", "export", pool)
	d.t.Cleanup(func() {
		if exec.Command("dmsetup", "status", d.name).Run() == nil {
			d.setTable(d.healthyTable())
		}
		_ = exec.Command("zpool", "clear", pool).Run()
		_ = exec.Command("zpool", "export", "-f", pool).Run()
	})
	return guid
}

// createPool creates a pool on the disk. It makes the disk healthy again before it destroys the pool.
func (d *labDisk) createPool(pool string) {
	d.t.Helper()
	dir := poolDir(pool)
	run(d.t, "zpool", "create", "-O", "mountpoint="+dir, pool, d.path())
	d.t.Cleanup(func() {
		d.setTable(d.healthyTable())
		_ = exec.Command("zpool", "clear", pool).Run()
		_ = exec.Command("zpool", "destroy", "-f", pool).Run()
		_ = os.RemoveAll(dir)
	})
}

// poolDir returns the mountpoint of a pool of the lab.
func poolDir(pool string) string {
	switch pool {
	case alphaPool:
		return filepath.Join(labDir, "alpha", "pool")
	case betaPool:
		return filepath.Join(labDir, "beta", "pool")
	}
	return filepath.Join(labDir, pool)
}
