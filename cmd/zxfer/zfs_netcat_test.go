package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// plainHost makes beta a host where no zxfer runs, with an nc of a dialect.
func plainHost(t *testing.T, nc string) {
	t.Helper()
	link := filepath.Join(labDir, "bin", "nc")
	require.NoError(t, os.WriteFile(link, []byte("#!/bin/sh\nexec "+nc+` "$@"`+"\n"), 0o755))
	t.Cleanup(func() { _ = os.Remove(link) })
}

// plain is the flags of a send by plain tools.
func plain(args ...string) []string {
	return append([]string{"send", "--wire", "nc", "--trusted-link"}, args...)
}

// A push and a pull with every nc that is known.
func TestZFSNetcatDialects(t *testing.T) {
	lab(t)
	for _, nc := range []string{"nc.openbsd", "nc.traditional", "ncat", "busybox nc"} {
		t.Run(nc, func(t *testing.T) {
			plainHost(t, nc)
			src, dst := dataset(t)
			back := src + "-back"
			t.Cleanup(func() { _ = exec.Command("zfs", "destroy", "-r", back).Run() })
			zfsCmd(t, "create", src)
			fill(t, src, "a", 3<<20)
			zfsCmd(t, "snapshot", src+"@one")
			o := mustZxfer(t, plain("--json", src, "beta:"+dst)...)
			require.Contains(t, o.stdout, `"wire": "nc"`)
			require.Contains(t, o.stdout, `"verified": "guid"`)
			mustZxfer(t, plain("beta:"+dst, back)...)
			require.Equal(t, guids(t, src), guids(t, back))
			sameFiles(t, src, back)
		})
	}
	nothingLeft(t, 20*time.Second)
}

// Increments, names and values that a shell must not read, both ways.
func TestZFSNetcatIncrements(t *testing.T) {
	lab(t)
	plainHost(t, "nc.openbsd")
	src, dst := dataset(t)
	src, dst = src+"/it has spaces", dst+"/ two  "+"of them"
	zfsCmd(t, "create", "-p", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	note := "it's $HOME `id` \\ \"quoted\" !! *"
	mustZxfer(t, plain("-o", "org.example:note="+note, src, "beta:"+dst)...)
	require.Equal(t, note, strings.TrimSuffix(zfsCmd(t, "get", "-H", "-o", "value", "org.example:note", dst), "\n"))
	fill(t, src, "b", 1<<20)
	for _, s := range []string{"@two", "@three"} {
		zfsCmd(t, "snapshot", src+s)
	}
	mustZxfer(t, plain("--hold", "keep me", "--bookmark", src, "beta:"+dst)...)
	require.Equal(t, guids(t, src), guids(t, dst))
	require.Contains(t, zfsCmd(t, "holds", "-H", dst+"@three"), "keep me")
	nothingLeft(t, 20*time.Second)
}

// waitFor waits for a process of a host and returns its number.
func waitFor(t *testing.T, host string, words ...string) (pid int) {
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
	}, 20*time.Second, 10*time.Millisecond)
	return pid
}

// Whatever dies: no snapshot of a stream that was not whole, and the same
// command brings the rest.
func TestZFSNetcatKilled(t *testing.T) {
	lab(t)
	plainHost(t, "nc.openbsd")
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 12<<20)
	zfsCmd(t, "snapshot", src+"@x")
	slow := func(args ...string) []string {
		return plain(append([]string{"--bwlimit", "4MiB", "--buffer", "1MiB", "--retries", "0"}, args...)...)
	}
	for _, c := range []struct{ name, from, to, host, victim string }{
		{"source of a push", src, "beta:" + dst, alphaPool, "zfs send"},
		{"receive of a push", src, "beta:" + dst, betaPool, "zfs receive"},
		{"nc of a push", src, "beta:" + dst, betaPool, "nc.openbsd"},
		{"ssh of a push", src, "beta:" + dst, alphaPool, "ssh"},
		{"zxfer of a push", src, "beta:" + dst, alphaPool, "zxfer"},
		{"source of a pull", "beta:" + dst, src + "-back", betaPool, "zfs send"},
		{"nc of a pull", "beta:" + dst, src + "-back", betaPool, "nc.openbsd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			target := strings.TrimPrefix(c.to, "beta:")
			t.Cleanup(func() {
				if strings.Contains(c.name, "pull") {
					_ = exec.Command("zfs", "destroy", "-r", target).Run()
				}
			})
			if c.from == src {
				_ = exec.Command("zfs", "destroy", "-r", target).Run() // of the one before
			}
			p := start(t, slow(c.from, c.to)...)
			stream := "zfs receive"
			host := alphaPool
			if c.from == src {
				host = betaPool
			}
			waitFor(t, host, stream)
			time.Sleep(500 * time.Millisecond) // some of the stream is there
			require.NoError(t, syscall.Kill(waitFor(t, c.host, c.victim), syscall.SIGKILL))
			o := p.wait(t)
			if c.victim != "zxfer" {
				require.Equal(t, 4, o.code, o.String())
			}
			require.NotContains(t, zfsList(target), "@x")
			nothingLeft(t, 20*time.Second)
			o = mustZxfer(t, plain("--json", c.from, c.to)...)
			require.Contains(t, o.stdout, `"resumed": true`)
			require.Equal(t, guids(t, src), guids(t, target))
		})
	}
}

// zfsList is what there is of a dataset, "" if it is not there.
func zfsList(d string) string {
	out, _ := exec.Command("zfs", "list", "-H", "-t", "all", "-o", "name", "-r", d).Output() // it may not be there
	return string(out)
}

// Who connects without the secret is dropped, and the transfer goes on.
func TestZFSNetcatStranger(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@x")
	// beta's own nc comes late: strangers of the same host come first.
	plainHost(t, "/bin/sh -c 'case $1 in -h) ;; *) sleep 1.5;; esac; exec nc.openbsd \"$@\"' nc")
	p := start(t, plain("--port-range", "50100", src, "beta:"+dst)...)
	stranger := func(say string) error {
		cmd := exec.Command("ip", "netns", "exec", betaPool, "sh", "-c", fmt.Sprintf("printf '%%s' '%s' | nc.openbsd -N -w 3 10.77.0.1 50100", say))
		return cmd.Run()
	}
	require.Eventually(t, func() bool { return stranger(strings.Repeat("0", 64)+"\n") == nil }, 20*time.Second, 20*time.Millisecond)
	require.NoError(t, stranger("short"))
	require.Error(t, exec.Command("ip", "netns", "exec", alphaPool, "sh", "-c", "nc.openbsd -w 1 10.77.0.1 50101").Run())
	o := p.wait(t)
	require.Equal(t, 0, o.code, o.String())
	require.Contains(t, o.stderr, "dropped a connection from "+betaIP)
	require.Contains(t, o.stderr, "it does not begin with the secret")
	require.Equal(t, guids(t, src), guids(t, dst))
	_, err := net.Dial("tcp", "10.77.0.1:50100")
	require.Error(t, err)
}

// What wire nc cannot do is refused, and changes nothing.
func TestZFSNetcatRefusals(t *testing.T) {
	lab(t)
	plainHost(t, "nc.openbsd")
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "snapshot", src+"@x")
	before := state(t)
	o := mustZxfer(t, plain("-n", src, "beta:"+dst)...)
	require.Contains(t, o.stdout, "target dials 10.77.0.1: --trusted-link: ")
	o = zxfer(t, plain("--data-address", "10.77.0.9", src, "beta:"+dst)...)
	require.Equal(t, 1, o.code, o.String())
	require.Contains(t, o.stderr, "this host has no such address")
	o = zxfer(t, plain(src, "beta:nopool/x")...)
	require.Equal(t, 1, o.code, o.String())
	require.Contains(t, o.stderr, "beta: ")
	plainHost(t, "cat")
	o = zxfer(t, plain(src, "beta:"+dst)...)
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "no dialect that zxfer knows")
	require.Equal(t, before, state(t))
}
