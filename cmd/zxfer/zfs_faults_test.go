package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// faultSize is the size of the datasets of interrupted transfers. At faultRate a
// transfer takes at least three seconds.
const (
	faultSize = 24 << 20
	faultRate = "8MiB"
)

// runUntilDone repeats the command until it succeeds. An interrupted command must exit with 4.
// Any other failure fails the test.
func runUntilDone(t *testing.T, first *process, args ...string) {
	t.Helper()
	o := first.wait(t)
	for try := 0; o.code != 0; try++ {
		killed := o.code == -1 // by the test
		require.True(t, o.code == 4 || killed, o.String())
		require.Less(t, try, 5, "the transfer does not complete: %s", o)
		if !killed {
			require.Contains(t, o.stderr, "hint: the same command resumes")
		}
		o = zxfer(t, args...)
	}
}

// waitReceiving waits until a receive runs on the target, so that an interruption affects it.
func waitReceiving(t *testing.T, p *process) {
	t.Helper()
	require.Eventually(t, func() bool {
		return p.ended() || len(pidsOn(t, betaPool, isZFS("receive"))) > 0
	}, testenv.Timeout(), 50*time.Millisecond, "no zfs receive runs: %s", p.stderr)
}

// waitCreated waits until the first receive has created the target dataset.
func waitCreated(t *testing.T, dst string) {
	t.Helper()
	require.Eventually(t, func() bool { return zfsList(dst) != "" }, testenv.Timeout(), 50*time.Millisecond, "%s was not created", dst)
}

func isZFS(verb string) func([]string) bool {
	return func(argv []string) bool {
		return filepath.Base(argv[0]) == "zfs" && len(argv) > 1 && argv[1] == verb
	}
}

func isAgent(argv []string) bool {
	return filepath.Base(argv[0]) == "zxfer" && len(argv) > 1 && argv[1] == "agent"
}

// TestZFSKilled kills each process of a transfer in turn, while data moves. The same command
// then completes the target.
func TestZFSKilled(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 16<<20) // four seconds at the limit below
	zfsCmd(t, "snapshot", src+"@one")
	fill(t, src, "b", 1<<20)
	zfsCmd(t, "snapshot", src+"@two")
	victims := []struct {
		name string
		host string
		is   func([]string) bool
	}{
		{"zxfer", alphaPool, func(argv []string) bool { return filepath.Base(argv[0]) == "zxfer" && argv[1] == "send" }},
		{"agent", betaPool, isAgent},
		{"zfs send", alphaPool, isZFS("send")},
		{"zfs receive", betaPool, isZFS("receive")},
		{"ssh", alphaPool, func(argv []string) bool { return filepath.Base(argv[0]) == "ssh" }},
		{"sshd", betaPool, func(argv []string) bool {
			return strings.HasPrefix(argv[0], "sshd") && strings.HasSuffix(argv[0], ": root@notty")
		}},
	}
	for _, v := range victims {
		t.Run(v.name, func(t *testing.T) {
			_, dst := dataset(t)
			// With a small buffer, zfs send runs until the end of the transfer.
			p := start(t, "send", "--bwlimit", "4MiB", "--buffer", "2MiB", src, "beta:"+dst)
			waitReceived(t, p, betaPool, isZFS("receive"), 2<<20)
			pids := pidsOn(t, v.host, v.is)
			require.NotEmpty(t, pids, "no process of %s: %s", v.name, p.stderr)
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended already
			}
			runUntilDone(t, p, "send", src, "beta:"+dst)
			require.Equal(t, guids(t, src), guids(t, dst))
			requireSameFiles(t, src, dst)
			requireNoLeftovers(t)
		})
	}
}

// TestZFSLinkCut cuts or resets the link at random moments, and expects the same command to
// complete the target. Some cuts are longer than the timeouts of TCP and zxfer.
func TestZFSLinkCut(t *testing.T) {
	lab(t)
	rounds := randomRounds(t)
	t.Cleanup(func() { run(t, labScript(), "mend") })
	for i := range rounds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			src, dst := dataset(t)
			zfsCmd(t, "create", src)
			fill(t, src, "a", faultSize)
			zfsCmd(t, "snapshot", src+"@one")
			args := []string{"send", "--bwlimit", faultRate, "--wire", []string{"signed", "tls"}[i%2], src, "beta:" + dst}
			p := start(t, args...)
			early := i%5 == 0 // possibly before zxfer has connected to beta
			if early {
				time.Sleep(rand.N(2 * time.Second))
			} else {
				waitReceived(t, p, betaPool, isZFS("receive"), rand.Int64N(faultSize))
			}
			if i%4 == 3 {
				// A firewall that lost its state sends such resets.
				resetConnections(t, p)
			} else {
				run(t, labScript(), "cut")
				if i == 1 {
					waitEnded(t, betaPool, isZFS("receive")) // after TCP_USER_TIMEOUT
				} else {
					time.Sleep(rand.N(3 * time.Second))
				}
				run(t, labScript(), "mend")
			}
			if early && p.wait(t).code == 1 {
				// Nothing arrived, so nothing can be resumed.
				require.Error(t, exec.Command("zfs", "list", dst).Run(), "the send failed, but created the target: %s", p.stderr)
				require.Contains(t, p.wait(t).stderr, "hint:")
				p = start(t, args...)
			}
			runUntilDone(t, p, args...)
			require.Equal(t, guids(t, src), guids(t, dst))
			requireSameFiles(t, src, dst)
		})
	}
	requireNoLeftovers(t)
}

// TestZFSStoppedSend stops zfs send for a moment, as a suspended host does. zfs send then
// aborts its snapshot and continues with the next one within a record. zxfer must complete
// the transfer by itself.
func TestZFSStoppedSend(t *testing.T) {
	lab(t)
	for _, wire := range [][]string{{"plain", "--trusted-link"}, {"tls"}} {
		t.Run(wire[0], func(t *testing.T) {
			src, dst := dataset(t)
			zfsCmd(t, "create", src)
			zfsCmd(t, "snapshot", src+"@zero")
			mustZxfer(t, "send", src, "beta:"+dst)
			for _, name := range []string{"one", "two", "three"} {
				fill(t, src, name, 6<<20)
				zfsCmd(t, "snapshot", src+"@"+name)
			}
			p := start(t, append(append([]string{"send", "--bwlimit", "4MiB", "--buffer", "1MiB", "--wire"}, wire...), src, "beta:"+dst)...)
			// A stop between two system calls has no effect.
			for i := range int64(6) {
				waitReceived(t, p, betaPool, isZFS("receive"), (4+i)<<19)
				if strings.Contains(p.stderr.String(), "signal received") {
					break
				}
				for _, pid := range pidsOn(t, alphaPool, isZFS("send")) {
					_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended already
					waitState(t, pid, 'T')
					_ = syscall.Kill(pid, syscall.SIGCONT)
				}
			}
			o := p.wait(t)
			require.Equal(t, 0, o.code, o.String())
			require.Contains(t, o.stderr, "signal received", "the stop had no effect")
			require.NotContains(t, o.stderr, "hint:")
			require.Equal(t, guids(t, src), guids(t, dst))
		})
	}
	requireNoLeftovers(t)
}

// resetConnections answers every packet to beta with a reset until alpha has lost its data
// connections or, if all data passes through ssh, its first connection. It also returns if
// p has ended. p may be nil.
func resetConnections(t *testing.T, p *process) {
	t.Helper()
	connections := func() (data, all int) {
		for _, s := range sockets(t, "alpha") {
			if s.state != tcpEstablished {
				continue
			}
			all++
			if s.local != 22 && s.remote != 22 {
				data++
			}
		}
		return data, all
	}
	dataBefore, allBefore := connections()
	run(t, "ip", "netns", "exec", betaPool, "iptables", "-A", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
	require.Eventually(t, func() bool {
		data, all := connections()
		return p != nil && p.ended() || data == 0 && (dataBefore > 0 || all < allBefore || allBefore == 0)
	}, testenv.Timeout(), 20*time.Millisecond, "no connection is reset")
	run(t, "ip", "netns", "exec", betaPool, "iptables", "-F", "INPUT")
}

// TestZFSInterrupt interrupts a send, and expects exit code 4, a resumable target and no
// running processes.
func TestZFSInterrupt(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", faultSize)
	zfsCmd(t, "snapshot", src+"@one")
	p := start(t, "send", "--bwlimit", "2MiB", src, "beta:"+dst)
	waitReceived(t, p, betaPool, isZFS("receive"), 1<<20)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	o := p.wait(t)
	require.Equal(t, 4, o.code, o.String())
	require.Contains(t, o.stderr, "hint: the same command resumes")
	requireNoLeftovers(t)
	token := strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "receive_resume_token", dst))
	require.NotEqual(t, "-", token, "no partially received state")
	o = mustZxfer(t, "send", "-n", src, "beta:"+dst)
	require.Contains(t, o.stdout, "rest of @one")
	mustZxfer(t, "send", src, "beta:"+dst)
	requireSameFiles(t, src, dst)
}

// TestZFSUnusableToken destroys the snapshot that a resume token needs, and expects zxfer
// to discard the token with an explanation.
func TestZFSUnusableToken(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", faultSize)
	zfsCmd(t, "snapshot", src+"@one")
	p := start(t, "send", "--bwlimit", "2MiB", src, "beta:"+dst)
	waitReceived(t, p, betaPool, isZFS("receive"), 1<<20)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 4, p.wait(t).code)
	zfsCmd(t, "destroy", src+"@one")
	zfsCmd(t, "snapshot", src+"@two")
	o := mustZxfer(t, "send", src, "beta:"+dst)
	require.Contains(t, o.stderr, "discarding")
	require.Contains(t, o.stderr, "@one")
	requireSameFiles(t, src, dst)
}

// TestZFSUnauthenticatedClients connects clients that do not know the session's secret. The listener
// drops them and completes the transfer.
func TestZFSUnauthenticatedClients(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 2<<20)
	zfsCmd(t, "snapshot", src+"@one")
	// On a high-latency link the target connects late, so the listener stays open long
	// enough.
	run(t, labScript(), "net", "delay", "300ms")
	t.Cleanup(func() { run(t, labScript(), "mend") })
	// The port is not ephemeral. Otherwise a connection attempt on beta could connect to
	// itself.
	p := start(t, "send", "-v", "--port-range", "20100-20100", src, "beta:"+dst)
	inputs := []string{"", "GET / HTTP/1.0\r\n\r\n", strings.Repeat("\xff", 4096), "ZXFER"}
	clients := 0
	require.NoError(t, inNetns(betaPool, func() error { // from beta itself: the link delays only alpha
		deadline := time.Now().Add(testenv.Timeout())
		for clients < len(inputs) && !p.ended() && time.Now().Before(deadline) {
			c, err := net.Dial("tcp", betaIP+":20100")
			if err != nil { // nothing listens yet
				time.Sleep(5 * time.Millisecond)
				continue
			}
			defer c.Close()
			_, _ = io.WriteString(c, inputs[clients]) // zxfer may have dropped it already
			_ = c.(*net.TCPConn).CloseWrite()
			if clients == 0 {
				_ = p.cmd.Process.Signal(syscall.SIGSTOP) // it must not connect before the last client
			}
			clients++
		}
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		return nil
	}))
	o := p.wait(t)
	require.Equal(t, 0, o.code, o.String())
	require.Len(t, inputs, clients, "clients that reached the listener: %s", o)
	require.Contains(t, o.stderr, "dropped", "dropped clients are not logged")
	requireSameFiles(t, src, dst)
	requireNoLeftovers(t)
}

// TestZFSNoSpace sends to a target whose quota is too small, and expects a refusal. If the
// check is skipped, the send fails with an error that names the cause.
func TestZFSNoSpace(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 8<<20)
	zfsCmd(t, "snapshot", src+"@one")
	zfsCmd(t, "create", "-o", "quota=4M", dst)
	o := zxfer(t, "send", src, "beta:"+dst+"/")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "--skip-check")
	i := strings.Index(o.stderr, "--skip-check ")
	id := strings.Fields(o.stderr[i:])[1]
	o = zxfer(t, "send", "--skip-check", id, src, "beta:"+dst+"/")
	require.Equal(t, 1, o.code, o.String())
	require.True(t, slices.ContainsFunc([]string{"space", "quota"}, func(s string) bool { return strings.Contains(o.stderr, s) }), o.String())
	requireNoLeftovers(t)
}

// TestZFSBusy sends to a target that another send is filling. The second send fails with a
// hint, and the first completes.
func TestZFSBusy(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", faultSize)
	zfsCmd(t, "snapshot", src+"@one")
	p := start(t, "send", "--bwlimit", faultRate, src, "beta:"+dst)
	waitReceiving(t, p)
	waitCreated(t, dst)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP)) // it must not end before the other starts
	o := zxfer(t, "send", "--retries", "0", src, "beta:"+dst)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	require.NotEqual(t, 0, o.code, o.String())
	require.Contains(t, o.stderr, "hint:")
	require.Equal(t, 0, p.wait(t).code, "the first send failed")
	requireSameFiles(t, src, dst)
}
