package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// installNC gives beta an nc of a dialect, for transfers that run no zxfer there.
func installNC(t *testing.T, nc string) {
	t.Helper()
	link := filepath.Join(labDir, "bin", "nc")
	testenv.WriteProgram(t, link, "#!/bin/sh\nexec "+nc+` "$@"`+"\n")
	t.Cleanup(func() { _ = os.Remove(link) })
}

// ncSend returns the arguments of a send with plain tools.
func ncSend(args ...string) []string {
	return append([]string{"send", "--wire", "nc", "--trusted-link"}, args...)
}

// TestZFSNetcat sends with nc to beta and back, in full and incrementally, with names and
// values that a shell must not interpret. Package agentless tests every nc.
func TestZFSNetcat(t *testing.T) {
	lab(t)
	installNC(t, "nc.openbsd")
	src, dst := dataset(t)
	src, dst = src+"/it has spaces", dst+"/two  of them"
	zfsCmd(t, "create", "-p", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	note := "it's $HOME `id` \\ \"quoted\" !! *"
	before := state(t)
	o := mustZxfer(t, ncSend("-n", src, "beta:"+dst)...)
	require.Contains(t, o.stdout, "target dials 10.77.0.1: --trusted-link: ")
	require.Equal(t, before, state(t))
	mustZxfer(t, ncSend("-o", "org.example:note="+note, src, "beta:"+dst)...)
	require.Equal(t, note, strings.TrimSuffix(zfsCmd(t, "get", "-H", "-o", "value", "org.example:note", dst), "\n"))
	fill(t, src, "b", 1<<20)
	for _, s := range []string{"@two", "@three"} {
		zfsCmd(t, "snapshot", src+s)
	}
	o = mustZxfer(t, ncSend("--json", "--hold", "keep me", "--bookmark", src, "beta:"+dst)...)
	require.Equal(t, guids(t, src), guids(t, dst))
	require.Contains(t, o.stdout, `"wire": "nc"`)
	require.Contains(t, o.stdout, `"verified": "guid"`)
	require.Contains(t, zfsCmd(t, "holds", "-H", dst+"@three"), "keep me")
	back := src + "-back"
	mustZxfer(t, ncSend("beta:"+dst+"@two", back)...)
	mustZxfer(t, ncSend("beta:"+dst, back)...)
	require.Equal(t, guids(t, src), guids(t, back))
	requireSameFiles(t, src, back)
	requireNoLeftovers(t)
}

// waitProcess waits for a process of a host and returns its PID.
func waitProcess(t *testing.T, host string, words ...string) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, p := range pidsOn(t, host, func(argv []string) bool {
			line := " " + strings.Join(argv, " ") + " "
			for _, w := range words {
				if !strings.Contains(line, w) {
					return false
				}
			}
			return filepath.Base(argv[0]) == strings.Fields(words[0])[0]
		}) {
			pid = p
			return true
		}
		return false
	}, testenv.Timeout(), 10*time.Millisecond, "%q", words)
	return pid
}

// TestZFSNetcatKilled kills a process of a transfer. No snapshot of a partial stream arrives, and the
// same command resumes the transfer.
func TestZFSNetcatKilled(t *testing.T) {
	lab(t)
	installNC(t, "nc.openbsd")
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 12<<20)
	zfsCmd(t, "snapshot", src+"@x")
	slow := func(args ...string) []string {
		return ncSend(append([]string{"--bwlimit", "2MiB", "--buffer", "1MiB", "--window", "64KiB", "--retries", "0"}, args...)...)
	}
	for _, c := range []struct{ name, from, to, host, victim string }{
		{"zfs send of push", src, "beta:" + dst, alphaPool, "zfs send"},
		{"zxfer of push", src, "beta:" + dst, alphaPool, "zxfer"},
		{"zfs send of pull", "beta:" + dst, src + "-back", betaPool, "zfs send"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := strings.TrimPrefix(c.to, "beta:")
			t.Cleanup(func() {
				if strings.Contains(c.name, "pull") {
					_ = exec.Command("zfs", "destroy", "-r", target).Run()
				}
			})
			if c.from == src {
				_ = exec.Command("zfs", "destroy", "-r", target).Run() // from the previous case
			}
			p := start(t, slow(c.from, c.to)...)
			host := alphaPool
			if c.from == src {
				host = betaPool
			}
			waitReceived(t, p, host, isZFS("receive"), 2<<20)
			victim := waitProcess(t, c.host, c.victim) // not the zfs send of an estimate
			require.NoError(t, syscall.Kill(victim, syscall.SIGKILL))
			o := p.wait(t)
			if c.victim != "zxfer" {
				require.Equal(t, 4, o.code, o.String())
			}
			require.NotContains(t, zfsList(target), "@x")
			requireNoLeftovers(t)
			o = mustZxfer(t, ncSend("--json", c.from, c.to)...)
			require.Contains(t, o.stdout, `"resumed": true`)
			require.Equal(t, guids(t, src), guids(t, target))
		})
	}
}

// zfsList returns the names of a dataset, its descendants and their snapshots, or "" if the
// dataset does not exist.
func zfsList(d string) string {
	out, _ := exec.Command("zfs", "list", "-H", "-t", "all", "-o", "name", "-r", d).Output() // the dataset may not exist
	return string(out)
}

// TestZFSNetcatVerbs checks each row of the table in docs/howto/limited-hosts.md. It lists
// which commands work with a host without zxfer, and which are refused before anything
// changes.
func TestZFSNetcatVerbs(t *testing.T) {
	lab(t)
	installNC(t, "nc.openbsd")
	src, dst := dataset(t)
	back := src + "-back"
	t.Cleanup(func() { cleanUp(back) })
	zfsCmd(t, "create", "-p", src+"/below")
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", "-r", src+"@one")
	nc := func(args ...string) []string { return append(args, "--wire", "nc", "--trusted-link") }
	mustZxfer(t, nc("send", "-R", src, "beta:"+dst)...)
	require.Equal(t, guids(t, src+"/below"), guids(t, dst+"/below"))
	mustZxfer(t, nc("restore", "-R", "beta:"+dst, back)...)
	require.Equal(t, guids(t, src), guids(t, back))
	mustZxfer(t, "doctor", "--quick", "--wire", "nc", src, "beta:"+dst)

	mustZxfer(t, nc("restore", back, "beta:"+dst+"-restored")...)
	require.Equal(t, guids(t, src), guids(t, dst+"-restored"))

	job := func(source, to string) *replication {
		return newReplication(t, fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nrecursive = true\nretention = { last = 1 }\n"+
			"snapshots = { take = \"s-%%Y%%m%%dT%%H%%M%%SZ\" }\ntransfer = { wire = \"nc\", trusted_link = true }\n"+
			"target = [{ name = \"t\", to = %q, retention = { last = 1 } }]\n[job.drill]\n", source, to))
	}
	r := job(src, "beta:"+dst)
	for _, args := range [][]string{{"check", "home"}, {"run", "home"}, {"status"}, {"prune", "home"}, {"holds"}, {"drill", "home"}} {
		o := r.run(t, args[0], args[1:]...)
		require.Equal(t, 0, o.code, "%s: %s", args[0], o)
	}
	zfsCmd(t, "inherit", "-r", "zxfer:stream", dst) // the job does not send to it any more
	r = job("beta:"+dst, back)
	for _, c := range []struct{ verb, says string }{{"run", "home: done"}, {"drill", "good: 1.0 MiB read as a stream, compared with the source"}} {
		o := r.run(t, c.verb, "home")
		require.Equal(t, 0, o.code, o)
		require.Contains(t, o.stdout, c.says)
	}
	requireNoLeftovers(t)
}
