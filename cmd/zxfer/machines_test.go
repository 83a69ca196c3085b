package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// arm64Tools returns the directory that scripts/arm64 created. It contains QEMU and zxfer for
// both architectures. Each zxfer finds the other in the same directory.
func arm64Tools(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TEST_ARM64")
	if dir == "" {
		t.Skip("needs TEST_ARM64=DIR after scripts/arm64 tools DIR")
	}
	return dir
}

// zxferFor returns the start of a zxfer command line for an architecture.
func zxferFor(tools, goarch string) []string {
	program := filepath.Join(tools, "zxfer-linux-"+goarch)
	if goarch == "arm64" {
		return []string{filepath.Join(tools, "qemu-aarch64"), program}
	}
	return []string{program}
}

// arm64Sessions prepares arm64 emulation for the sessions of an sshd, and returns a line for
// its configuration.
func arm64Sessions(t *testing.T, tools string) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command(filepath.Join("..", "..", "scripts", "arm64"), "run", tools, "sh", "-c", "echo $$; exec cat")
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	pid, err := bufio.NewReader(stdout).ReadString('\n')
	t.Cleanup(func() {
		_ = stdin.Close() // ends cat
		_ = cmd.Wait()
	})
	if err != nil {
		t.Skipf("needs binfmt_misc in user namespaces (Linux 6.7): %v: %s", err, &stderr)
	}
	return "ForceCommand exec nsenter --target " + strings.TrimSpace(pid) + ` --user --mount --preserve-credentials env -u SSH_ORIGINAL_COMMAND sh -c "$SSH_ORIGINAL_COMMAND"`
}

// TestArm64Dev copies between hosts of both architectures over each transport. It expects each
// host to receive the right zxfer from the other.
//
// The shorter form is "scripts/arm64 test". It runs the tests of pkg/device and of other
// packages under the same emulation.
func TestArm64Dev(t *testing.T) { //nolint:paralleltest // TestMTURemedy makes hosts of the same names
	if !testenv.Long() {
		t.Skip("only at the long level: QEMU can deadlock between fork and exec")
	}
	if os.Getenv("ZXFER_GUEST") != "" {
		t.Skip("the kernel of the guest does not start programs for arm64")
	}
	tools := arm64Tools(t)
	for _, remote := range []string{"arm64", "amd64"} {
		t.Run("to "+remote, func(t *testing.T) {
			local, sshd := "arm64", ""
			if remote == "arm64" {
				local, sshd = "amd64", arm64Sessions(t, tools)
			}
			f := newFarHosts(t, lineShape{Rate: 1e9, Queue: 5 << 20}, sshd)
			if remote == "arm64" {
				uname := "#!/bin/sh\ncase $1 in -m) echo aarch64 ;; *) exec /usr/bin/uname \"$@\" ;; esac\n"
				testenv.WriteProgram(t, filepath.Join(f.dir, "uname"), uname)
			}
			zxfer := func(args ...string) cmdResult {
				t.Helper()
				argv := append([]string{"env", "ZXFER_RSH=ssh -F " + filepath.Join(f.dir, "ssh_config")}, zxferFor(tools, local)...)
				cmd := f.command(f.near, append(argv, args...)...)
				var out, stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &stderr
				err := cmd.Run()
				end := cmdResult{cmd.ProcessState.ExitCode(), out.String(), stderr.String()}
				require.NoError(t, err, "%s", end)
				return end
			}
			require.Contains(t, zxfer("doctor", "beta").stdout, "checks passed")
			copyBothDirections(t, f.dir, zxfer)
			copies, err := filepath.Glob(filepath.Join(f.dir, "cache/zxfer/*/zxfer"))
			require.NoError(t, err)
			require.Len(t, copies, 1)
			built, err := os.ReadFile(filepath.Join(tools, "zxfer-linux-"+remote))
			require.NoError(t, err)
			copied, err := os.ReadFile(copies[0])
			require.NoError(t, err)
			require.True(t, bytes.Equal(built, copied), "the remote host has a zxfer for another architecture")
		})
	}
}

// copyBothDirections copies an image file to beta and back over each transport, and then only the
// changed blocks. Below the long level it skips two transports.
func copyBothDirections(t *testing.T, dir string, zxfer func(...string) cmdResult) {
	t.Helper()
	file := func(name string) string { return filepath.Join(dir, name) }
	image := make([]byte, 8<<20+12345)
	for i := range image {
		image[i] = byte(i * i >> 8)
	}
	clear(image[3<<20 : 6<<20])
	dev := func(from, to string, args ...string) {
		t.Helper()
		end := zxfer(slices.Concat([]string{"dev", "--wire"}, args, []string{from, to})...)
		require.Contains(t, end.stderr, "wire "+args[0])
		require.Contains(t, end.stdout, "verified")
		got, err := os.ReadFile(strings.TrimPrefix(to, "beta:"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(image, got), end)
	}
	require.NoError(t, os.WriteFile(file("image"), image, 0o600))
	wires := [][]string{{"tls"}, {"plain", "--trusted-link"}}
	if testenv.Long() {
		wires = append(wires, []string{"signed"}, []string{"ssh"})
	}
	for _, wire := range wires {
		dev(file("image"), "beta:"+file(wire[0]+".there"), wire...)
		dev("beta:"+file(wire[0]+".there"), file(wire[0]+".back"), wire...)
	}
	copy(image[len(image)/2:], "changed")
	require.NoError(t, os.WriteFile(file("image"), image, 0o600))
	again := []string{"tls", "--delta", "--overwrite", "--confirm", strconv.Itoa(len(image))}
	dev(file("image"), "beta:"+file("tls.there"), again...)
	dev("beta:"+file("tls.there"), file("tls.back"), again...)
}
