package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agentless"
	"zxfer/pkg/testenv"
)

// agentlessAccount adds an account on beta that cannot run zxfer, under a name for ssh. login runs
// $SSH_ORIGINAL_COMMAND. The account's PATH has zfs, zpool and commands that POSIX names, and its
// uname prints FreeBSD.
func agentlessAccount(t *testing.T, name, login string) {
	t.Helper()
	dir := filepath.Join(labDir, "accounts", name)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, tool := range []string{"sh", "cat", "sed", "getconf", "head", "kill", "ps", "sleep", "touch", "test", "printf", "zfs", "zpool"} {
		path, err := exec.LookPath(tool)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, tool)))
	}
	program := func(name, text string) {
		testenv.WriteProgram(t, filepath.Join(dir, name), "#!/bin/sh\n"+text+"\n")
	}
	program("uname", `case $1 in -s) echo FreeBSD;; *) exec /usr/bin/uname "$@";; esac`)
	// Not root's number, because root has a zxfer in its cache.
	program("id", `case $1 in -u) echo 4242;; *) exec /usr/bin/id "$@";; esac`)
	program("login", "echo \"$SSH_ORIGINAL_COMMAND\" >>"+dir+"/commands\nPATH="+dir+" HOME=/nonexistent; export PATH HOME\n"+login)
	run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, "key"))
	public := strings.TrimSpace(fileText(filepath.Join(dir, "key.pub")))
	change := func(file string, edit func(string) string) {
		before := fileText(file)
		require.NoError(t, os.WriteFile(file, []byte(edit(before)), 0o600))
		t.Cleanup(func() { require.NoError(t, os.WriteFile(file, []byte(before), 0o600)) })
	}
	change(filepath.Join(labDir, "user_key.pub"), func(s string) string {
		return s + fmt.Sprintf("restrict,command=\"%s/login\" %s\n", dir, public)
	})
	change(filepath.Join(labDir, "ssh_config"), func(s string) string {
		return fmt.Sprintf("Host %s\n HostName %s\n HostKeyAlias beta\n IdentityFile %s/key\n", name, betaIP, dir) + s
	})
}

// requirePermitted expects that an account ran only commands that `zxfer doctor --print-allow` lists.
func requirePermitted(t *testing.T, account string) {
	t.Helper()
	var permitted []string
	for _, c := range agentless.Commands() {
		permitted = append(permitted, c.Words)
	}
	ran := 0
	for line := range strings.Lines(fileText(filepath.Join(labDir, "accounts", account, "commands"))) {
		words := strings.Fields(line)
		if len(words) > 1 && (words[0] == "zfs" || words[0] == "zpool") {
			require.Contains(t, permitted, words[0]+" "+words[1])
			ran++
		}
	}
	require.NotZero(t, ran)
}

const (
	loginShell  = `exec sh -c "$SSH_ORIGINAL_COMMAND"`
	loginFilter = `case $SSH_ORIGINAL_COMMAND in "zfs "*) eval "exec $SSH_ORIGINAL_COMMAND";; *) echo "not permitted" >&2; exit 1;; esac`
)

// TestZFSAgentless sends to and from accounts that cannot run zxfer: one with a shell, and one that
// permits only zfs commands.
func TestZFSAgentless(t *testing.T) {
	lab(t)
	const noise = "bash: warning: setlocale: LC_ALL: cannot change locale (xx_YY)"
	for name, login := range map[string]string{"nas": "echo '" + noise + "' >&2\n" + loginShell, "filter": loginFilter} {
		t.Run(name, func(t *testing.T) {
			agentlessAccount(t, name, login)
			src, dst := dataset(t)
			src, dst = src+"/it has spaces", dst+"/two  of them"
			zfsCmd(t, "create", "-p", src+"/below")
			fill(t, src, "a", 1<<20)
			zfsCmd(t, "snapshot", "-r", src+"@one")
			before := state(t)
			o := mustZxfer(t, "send", "-R", "-n", src, name+":"+dst)
			require.Contains(t, o.stderr, name+": "+map[string]string{"nas": "its system is FreeBSD", "filter": "ssh: exit status 1: not permitted"}[name])
			require.Contains(t, o.stderr, "using its zfs through ssh")
			require.Equal(t, map[string]int{"nas": 1}[name], strings.Count(o.stderr, noise), o)
			require.Equal(t, before, state(t))
			mustZxfer(t, "send", "-R", src, name+":"+dst)
			require.Equal(t, guids(t, src), guids(t, dst))
			require.Equal(t, guids(t, src+"/below"), guids(t, dst+"/below"))

			fill(t, src, "b", 1<<20)
			for _, s := range []string{"@two", "@three"} {
				zfsCmd(t, "snapshot", "-r", src+s)
			}
			o = mustZxfer(t, "send", "-R", "--json", "--hold", "keep me", "--bookmark", src, name+":"+dst)
			require.Contains(t, o.stdout, `"wire": "ssh"`)
			require.Contains(t, o.stdout, `"verified": "guid"`)
			require.Equal(t, guids(t, src), guids(t, dst))
			require.Contains(t, zfsCmd(t, "holds", "-H", dst+"@three"), "keep me")

			mustZxfer(t, "send", "-R", "--verify", src, name+":"+dst)

			back := src + "-back"
			mustZxfer(t, "send", name+":"+dst+"@two", back)
			o = mustZxfer(t, "send", "--verify", name+":"+dst, back)
			require.Contains(t, o.stdout, "verified by guid and content")
			require.Equal(t, guids(t, src), guids(t, back))
			requireSameFiles(t, src, back)

			mustZxfer(t, "send", name+":"+dst, name+":"+dst+"-local")
			require.Equal(t, guids(t, dst), guids(t, dst+"-local"))

			// The target changed: refused, until the user permits the loss.
			zfsCmd(t, "snapshot", dst+"@foreign")
			fill(t, src, "c", 1<<20)
			zfsCmd(t, "snapshot", src+"@four")
			before = state(t)
			o = zxfer(t, "send", src, name+":"+dst)
			require.Equal(t, 3, o.code, o)
			require.Equal(t, before, state(t))
			mustZxfer(t, "send", "--rollback", src, name+":"+dst)
			require.Equal(t, guids(t, src), guids(t, dst))
			requireNoLeftovers(t)
			if name == "filter" {
				requirePermitted(t, name)
			}
		})
	}
}

// TestZFSAgentlessBetweenHosts sends between two accounts that cannot run zxfer. The data passes this
// host.
func TestZFSAgentlessBetweenHosts(t *testing.T) {
	lab(t)
	agentlessAccount(t, "nas", loginShell)
	agentlessAccount(t, "filter", loginFilter)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", "nas:"+src, "filter:"+dst)
	require.Equal(t, guids(t, src), guids(t, dst))
	zfsCmd(t, "snapshot", src+"@two")
	before := state(t)
	o := zxfer(t, "send", "nas:"+src, "beta:"+dst)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "beta runs zxfer, but nas does not")
	o = zxfer(t, "send", "--wire", "tls", src, "nas:"+dst)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "its system is FreeBSD")
	require.Equal(t, before, state(t))
	requireNoLeftovers(t)
}

// TestZFSAgentlessEncrypted sends raw streams and an increment of them.
func TestZFSAgentlessEncrypted(t *testing.T) {
	lab(t)
	agentlessAccount(t, "nas", loginShell)
	src, dst := dataset(t)
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "nas:"+dst)
	require.Equal(t, "unavailable", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keystatus", dst)))
	fill(t, src, "b", 1<<20)
	zfsCmd(t, "snapshot", src+"@two")
	mustZxfer(t, "send", src, "nas:"+dst)
	back := src + "-back"
	mustZxfer(t, "restore", "nas:"+dst, back)
	require.Equal(t, guids(t, src), guids(t, back))
	requireNoLeftovers(t)
}

// TestZFSAgentlessKilled kills a process of a transfer. No snapshot of a partial stream arrives, and
// the same command resumes the transfer.
func TestZFSAgentlessKilled(t *testing.T) {
	lab(t)
	agentlessAccount(t, "nas", loginShell)
	agentlessAccount(t, "filter", loginFilter)
	for _, c := range []struct{ name, account, host, victim string }{
		{"source of push", "nas", alphaPool, "zfs send"},
		{"zxfer of push", "nas", alphaPool, "zxfer"},
		{"ssh of push", "nas", alphaPool, "ssh"},
		{"zxfer of push to filter", "filter", alphaPool, "zxfer"},
		{"target of push to filter", "filter", betaPool, "zfs receive"},
		{"source of pull", "nas", betaPool, "zfs send"},
		{"source of pull from filter", "filter", betaPool, "zfs send"},
	} {
		if c.account == "nas" && c.name != "zxfer of push" && c.name != "source of pull" && !testenv.Long() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			src, dst := dataset(t)
			zfsCmd(t, "create", src)
			fill(t, src, "a", 12<<20)
			zfsCmd(t, "snapshot", src+"@x")
			from, to, host := src, c.account+":"+dst, betaPool
			if strings.Contains(c.name, "pull") {
				from, to, host = c.account+":"+src, dst, alphaPool
			}
			p := start(t, "send", "--bwlimit", "4MiB", "--buffer", "1MiB", "--retries", "0", from, to)
			waitReceived(t, p, host, isZFS("receive"), 2<<20)
			words := []string{c.victim}
			if c.victim == "ssh" {
				words = append(words, c.account)
			}
			victim := waitProcess(t, c.host, words...)
			require.NoError(t, syscall.Kill(victim, syscall.SIGKILL))
			o := p.wait(t)
			if c.victim != "zxfer" {
				require.Equal(t, 4, o.code, o.String())
			}
			require.NotContains(t, zfsList(dst), "@x")
			requireNoLeftovers(t)
			o = mustZxfer(t, "send", "--json", from, to)
			require.Contains(t, o.stdout, `"resumed": true`)
			require.Equal(t, guids(t, src), guids(t, dst))
		})
	}
}

// TestZFSAgentlessLinkCut drops all packets during a push until ssh gives up. The host keeps its zfs
// receive running. zxfer ends it and resumes.
func TestZFSAgentlessLinkCut(t *testing.T) {
	lab(t)
	agentlessAccount(t, "nas", loginShell)
	t.Cleanup(func() { run(t, labScript(), "mend") })
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 12<<20)
	zfsCmd(t, "snapshot", src+"@one")
	args := []string{"send", "--bwlimit", "4MiB", "--buffer", "1MiB", src, "nas:" + dst}
	p := start(t, args...)
	waitReceived(t, p, betaPool, isZFS("receive"), 3<<20)
	run(t, labScript(), "cut")
	waitEnded(t, alphaPool, func(argv []string) bool { return filepath.Base(argv[0]) == "ssh" })
	run(t, labScript(), "mend")
	runUntilDone(t, p, args...)
	require.Equal(t, guids(t, src), guids(t, dst))
	requireSameFiles(t, src, dst)
	requireNoLeftovers(t)
}

// TestZFSAgentlessVerbs checks each row of the table in docs/howto/limited-hosts.md.
func TestZFSAgentlessVerbs(t *testing.T) {
	lab(t)
	agentlessAccount(t, "nas", loginShell)
	src, dst := dataset(t)
	back := src + "-back"
	t.Cleanup(func() { cleanUp(back) })
	zfsCmd(t, "create", "-p", src+"/below")
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", "-r", src+"@one")
	mustZxfer(t, "send", "-R", src, "nas:"+dst)
	mustZxfer(t, "restore", "-R", "nas:"+dst, back)
	mustZxfer(t, "restore", back, "nas:"+dst+"-restored")
	require.Equal(t, guids(t, src), guids(t, dst+"-restored"))
	mustZxfer(t, "compare", "-R", src, "nas:"+dst)
	o := zxfer(t, "doctor", "-v", "--quick", src, "nas:"+dst)
	require.Contains(t, o.stdout, "FreeBSD")

	o = zxfer(t, "doctor", "--time", "100ms", src, "nas:"+dst)
	require.Contains(t, o.stdout, "link", o)
	require.NotEqual(t, 2, o.code, o)

	before := state(t)
	for _, args := range [][]string{
		{"heal", "nas:" + dst, src}, {"restore", "--files", "/a", "nas:" + dst, t.TempDir() + "/x"}, {"dev", "/dev/null", "nas:/dev/null"},
	} {
		o = zxfer(t, args...)
		require.Contains(t, []int{2, 3}, o.code, "%v: %s", args, o)
		require.NotContains(t, o.stderr, "panic")
	}
	require.Equal(t, before, state(t))

	job := func(source, to string) *replication {
		return newReplication(t, fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nrecursive = true\nretention = { last = 1 }\n"+
			"snapshots = { take = \"s-%%Y%%m%%dT%%H%%M%%SZ\" }\n"+
			"target = [{ name = \"t\", to = %q, retention = { last = 1 } }]\n[job.drill]\n", source, to))
	}
	for i, r := range []*replication{job(src, "nas:"+dst), job("nas:"+dst, back)} {
		if i > 0 { // the first job does not send to it any more
			zfsCmd(t, "inherit", "-r", "zxfer:stream", dst)
		}
		for _, args := range [][]string{{"check", "home"}, {"run", "home"}, {"status"}, {"prune", "home"}, {"holds"}, {"drill", "home"}} {
			o = r.run(t, args[0], args[1:]...)
			require.Equal(t, 0, o.code, "%s: %s", args[0], o)
		}
		require.Contains(t, o.stdout, "good")
	}
	requireNoLeftovers(t)
}

// TestZFSAgentlessHeal repairs a local pool from a copy on a host without zxfer.
func TestZFSAgentlessHeal(t *testing.T) {
	healLab(t)
	agentlessAccount(t, "nas", loginShell)
	_, dst := dataset(t)
	s := newDamagedPool(t, "zxsick")
	plain := s.pool + "/plain"
	zfsCmd(t, "create", plain)
	fill(t, plain, "one", 1<<20)
	zfsCmd(t, "snapshot", plain+"@a")
	mustZxfer(t, "send", plain, "nas:"+dst)
	file := filepath.Join(mountpoint(t, plain), "one")
	sum := fileDigest(t, file)
	s.markFile(t, plain, file)
	s.damage(t)
	mustZxfer(t, "heal", plain, "nas:"+dst)
	require.Equal(t, sum, fileDigest(t, file))
	requireNoLeftovers(t)
}
