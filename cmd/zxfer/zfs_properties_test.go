package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// listCache holds the columns that the ZFS event daemon lists for zfs-mount-generator,
// which creates mount units from the rows at boot.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/cmd/zed/zed.d/history_event-zfs-list-cacher.sh.in
const listCache = "name,mountpoint,canmount,atime,relatime,devices,exec,readonly,setuid,nbmand,encroot,keylocation," +
	"org.openzfs.systemd:requires,org.openzfs.systemd:requires-mounts-for,org.openzfs.systemd:before,org.openzfs.systemd:after," +
	"org.openzfs.systemd:wanted-by,org.openzfs.systemd:required-by,org.openzfs.systemd:nofail,org.openzfs.systemd:ignore"

// TestZFSForeignProperties replicates from a compromised source, and expects no hostile
// property to take effect on the target. Among others, a value forges a row of zfs list to
// mount a copy at /root/.ssh.
func TestZFSForeignProperties(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "atime=off", src)
	fill(t, src, "f", 300<<10)
	zfsCmd(t, "create", "-o", "canmount=off", "-o", "setuid=off", "-o", "devices=off", "-o", "exec=off", dst)
	row := func(below string) string {
		return "off\n" + dst + "/" + below + "\t/root/.ssh\ton" + strings.Repeat("\toff", 8) + strings.Repeat("\t-", 9)
	}
	attack := map[string]string{
		"org.openzfs.systemd:ignore": row("p"), "a:b": row("named"), "org.openzfs.systemd:required-by": "multi-user.target",
		"setuid": "on", "devices": "on", "exec": "on",
		"zxfer:job": "offsite", "zxfer:drill": "offsite", "zxfer:consistent": "all",
		"com.sun:auto-snapshot": "true", "org.zfsbootmenu:commandline": "init=/bin/sh",
	}
	set, names := []string{"set"}, strings.Join(slices.Sorted(maps.Keys(attack)), ",")
	for property, value := range attack {
		set = append(set, property+"="+value)
	}
	zfsCmd(t, append(set, src)...)
	zfsCmd(t, "snapshot", src+"@one")
	key, _ := restrictedKey(t, "--allow", "restore="+dst, "--append-only")
	job := newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
snapshots = { adopt = ["*"] }
[[job.target]]
name = "near"
to = "beta:%s/job"
properties = { carry = true }
`, src, dst))
	for below, run := range map[string]func(to string) cmdResult{
		"p":          func(to string) cmdResult { return zxfer(t, "send", "-p", src, to) },
		"named":      func(to string) cmdResult { return zxfer(t, "send", "--carry", "a:b", src, to) },
		"restored":   func(to string) cmdResult { return zxfer(t, "restore", src, to) },
		"by-key":     func(to string) cmdResult { return zxfer(t, "restore", "-e", key, src, to) },
		"job":        func(string) cmdResult { return job.runAt(t, time.Now().UTC().Truncate(time.Second), "run", "home") },
		"kept-named": func(to string) cmdResult { return zxfer(t, "send", "--carry", "com.sun:auto-snapshot", src, to) },
	} {
		t.Log(below)
		o := run("beta:" + dst + "/" + below)
		require.Equal(t, 0, o.code, "%s: %s", below, o)
		named := below == "kept-named"
		sources := map[string]string{}
		for line := range strings.Lines(zfsCmd(t, "get", "-H", "-o", "property,source", names, dst+"/"+below)) {
			property, source, _ := strings.Cut(strings.TrimSpace(line), "\t")
			sources[property] = source
		}
		require.Len(t, sources, len(attack))
		for property := range attack {
			if named && property == "com.sun:auto-snapshot" {
				value, source := get(t, property, dst+"/"+below)
				require.Equal(t, []string{"true", "local"}, []string{value, source}, "the receiving host named the property")
				continue
			}
			require.NotEqual(t, "local", sources[property], "%s of %s", property, below)
			require.Contains(t, o.stdout+o.stderr, property+" of "+src, below)
		}
		require.Contains(t, o.stdout+o.stderr, "not set on the target: ", below)
		require.Equal(t, []string{"off", "local"}, slices.Collect(func(yield func(string) bool) {
			value, source := get(t, "atime", dst+"/"+below)
			_ = yield(value) && yield(source)
		}), below)
		require.Equal(t, "off\noff\noff", value(t, dst+"/"+below, "setuid,devices,exec"), "values of %s differ from its parent", below)
		for line := range strings.Lines(zfsCmd(t, "list", "-H", "-r", "-o", listCache, dst)) {
			f := strings.Split(line, "\t")
			require.Len(t, f, 20, "forged row: %q", line)
			require.NotEqual(t, "/root/.ssh", f[1], line)
		}
	}

	// This client of the key omits the checks of zxfer's plans.
	for property, value := range attack {
		spec, err := json.Marshal(zfs.ReceiveSpec{Target: dst + "/forged", Set: map[string]string{property: value}, Carry: zfs.Carry{All: true, Named: []string{property}}})
		require.NoError(t, err)
		_, all := sendHostile(t, key, transferRequest(`{"accept":{"session":"x"}}`, streamEnd(string(spec))))
		require.Contains(t, all, "policy forbids", property)
	}
	require.Error(t, exec.Command("zfs", "list", dst+"/forged").Run())

	// Values on the command line are also checked.
	o := zxfer(t, "send", "-o", "a:b="+row("typed"), src, "beta:"+dst+"/typed")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "one printable line")

	// The key may read only a few properties above its grant.
	answer, all := sendHostile(t, key, request("properties", fmt.Sprintf(`{"names":[%q],"properties":["mountpoint"]}`, betaPool)))
	require.Contains(t, all, "policy forbids", "%v", answer)
	_, all = sendHostile(t, key, request("list", fmt.Sprintf(`{"dataset":%q,"recursive":true}`, dst)))
	require.Contains(t, all, `"ancestors"`)
	require.NotContains(t, all, mountpoint(t, betaPool)+`"`)

	// zxfer must know every property of this release.
	var unknown []string
	for property := range strings.FieldsSeq(zfsCmd(t, "get", "-H", "-o", "property", "all", dst+"/p")) {
		if !zfs.KnownProperty(property) {
			unknown = append(unknown, property)
		}
	}
	require.Empty(t, unknown)
}
