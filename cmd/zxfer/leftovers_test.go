package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// leftovers lists running zxfer, zfs and ssh processes, listening sockets and temporary files.
func leftovers(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	procs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, p := range procs {
		if filepath.Base(p) == strconv.Itoa(os.Getpid()) {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(p, "cmdline"))
		if err != nil || len(raw) == 0 {
			continue
		}
		argv := strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
		line := strings.Join(argv, " ")
		switch base := filepath.Base(argv[0]); {
		case base == "zxfer", base == "zfs", base == "ssh", strings.Contains(line, "libzfs_core"):
			fmt.Fprintf(&b, "process %s: %s\n", filepath.Base(p), line)
		}
	}
	for _, host := range []string{"alpha", "beta"} {
		for _, s := range sockets(t, host) {
			if s.state == tcpListen && s.local != 22 {
				fmt.Fprintf(&b, "listener on %s: port %d\n", host, s.local)
			}
		}
	}
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	for _, pattern := range []string{"/tmp/zxfer*", "/run/zxfer/zxfer-ssh-*", filepath.Join(cache, "zxfer", ".*")} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, f := range files {
			if f != labDir && f != filepath.Dir(alphaBin) {
				fmt.Fprintf(&b, "file %s\n", f)
			}
		}
	}
	return b.String()
}

// socket is a TCP socket of a host.
type socket struct {
	local, remote uint64 // ports
	state         string
}

// Socket states in /proc/net/tcp.
const (
	tcpEstablished = "01"
	tcpListen      = "0A"
)

// sockets returns the TCP sockets of a host.
func sockets(t *testing.T, host string) (all []socket) {
	t.Helper()
	pid, err := os.ReadFile(filepath.Join(labDir, host, "sshd.pid")) // sshd runs as long as the host
	require.NoError(t, err)
	port := func(address string) uint64 {
		_, hex, _ := strings.Cut(address, ":")
		n, err := strconv.ParseUint(hex, 16, 16)
		require.NoError(t, err)
		return n
	}
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "net", table))
		require.NoError(t, err)
		for l := range strings.Lines(string(text)) {
			f := strings.Fields(l) // sl local_address rem_address st
			if len(f) > 3 && strings.HasSuffix(f[0], ":") {
				all = append(all, socket{port(f[1]), port(f[2]), f[3]})
			}
		}
	}
	return all
}

// requireNoLeftovers waits until both hosts have no leftovers.
func requireNoLeftovers(t *testing.T) {
	t.Helper()
	limit := testenv.Timeout()
	var left string
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if left = leftovers(t); left == "" {
			return
		}
	}
	t.Fatalf("left behind after %s:\n%s", limit, left)
}

// removeLeftovers deletes the temporary files that leftovers lists, and kills the processes.
func removeLeftovers(t *testing.T) {
	t.Helper()
	for l := range strings.Lines(leftovers(t)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(l), "file "); ok {
			assert.NoError(t, os.RemoveAll(name))
		}
		var pid int
		if n, _ := fmt.Sscanf(l, "process %d:", &pid); n == 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}
