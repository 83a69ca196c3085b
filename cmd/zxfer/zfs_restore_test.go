package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// value is that of a property.
func value(t *testing.T, dataset, property string) string {
	t.Helper()
	return strings.TrimSpace(zfsCmd(t, "get", "-Hp", "-o", "value", property, dataset))
}

// local are the properties that are set on a dataset itself.
func local(t *testing.T, dataset string) string {
	t.Helper()
	return zfsCmd(t, "get", "-H", "-s", "local", "-o", "property,value", "all", dataset)
}

// A filesystem comes back with its history and what was set on it, can be written to,
// and nothing of the copy's own is left on it; the job's next increment fits.
func TestZFSRestore(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "atime=off", "-o", "org.example:note=with\ttab", src)
	for _, s := range []string{"one", "two"} {
		fill(t, src, s, 300<<10)
		zfsCmd(t, "snapshot", src+"@"+s)
		time.Sleep(1100 * time.Millisecond) // creation is told in seconds
	}
	mustZxfer(t, "send", "-p", src, "beta:"+dst)
	had, set := guids(t, src), local(t, src)
	zfsCmd(t, "unmount", src)
	zfsCmd(t, "rename", src, src+"-lost")
	t.Cleanup(func() { _ = destroyAll(src + "-lost") })

	before := state(t)
	o := mustZxfer(t, "restore", "-n", "--mount", "beta:"+dst, src)
	for _, text := range []string{"mounts at " + mountpoint(t, alphaPool) + "/", "in the end has readonly and canmount inherited or the default", "dry run: nothing was changed"} {
		require.Contains(t, o.stdout, text)
	}
	require.NotContains(t, o.stdout, "{{")
	require.Equal(t, before, state(t))

	o = mustZxfer(t, "restore", "beta:"+dst, src)
	require.Contains(t, o.stdout, "to use it, there:\n  zfs mount "+src)
	require.Equal(t, had, guids(t, src))
	require.Equal(t, set, local(t, src))
	require.Equal(t, "no", value(t, src, "mounted"))
	require.Equal(t, "on", value(t, src, "canmount"))
	o = mustZxfer(t, "restore", "--mount", "beta:"+dst, src)
	require.Contains(t, o.stderr, "mounted "+src+" at "+mountpoint(t, src))
	sameFiles(t, src, dst)
	fill(t, src, "three", 300<<10)
	zfsCmd(t, "snapshot", src+"@three")
	mustZxfer(t, "send", src, "beta:"+dst)
	sameFiles(t, src, dst)
}
