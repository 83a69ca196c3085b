package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs/zfstest"
)

// A hostile source answers zfs send with streams that the test forges. The tests send them to a
// target over every route. On one route, the holder of a restricted key runs the source.
// Only the planned snapshots may change the target.

// route is a connection from a hostile source to a target.
type route struct {
	name     string
	args     []string
	from, to string // pools
	srcHost  string // "beta:" or ""
	dstHost  string
	key      bool // over a key that may receive the target and nothing else
	main     bool // one of the two routes that take most attacks
}

// routes returns the routes. Those in the same direction, which share their datasets, are
// neighbours.
func routes() []route {
	push := func(name string, args ...string) route {
		return route{name: name, args: args, from: alphaPool, to: betaPool, dstHost: "beta:"}
	}
	pull := func(name string, args ...string) route {
		return route{name: name, args: args, from: betaPool, to: alphaPool, srcHost: "beta:"}
	}
	restricted, pulled := push("restricted key"), pull("pull")
	restricted.key, restricted.main, pulled.main = true, true, true
	return []route{
		restricted, push("push"),
		push("push plain", "--wire", "plain", "--trusted-link"),
		push("push streams", "--streams", "3", "--compress", "zstd"),
		push("push tls", "--wire", "tls"),
		push("push ssh", "--wire", "ssh", "--streams", "1"),
		pulled,
		pull("pull plain", "--wire", "plain", "--trusted-link"),
		pull("pull nc", "--wire", "nc", "--trusted-link"),
		{name: "local", from: alphaPool, to: alphaPool},
	}
}

// fakeSend makes zfs send of both hosts answer with a stream.
func fakeSend(t *testing.T, stream []byte) {
	t.Helper()
	dir, err := os.MkdirTemp(labDir, "lie")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.WriteFile(dir+"/stream", stream, 0o600))
	program := filepath.Join(labDir, "bin", "zfs")
	t.Cleanup(func() { _ = os.Remove(program) })
	require.NoError(t, os.WriteFile(program, []byte(`#!/bin/sh
case "$1 $2" in
"send -n"*) ;; # an estimate
"send "*) exec cat `+dir+`/stream ;;
esac
exec /usr/sbin/zfs "$@"
`), 0o755))
}

// attackTarget is a target to attack, and the datasets next to it. No attack may change these.
type attackTarget struct {
	route
	t              *testing.T
	base           string // on the target's pool
	source, target string
	enc            string // encrypted source
	secret         string // must neither be written nor read
	forbiddenMount string // where nothing may be mounted
	full, incr     zfstest.Stream
	raw            zfstest.Stream // full, of enc
	other          zfstest.Stream // full, of another snapshot
	later          []byte         // full, of @d
	secretGUID     uint64
	args           []string
	cachedTree     []string // the result of tree; nil if something may have changed since
}

// newAttackTarget creates the datasets for the routes in the direction of r.
func newAttackTarget(t *testing.T, r route) *attackTarget {
	t.Helper()
	lab(t)
	attacker := r.from + "/attacker"
	p := &attackTarget{t: t, base: r.to + "/attacked", source: attacker + "/web", enc: attacker + "/enc"}
	p.target, p.secret, p.forbiddenMount = p.base+"/vault/web1", p.base+"/secret", t.TempDir()+"/ssh"
	t.Cleanup(func() {
		for _, d := range []string{p.base, attacker} {
			releaseAll(d)
			_ = exec.Command("zfs", "destroy", "-R", "-f", d).Run()
		}
	})
	key := t.TempDir() + "/key"
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	zfsCmd(t, "create", "-p", p.source)
	zfsCmd(t, "create", attacker+"/other")
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, p.enc)
	zfsCmd(t, "create", "-p", p.secret)
	write := func(dataset, file string, content []byte) {
		_, path, _ := strings.Cut(dataset, "/")
		pool, _, _ := strings.Cut(dataset, "/")
		require.NoError(t, os.WriteFile(filepath.Join(poolDir(pool), path, file), content, 0o600))
	}
	random := func(n int) []byte {
		b := make([]byte, n)
		_, _ = rand.Read(b)
		return b
	}
	write(p.secret, "plain", []byte("the secret"))
	zfsCmd(t, "snapshot", p.secret+"@s")
	write(p.source, "authorized_keys-a", random(100<<10))
	zfsCmd(t, "snapshot", p.source+"@a", attacker+"/other@a", p.enc+"@a")
	for _, later := range []struct {
		snap string
		size int
	}{{"b", 100 << 10}, {"c", 100 << 10}, {"d", 2 << 20}} {
		write(p.source, "authorized_keys-"+later.snap, random(later.size))
		zfsCmd(t, "snapshot", p.source+"@"+later.snap)
	}
	_, err := fmt.Sscan(zfsCmd(t, "get", "-Hp", "-o", "value", "guid", p.secret+"@s"), &p.secretGUID)
	require.NoError(t, err)
	stream := func(args ...string) []byte {
		return []byte(run(t, append([]string{"zfs", "send", "-Lec"}, args...)...))
	}
	p.full, p.incr = zfstest.ParseStream(t, stream(p.source+"@a")), zfstest.ParseStream(t, stream("-I", "@a", p.source+"@c"))
	p.other, p.raw = zfstest.ParseStream(t, stream(attacker+"/other@a")), zfstest.ParseStream(t, stream("-w", p.enc+"@a"))
	p.later = stream(p.source + "@d")
	return p
}

// forRoute returns the same attack target for another route, without a target.
func (p *attackTarget) forRoute(t *testing.T, r route) *attackTarget {
	t.Helper()
	c := *p
	c.t, c.route, c.args, c.cachedTree = t, r, nil, nil
	if r.key {
		rsh, _ := restrictedKey(t, "--allow", "receive="+c.target, "--append-only")
		c.args = append(c.args, "-e", rsh)
	}
	c.args = append(c.args, r.args...)
	c.build()
	return &c
}

// forger returns the forger of attacks on this target.
func (p *attackTarget) forger() zfstest.Forger {
	return zfstest.Forger{Full: p.full, Increment: p.incr, Other: p.other, Raw: p.raw,
		Foreign: p.secret, ForeignGUID: p.secretGUID, Mountpoint: p.forbiddenMount}
}

// restoreSend ends fakeSend.
func restoreSend() { _ = os.Remove(filepath.Join(labDir, "bin", "zfs")) }

// build recreates everything around the target, and removes the target.
func (p *attackTarget) build() {
	p.t.Helper()
	restoreSend()
	p.cachedTree = nil
	vault := p.base + "/vault"
	releaseAll(vault)
	_ = exec.Command("zfs", "destroy", "-R", "-f", vault).Run() // the first time there is none
	zfsCmd(p.t, "create", "-p", vault+"/web10")
	zfsCmd(p.t, "snapshot", vault+"/web10@s")
}

// remove destroys the target.
func (p *attackTarget) remove() {
	p.t.Helper()
	restoreSend()
	p.cachedTree = nil
	require.NoError(p.t, destroyAll(p.target))
}

// restoreBase makes @a the most recent snapshot of the target, and discards partially received
// state.
func (p *attackTarget) restoreBase() {
	p.t.Helper()
	restoreSend()
	p.cachedTree = nil
	if zfsList(p.target) == "" { // build removed it
		require.Equal(p.t, 0, p.send("a").code)
	}
	releaseAll(p.target)
	_ = exec.Command("zfs", "receive", "-A", p.target).Run() // there may be none
	zfsCmd(p.t, "rollback", "-r", p.target+"@a")
}

// send sends the source up to a snapshot to the target.
func (p *attackTarget) send(snap string, args ...string) cmdResult {
	p.t.Helper()
	argv := append([]string{"send"}, p.args...)
	return zxfer(p.t, append(append(argv, args...), p.srcHost+p.source+"@"+snap, p.dstHost+p.target)...)
}

// pkg/zfs checks every attack with zfs.Gate. The long level also sends all of them through
// zxfer over the main routes. Below it, the restricted key gets the attacks that the gate
// passes, and a main route one in "sampled" of the others. Every route gets the first
// "onEveryRoute" attacks that are meant for all routes.
const (
	sampled      = 24
	onEveryRoute = 1
)

// selectAttacks returns the attacks of this route that are sent through zxfer.
func (p *attackTarget) selectAttacks(attacks []zfstest.Attack) (chosen []zfstest.Attack) {
	everywhere := 0
	for i, a := range attacks {
		if a.Everywhere {
			everywhere++
		}
		switch {
		case testenv.Long() && (p.main || a.Everywhere),
			a.Everywhere && everywhere <= onEveryRoute,
			p.key && a.Says == "",
			p.main && i%sampled == len(p.route.name)%sampled:
			chosen = append(chosen, a)
		}
	}
	return chosen
}

// attack sends the attacks instead of the planned stream, and then the planned stream to
// show that no attack had an effect. restore resets the target to its state before the
// attacks.
func (p *attackTarget) attack(kind, snap string, attacks []zfstest.Attack, restore func()) {
	p.t.Helper()
	for _, a := range attacks {
		p.t.Run(kind+": "+a.Name, func(t *testing.T) {
			fakeSend(t, a.Stream)
			before, excluded := p.tree(t), ""
			if a.Begins {
				excluded = p.target
			}
			t.Cleanup(func() {
				switch {
				case t.Failed():
					p.build()
					restore()
				case a.Begins:
					restore()
				}
			})
			o := p.send(snap)
			p.cachedTree = nil
			if a.Begins {
				p.requireNotMounted(t)
			}
			require.Empty(t, changes(withoutDataset(before, excluded), withoutDataset(p.tree(t), excluded)), "%s", o)
			require.NotEqual(t, 0, o.code, "%s", o)
			if !a.Cut {
				require.NotEqual(t, 4, o.code, "a retry cannot succeed: %s", o)
			}
			require.Contains(t, o.stderr, p.target)
			require.Contains(t, o.stderr, a.Says)
			if a.Begins {
				require.Subset(t, guids(t, p.source), guids(t, p.target))
			}
		})
	}
	p.requireNotMounted(p.t)
	require.Equal(p.t, 0, p.send(snap).code, "honest send")
	p.cachedTree = nil
	if snap == "c" {
		want := guids(p.t, p.source)
		delete(want, "d")
		require.Equal(p.t, want, guids(p.t, p.target))
	}
}

// requireNotMounted fails the test if a dataset is mounted at the path of the attack.
func (p *attackTarget) requireNotMounted(t *testing.T) {
	t.Helper()
	_ = exec.Command("zfs", "mount", "-a").Run() // some datasets cannot be mounted
	require.NoFileExists(t, p.forbiddenMount+"/authorized_keys-a")
}

// tree returns every dataset, version, property, hold and resume token of both pools, except
// figures of space, which ZFS changes by itself.
func (p *attackTarget) tree(t *testing.T) []string {
	t.Helper()
	if p.cachedTree == nil {
		p.cachedTree = tree(t)
	}
	return p.cachedTree
}

// tree is the uncached form of attackTarget.tree.
func tree(t *testing.T) []string {
	t.Helper()
	return propertiesExcept(t, append([]string{"referenced", "written", "refcompressratio", "logicalreferenced", "mounted"}, freedLater...))
}

// withoutDataset returns the lines without the lines of one dataset. "" removes none.
func withoutDataset(lines []string, dataset string) []string {
	if dataset == "" {
		return lines
	}
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
		name, _, _ := strings.Cut(l, "\t")
		return name == dataset || strings.HasPrefix(name, dataset+"@") || strings.HasPrefix(name, dataset+"/")
	})
}

// changes returns at most 20 lines that are in only one of the lists.
func changes(before, after []string) []string {
	var out []string
	for sign, in := range map[string][2][]string{"-": {before, after}, "+": {after, before}} {
		other := map[string]bool{}
		for _, l := range in[1] {
			other[l] = true
		}
		for _, l := range in[0] {
			if !other[l] && len(out) < 20 {
				out = append(out, sign+l)
			}
		}
	}
	return out
}

// TestHostileStreams sends attacks over every route against a full stream, its records and
// a package of two increments. The main routes also get attacks against a raw stream and
// the rest of an interrupted stream. The gate must refuse each attack before the kernel
// reads it, because some of them panic the kernel.
func TestHostileStreams(t *testing.T) {
	lab(t)
	for all := routes(); len(all) > 0; {
		n := 1
		for n < len(all) && all[n].from == all[0].from && all[n].to == all[0].to {
			n++
		}
		same := all[:n]
		all = all[n:]
		t.Run(same[0].from+" to "+same[0].to, func(t *testing.T) {
			p := newAttackTarget(t, same[0])
			for i, r := range same {
				t.Run(r.name, func(t *testing.T) {
					everything := r.main || testenv.Long()
					p.forRoute(t, r).attackAll(everything || i%2 == 0, everything || i%2 == 1)
				})
			}
		})
	}
}

// attackAll sends the attacks of a route. full and increments select the kinds in addition
// to attacks on records, because below the long level most routes get only one of the two.
func (p *attackTarget) attackAll(full, increments bool) {
	f := p.forger()
	attacks := p.selectAttacks(f.RecordsAgainstFull())
	if full {
		attacks = append(attacks, p.selectAttacks(f.AgainstFull())...)
	}
	p.attack("full", "a", attacks, p.remove)
	if increments {
		p.attack("increment", "c", p.selectAttacks(f.AgainstIncrement()), p.restoreBase)
	}
	if p.main {
		p.remove()
		p.attackResume()
		p.remove()
		p.attackRaw()
	}
	requireNoLeftovers(p.t)
}
