package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
)

// newDelayed is a pool on a disk whose reads and writes can be made to take so
// many milliseconds.
func newDelayed(t *testing.T, pool string) (set func(read, write int)) {
	t.Helper()
	d := newLabDisk(t, pool+"disk", 512<<20)
	d.pool(pool)
	return func(read, write int) {
		run(t, "zpool", "sync")
		d.become(d.slow(read, write))
	}
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
		set := newDelayed(t, "zxslow")
		zfsCmd(t, "create", "-o", "primarycache=metadata", "zxslow/a")
		fill(t, "zxslow/a", "f", 64<<20)
		zfsCmd(t, "snapshot", "zxslow/a@x")
		set(20, 0)
		_, dst := dataset(t)
		foretold(t, "source", dst, "zxslow/a", "beta:"+dst)
	})
	t.Run("target disk", func(t *testing.T) {
		set := newDelayed(t, "zxslow")
		src, _ := dataset(t)
		zfsCmd(t, "create", src)
		fill(t, src, "f", 40<<20)
		zfsCmd(t, "snapshot", src+"@x")
		set(0, 20)
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
