package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device/devicetest"
	"zxfer/pkg/testenv"
)

// memoryOverhead is the memory in bytes that either end of a copy may use in addition to
// --buffer.
const memoryOverhead = 128 << 20

// testBuild is a zxfer built for this test. The test binary may contain the race detector, which
// multiplies memory use.
type testBuild struct{ dir, binary, shell string }

func buildForTest(t *testing.T) *testBuild {
	t.Helper()
	if testing.Short() {
		t.Skip("not at the quick level: builds zxfer and copies images")
	}
	if os.Getenv("ZXFER_GUEST") != "" {
		t.Skip("the guest has no Go to build zxfer with")
	}
	m := &testBuild{dir: devicetest.Scratch(t)}
	m.binary, m.shell = filepath.Join(m.dir, "zxfer"), filepath.Join(m.dir, "rsh")
	build := exec.Command("go", "build", "-o", m.binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	// The remote shell runs commands on this host with a separate home directory.
	script := fmt.Sprintf("#!/bin/sh\nshift\nexport HOME=%s SSH_CONNECTION=\"127.0.0.1 1 127.0.0.1 22\"\nexec sh -c \"$*\"\n", m.dir)
	testenv.WriteProgram(t, m.shell, script)
	return m
}

// command returns a zxfer command that treats "beta" as another host.
func (m *testBuild) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, m.binary, args...)
	cmd.Env = append(os.Environ(), "ZXFER_RSH="+m.shell, "XDG_STATE_HOME="+m.dir, "XDG_CACHE_HOME=")
	return cmd
}

// run runs zxfer and returns the largest resident set of each end in bytes.
func (m *testBuild) run(t *testing.T, args ...string) (client, agent int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Scale(10*time.Minute))
	defer cancel()
	cmd := m.command(ctx, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// The high-water mark never falls, so only growth in the last interval is missed.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var peers []string
	for i := 0; ; i++ {
		select {
		case err := <-ended:
			require.NoError(t, err, "%s", out.String())
			require.NotZero(t, agent, "no agent process was found")
			return client, agent
		case <-tick.C:
		}
		client = max(client, peakMemory(strconv.Itoa(cmd.Process.Pid)))
		if i%20 == 0 { // the first agent may only report its ID
			peers = m.agents(cmd.Process.Pid)
		}
		for _, pid := range peers {
			agent = max(agent, peakMemory(pid))
		}
	}
}

// agents returns the processes that run the remote copy of zxfer.
func (m *testBuild) agents(not int) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range all {
		exe, err := os.Readlink(link)
		pid := filepath.Base(filepath.Dir(link))
		if err == nil && exe != m.binary && strings.HasPrefix(exe, m.dir) && pid != strconv.Itoa(not) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// peakMemory returns the peak resident set of a process in bytes, or 0 if the process has
// ended. Linux, Documentation/filesystems/proc.rst: VmHWM, in kB of 1024 bytes.
func peakMemory(pid string) int64 {
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// image writes an image file of size bytes that contains data bytes, either noise or
// compressible text. The data is spread over the file.
func image(t *testing.T, name string, size, data int64, text bool) {
	t.Helper()
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	const step = 8 << 20
	r := rand.NewChaCha8([32]byte{7})
	p := make([]byte, step)
	_, _ = r.Read(p) // cannot fail
	if text {
		for i, c := range p {
			p[i] = 'a' + c%16
		}
	}
	for n := int64(0); n < data; n += step {
		copy(p, strconv.FormatInt(n, 10))
		_, err = f.WriteAt(p, n/step*(size/(data/step)))
		require.NoError(t, err)
	}
}

// TestDevMemory copies images of several sizes and expects each end to use at most its buffer
// and 128 MiB. At the long level, 64 GiB in blocks of 64 KiB have as many blocks as 16 TiB in
// zxfer's default blocks.
func TestDevMemory(t *testing.T) { //nolint:paralleltest // it fills a tmpfs, and measures
	m := buildForTest(t)
	large, noise := int64(2<<30), int64(256<<20)
	if testenv.Long() {
		large, noise = 64<<30, 2<<30
	}
	for _, c := range []struct {
		name       string
		size, data int64
		text       bool
		buffer     int64 // 0 for the default, 16 MiB
		args       []string
	}{
		{name: "many small blocks", size: large, data: 256 << 20, buffer: 16 << 20, args: []string{"--bs", "64KiB", "--no-verify"}},
		{name: "noise", size: noise, data: noise, buffer: 16 << 20, args: []string{"--compress", "off", "--wire", "signed"}},
		{name: "noise, default buffer", size: 256 << 20, data: 256 << 20},
		{name: "text, compressed", size: 256 << 20, data: 256 << 20, text: true, buffer: 16 << 20, args: []string{"--compress", "zstd"}},
		{name: "delta, plain, large blocks", size: 320 << 20, data: 320 << 20, buffer: 64 << 20, args: []string{"--delta", "--bs", "16MiB", "--wire", "plain", "--trusted-link"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			src, dst := filepath.Join(m.dir, "src"), filepath.Join(m.dir, "dst")
			defer os.Remove(src)
			defer os.Remove(dst)
			image(t, src, c.size, c.data, c.text)
			args := append([]string{"dev", "-q", src, "beta:" + dst}, c.args...)
			limit := int64(16<<20 + memoryOverhead)
			if c.buffer > 0 {
				limit = c.buffer + memoryOverhead
				args = append(args, "--buffer", strconv.FormatInt(c.buffer, 10))
			}
			// On a busy machine the garbage collector can lag once. A copy that really needs
			// more memory exceeds the limit every time.
			var client, agent int64
			for range 3 {
				require.NoError(t, os.RemoveAll(dst))
				client, agent = m.run(t, args...)
				t.Logf("sender %d MiB, receiver %d MiB, allowed %d MiB", client>>20, agent>>20, limit>>20)
				if max(client, agent) <= limit {
					break
				}
			}
			require.LessOrEqual(t, client, limit, "memory of the sender")
			require.LessOrEqual(t, agent, limit, "memory of the receiver")
		})
	}
}
