package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// get returns the value and the source of a property.
func get(t *testing.T, property, dataset string) (value, source string) {
	t.Helper()
	text := strings.TrimSuffix(zfsCmd(t, "get", "-Hp", "-o", "value,source", property, dataset), "\n")
	i := strings.LastIndex(text, "\t")
	return text[:i], text[i+1:]
}

// TestZFSForgedPropertyRows writes property values of one dataset that forge rows
// about another one. They must neither break listings nor set properties of the other copy.
func TestZFSForgedPropertyRows(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "mountpoint=/mnt/zxfer-place", "-o", "quota=700M", src)
	forger, other := src+"/forger", src+"/other"
	zfsCmd(t, "create", forger)
	zfsCmd(t, "create", "-o", "org.example:note=mine", other)
	forged := "x\tlocal\n" + other + "\tsetuid\toff\tlocal\n" + other + "\torg.example:note\thers\tlocal\n" + forger + "\torg:y\tz"
	zfsCmd(t, "set", "org.example:note="+forged, forger)
	zfsCmd(t, "set", "zxfer:stream=x\tlocal\n"+other+"\ttype\tnonsense\t-\n"+forger+"\torg:y\tz", forger)
	zfsCmd(t, "snapshot", "-r", src+"@one")
	o := mustZxfer(t, "send", "-R", "--carry", "org.example:note", src, "beta:"+dst)
	require.Contains(t, o.stderr, "note: not set on the target: mountpoint of "+src+", quota of "+src+": they depend on the dataset's location; ")
	require.Contains(t, o.stderr, "note: not set on the target: org.example:note of "+forger+": their values are invalid")
	for dataset, note := range map[string][]string{"/forger": {"-", "-"}, "/other": {"mine", "local"}} {
		value, source := get(t, "org.example:note", dst+dataset)
		require.Equal(t, note, []string{value, source})
		value, source = get(t, "setuid", dst+dataset)
		require.Equal(t, []string{"on", "default"}, []string{value, source})
	}
	flags, _ := get(t, "zxfer:stream", dst+"/forger")
	require.Equal(t, "Lc", flags)

	// Forge the property of a copy. zxfer then treats the copy like one of another tool.
	zfsCmd(t, "set", "zxfer:stream=one\ttwo\nthree", dst+"/forger")
	zfsCmd(t, "snapshot", "-r", src+"@two")
	o = mustZxfer(t, "send", "-R", src, "beta:"+dst)
	require.Contains(t, o.stderr, "beta:"+dst+"/forger: zxfer:stream has a value that zxfer did not write")
	require.Contains(t, o.stderr, "zfs inherit zxfer:stream "+dst+"/forger")
	installNC(t, "nc.openbsd")
	zfsCmd(t, "snapshot", "-r", src+"@three")
	o = mustZxfer(t, ncSend("-R", src, "beta:"+dst)...)
	require.Contains(t, o.stderr, "zfs inherit zxfer:stream "+dst+"/forger")
	for _, d := range []string{"", "/forger", "/other"} {
		require.Equal(t, guids(t, src+d), guids(t, dst+d))
	}
}

// TestZFSHintLoadsTreeKeys expects the hint to load the keys of a whole tree that is
// received raw. A former hint loaded only the key of the root.
func TestZFSHintLoadsTreeKeys(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	zfsCmd(t, "create", src+"/b c")
	zfsCmd(t, "create", src+"/b c/d")
	zfsCmd(t, "create", "-s", "-V", "1M", src+"/vol")
	zfsCmd(t, "snapshot", "-r", src+"@one")
	hint := regexp.MustCompile(`to read it: (ssh .*)`)
	plan := func() string {
		found := hint.FindStringSubmatch(mustZxfer(t, "send", "-R", "-n", src, "beta:"+dst).stdout)
		require.NotNil(t, found)
		return found[1]
	}
	open := func(commands string) {
		names := strings.Fields(zfsCmd(t, "get", "-H", "-o", "value", "-r", "-t", "filesystem,volume", "keystatus", dst))
		require.Equal(t, []string{"unavailable", "unavailable", "unavailable", "unavailable"}, names)
		zfsCmd(t, "set", "keylocation=file://"+key, dst)
		out, err := pasteHint(t, commands)
		require.NoError(t, err, "%s\n%s", commands, out)
		names = strings.Fields(zfsCmd(t, "get", "-H", "-o", "value", "-r", "-t", "filesystem,volume", "keystatus", dst))
		require.Equal(t, []string{"available", "available", "available", "available"}, names)
	}
	first := plan()
	mustZxfer(t, "send", "-R", src, "beta:"+dst)
	open(first)
	zfsCmd(t, "unload-key", "-r", dst)
	zfsCmd(t, "snapshot", "-r", src+"@two")
	open(plan())
	mustZxfer(t, "send", "-R", src, "beta:"+dst)
}
