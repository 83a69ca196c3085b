package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// chaosWork is the transfer of a chaos round.
type chaosWork interface {
	// argv returns the command. It is the same in every attempt.
	argv() []string
	// state returns everything that a refused command must not change.
	state(t *testing.T) string
	// requireSound fails the test if the target has data that is not from the source.
	requireSound(t *testing.T)
	// requireComplete fails the test unless the transfer is complete and equal.
	requireComplete(t *testing.T)
	// repeatable reports whether the command may be repeated after it succeeded.
	repeatable() bool
}

// chaosEnds holds the locations of a round's source and target.
type chaosEnds struct {
	from, to         string // "", "alpha:" or "beta:"
	srcPool, dstPool string
}

func endsOf(c chaos) chaosEnds {
	p := map[string]chaosEnds{
		"push":  {"", "beta:", alphaPool, betaPool},
		"pull":  {"beta:", "", betaPool, alphaPool},
		"third": {"alpha:", "beta:", alphaPool, betaPool},
		"local": {"", "", alphaPool, betaPool},
	}[c.direction]
	if c.isWork("dev", "delta") {
		return p
	}
	switch c.disk {
	case "source":
		p.srcPool = faultPool
	case "target":
		p.dstPool = faultPool
	}
	return p
}

// wireArgs returns the flags that select the transport.
func (c chaos) wireArgs() []string {
	if c.direction == "local" {
		return nil
	}
	args := []string{"--wire", c.wire}
	if c.wire == "plain" || c.wire == "nc" {
		args = append(args, "--trusted-link")
	}
	return args
}

// datasets runs zxfer send or replicate on datasets with snapshots.
type datasets struct {
	c      chaos
	p      chaosEnds
	rand   *rand.Rand
	src    string // root of the source datasets
	parent string // parent of the target, exists before the transfer
	dst    string
	key    string // path of the key file of an encrypted source
	// below holds the names of the datasets relative to the root. The root itself is "".
	below []string
	// before holds the snapshots that the target has before the transfer.
	before []string
}

const extraSnapshot = "wrong" // exists only on a target that will be rolled back

func newDatasets(t *testing.T, c chaos) *datasets {
	t.Helper()
	d := &datasets{c: c, p: endsOf(c), rand: newRand(c.seed, "datasets")}
	name := fmt.Sprintf("c%d", c.seed)
	d.src, d.parent = d.p.srcPool+"/"+name, d.p.dstPool+"/"+name+"-copy"
	d.dst = d.parent + "/" + choose(d.rand, "exact", name)
	d.below = []string{""}
	if c.isWork("tree", "replicate") {
		d.below = append(d.below, "/a", "/a/deep er", "/b")[:2+d.rand.IntN(3)]
	}
	t.Cleanup(func() {
		for _, root := range []string{d.src, d.parent} {
			assert.NoError(t, destroyAll(root))
		}
	})
	zfsCmd(t, "create", "-o", "canmount=off", d.parent)
	for _, b := range d.below {
		d.create(t, b)
	}
	d.change(t, 1+d.rand.IntN(2))
	d.snapshot(t, "s0")
	if c.work == "incremental" || c.work == "tree" && d.rand.IntN(2) == 0 {
		d.sendBase(t, "s0")
		d.change(t, c.mib)
		d.snapshot(t, "s1")
	} else {
		d.change(t, c.mib)
		d.snapshot(t, "s1")
	}
	d.change(t, 1)
	d.snapshot(t, "s2")
	d.clearCache(t)
	return d
}

func (d *datasets) create(t *testing.T, below string) {
	t.Helper()
	argv := []string{"create"}
	if d.c.kind == "encrypted" && below == "" {
		d.key = filepath.Join(t.TempDir(), "key")
		require.NoError(t, os.WriteFile(d.key, []byte(strings.Repeat("chaoskey", 4)), 0o600))
		argv = append(argv, "-o", "encryption=aes-256-gcm", "-o", "keyformat=raw", "-o", "keylocation=file://"+d.key)
	}
	if d.isVolume(below) {
		argv = append(argv, "-s", "-b", "16k", "-V", "48m")
	} else if d.rand.IntN(3) == 0 {
		argv = append(argv, "-o", choose(d.rand, "recordsize=16k", "recordsize=1m", "compression=off", "org.example:note=it's"))
	}
	zfsCmd(t, append(argv, d.src+below)...)
}

// isVolume reports whether a dataset is a volume. Only the last dataset, which has no
// descendants, can be one.
func (d *datasets) isVolume(below string) bool {
	return d.c.kind == "volume" && below == d.below[len(d.below)-1]
}

// change writes some MiB, divided among the datasets.
func (d *datasets) change(t *testing.T, mib int) {
	t.Helper()
	each := int64(mib) << 20 / int64(len(d.below))
	for _, b := range d.below {
		if d.isVolume(b) {
			writeVolume(t, d.src+b, d.rand, each)
		} else {
			writeFiles(t, filepath.Join(poolDir(d.p.srcPool), strings.TrimPrefix(d.src+b, d.p.srcPool)), d.rand, each)
		}
	}
}

func (d *datasets) snapshot(t *testing.T, name string) {
	t.Helper()
	zfsCmd(t, "snapshot", "-r", d.src+"@"+name)
}

// sendBase sends a snapshot to the target with zfs(8), like another tool.
func (d *datasets) sendBase(t *testing.T, name string) {
	t.Helper()
	d.before = []string{name}
	flags, set := "-ec", "-o readonly=on"
	switch {
	case d.c.kind == "encrypted":
		flags = "-w"
	case d.rand.IntN(2) == 0:
		flags, set = "-Lec", set+" -o zxfer:stream=Lec" // records the stream flags of the first send
	}
	for _, b := range d.below {
		set := set
		if !d.isVolume(b) {
			set += " -o canmount=noauto"
		}
		run(t, "sh", "-c", fmt.Sprintf("zfs send %s '%s' | zfs receive -u %s '%s'", flags, d.src+b+"@"+name, set, d.dst+b))
		if d.c.consent == "rollback" {
			zfsCmd(t, "snapshot", d.dst+b+"@"+extraSnapshot)
		}
	}
}

// clearCache clears the source's cached data if its disk will fail.
func (d *datasets) clearCache(t *testing.T) {
	t.Helper()
	if d.p.srcPool == faultPool {
		run(t, "zpool", "export", "-f", faultPool)
		run(t, "zpool", "import", "-d", "/dev/mapper", faultPool)
		if d.c.consent == "decrypt" { // only decryption needs the key
			zfsCmd(t, "load-key", d.src)
		}
	}
}

func (d *datasets) argv() []string {
	target := d.p.to + d.dst
	if filepath.Base(d.dst) != "exact" {
		target = d.p.to + d.parent + "/"
	}
	args := append([]string{"send", "--bwlimit", fmt.Sprintf("%dMiB", d.c.rate)}, d.c.wireArgs()...)
	args = append(args, d.c.flags...)
	if d.c.work == "tree" {
		args = append(args, "-R")
	}
	if d.c.consent != "" && (d.c.consent == "decrypt" || d.before != nil) {
		args = append(args, "--"+d.c.consent)
	}
	return append(args, d.p.from+d.src+d.c.snap, target)
}

func (d *datasets) repeatable() bool { return true }

// expectedSnapshots returns the snapshots that each target dataset must have afterwards.
func (d *datasets) expectedSnapshots() []string {
	names := []string{"s0", "s1", "s2"}
	if d.c.snap != "" {
		names = names[:2]
	}
	if slices.Contains(d.c.flags, "--latest-only") {
		return append(slices.Clone(d.before), names[len(names)-1])
	}
	return names
}

// table maps names of datasets, snapshots and bookmarks to their properties.
type table map[string]map[string]string

// readProperties reads properties of the whole source and target.
func (d *datasets) readProperties(t *testing.T, properties string) table {
	t.Helper()
	all := table{}
	for l := range strings.Lines(zfsCmd(t, "get", "-Hp", "-r", "-t", "all", "-o", "name,property,value,source", properties, d.src, d.parent)) {
		f := strings.Split(strings.TrimSuffix(l, "\n"), "\t")
		if all[f[0]] == nil {
			all[f[0]] = map[string]string{}
		}
		all[f[0]][f[1]] = f[2]
	}
	return all
}

// versions returns the names of a dataset's snapshots ("@") or bookmarks ("#"), oldest first.
func (a table) versions(dataset, mark string) (names []string) {
	for full := range a {
		if name, ok := strings.CutPrefix(full, dataset+mark); ok {
			names = append(names, name)
		}
	}
	txg := func(name string) int {
		n, _ := strconv.Atoi(a[dataset+mark+name]["createtxg"]) // zfs prints numbers
		return n
	}
	slices.SortFunc(names, func(x, y string) int { return cmp.Compare(txg(x), txg(y)) })
	return names
}

// holds returns the holds on a dataset's snapshots as "snapshot tag".
func (a table) holds(t *testing.T, dataset string) (holds []string) {
	t.Helper()
	for _, s := range a.versions(dataset, "@") {
		if name := dataset + "@" + s; a[name]["userrefs"] != "0" {
			for h := range strings.Lines(zfsCmd(t, "holds", "-H", name)) {
				holds = append(holds, name+" "+strings.Split(h, "\t")[1])
			}
		}
	}
	return holds
}

// volatile lists properties that change without a command.
var volatile = append([]string{"referenced", "refcompressratio", "written", "logicalreferenced", "objsetid"}, freedLater...)

func (d *datasets) state(t *testing.T) string {
	t.Helper()
	var lines []string
	for name, properties := range d.readProperties(t, "all") {
		for p, value := range properties {
			if !slices.Contains(volatile, p) {
				lines = append(lines, name+" "+p+" "+value)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// checkedProperties returns the properties that the checks need.
func (d *datasets) checkedProperties(t *testing.T) table {
	t.Helper()
	return d.readProperties(t, "guid,createtxg,userrefs,receive_resume_token,readonly,canmount,mounted,encryption,keystatus")
}

func (d *datasets) requireSound(t *testing.T) { d.requireSoundIn(t, d.checkedProperties(t)) }

func (d *datasets) requireSoundIn(t *testing.T, seen table) {
	t.Helper()
	for full, properties := range seen {
		below, ok := strings.CutPrefix(full, d.parent)
		if !ok || below == "" {
			continue
		}
		below, ok = strings.CutPrefix(full, d.dst)
		dataset, name, isSnapshot := strings.Cut(below, "@")
		require.True(t, ok && slices.Contains(d.below, dataset), "unexpected %s", full)
		if isSnapshot && (name != extraSnapshot || d.c.consent != "rollback") {
			require.Equal(t, seen[d.src+below]["guid"], properties["guid"], "GUID of %s differs from the source", full)
		}
	}
}

func (d *datasets) requireComplete(t *testing.T) {
	t.Helper()
	seen, expected := d.checkedProperties(t), d.expectedSnapshots()
	d.requireSoundIn(t, seen)
	d.loadKeys(t, seen)
	for _, b := range d.below {
		source, target, newest := d.src+b, d.dst+b, expected[len(expected)-1]
		d.requireCopy(t, b, seen, expected)
		var holds, bookmarks []string
		if slices.Contains(d.c.flags, "--hold") {
			holds = []string{source + "@" + newest + " chaos", target + "@" + newest + " chaos"}
		}
		if slices.Contains(d.c.flags, "--bookmark") {
			bookmarks = []string{newest}
		}
		d.requireHoldsAndBookmarks(t, b, seen, holds, bookmarks)
	}
}

// requireCopy fails the test unless a target dataset has the given snapshots with equal
// contents, and the properties of a copy.
func (d *datasets) requireCopy(t *testing.T, below string, seen table, snapshots []string) {
	t.Helper()
	source, target := d.src+below, d.dst+below
	require.ElementsMatch(t, snapshots, seen.versions(target, "@"), "snapshots of %s", target)
	for _, s := range snapshots {
		requireEqualSnapshots(t, source+"@"+s, target+"@"+s, d.isVolume(below))
	}
	properties := seen[target]
	require.Equal(t, "-", properties["receive_resume_token"], "partially received state is left on %s", target)
	require.Equal(t, "on", properties["readonly"], target)
	if !d.isVolume(below) {
		require.Equal(t, "noauto", properties["canmount"], target)
		require.Equal(t, "no", properties["mounted"], target)
	}
	require.Equal(t, d.c.kind == "encrypted" && d.c.consent != "decrypt", properties["encryption"] != "off", target)
}

// requireHoldsAndBookmarks fails the test unless exactly the requested holds and bookmarks exist.
func (d *datasets) requireHoldsAndBookmarks(t *testing.T, below string, seen table, holds, bookmarks []string) {
	t.Helper()
	source, target := d.src+below, d.dst+below
	require.ElementsMatch(t, holds, append(seen.holds(t, source), seen.holds(t, target)...), "holds of %s", target)
	found := seen.versions(source, "#")
	if slices.ContainsFunc(d.c.faults, func(h chaosFault) bool { return h.kind == "signal" }) {
		// A run that is interrupted after its last stream leaves old bookmarks for the next run.
		require.Subset(t, found, bookmarks, "bookmarks of %s", source)
	} else {
		require.ElementsMatch(t, bookmarks, found, "bookmarks of %s", source)
	}
	require.Empty(t, seen.versions(target, "#"), "bookmarks of %s", target)
}

// loadKeys loads the keys of source and target.
func (d *datasets) loadKeys(t *testing.T, seen table) {
	t.Helper()
	for _, root := range []string{d.src, d.dst} {
		for _, b := range d.below {
			if seen[root+b]["keystatus"] == "unavailable" {
				_ = exec.Command("zfs", "load-key", "-L", "file://"+d.key, root+b).Run() // the key of the parent may already have unlocked it
			}
		}
	}
}
