package sshexec

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
)

// foreign is a small zxfer for another architecture that this host can run. It implements only the
// commands that a bootstrap uses.
const foreign = `package main

import (
	"crypto/sha256"
	"fmt"
	"os"
)

func main() {
	switch self, _ := os.ReadFile("/proc/self/exe"); {
	case os.Args[2:] == nil, len(os.Args) == 2:
		fmt.Println("\nzxfer-agent 2 foreign")
	case os.Args[2] == "--id":
		fmt.Printf("%x 0.9.0/2\n", sha256.Sum256(self))
	default:
		os.Exit(1)
	}
}
`

// buildForeign builds it once, for 386.
var buildForeign = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "zxfer")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	main := filepath.Join(dir, "cmd", "zxfer")
	if err := os.MkdirAll(main, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module zxfer\n"), 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(main, "main.go"), []byte(foreign), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", "out", "./cmd/zxfer")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOARCH=386", "CGO_ENABLED=0", "GOTOOLCHAIN=local")
	if out, err := cmd.CombinedOutput(); err != nil {
		return out, err
	}
	return os.ReadFile(filepath.Join(dir, "out"))
})

// skipCompilation skips a test that compiles a program at the quick level.
func skipCompilation(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not at the quick level: compiles a program for another architecture")
	}
}

// foreignBinary turns the host into an i686 machine, and returns the binary for it.
func foreignBinary(t *testing.T, o *other) []byte {
	t.Helper()
	skipCompilation(t)
	text, err := buildForeign()
	require.NoError(t, err, "%.1000s", text)
	o.program("uname", `case "$1" in -m) echo i686 ;; -n) echo beta ;; *) echo Linux ;; esac`)
	o.binaryDirs = []string{t.TempDir(), t.TempDir()}
	probe := filepath.Join(t.TempDir(), "probe")
	testenv.WriteProgram(t, probe, text)
	if err := exec.Command(probe, "agent", "--id").Run(); err != nil {
		t.Skipf("needs a kernel that runs programs for 386: %v", err)
	}
	return text
}

func TestMatchingBinaryIsCopied(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(o *other, text []byte) error{
		"next to this one": func(o *other, text []byte) error {
			return os.WriteFile(filepath.Join(o.binaryDirs[0], "zxfer-linux-386"), text, 0o600)
		},
		"in the package's directory": func(o *other, text []byte) error {
			z, err := zstd.NewWriter(nil)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(o.binaryDirs[1], "zxfer-linux-386.zst"), z.EncodeAll(text, nil), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "")
			require.NoError(t, put(o, foreignBinary(t, o)))
			o.Release = "0.9.0/2"
			for _, copied := range []bool{true, false} {
				c, err := Agent(t.Context(), o.Options)
				require.NoError(t, err)
				hello, err := c.in.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "zxfer-agent 2 foreign\n", hello)
				require.NoError(t, c.Close())
				require.Equal(t, copied, strings.Contains(o.logged(), "copying zxfer there"))
				require.Len(t, o.cache(), 1)
			}
			o.Bootstrap = false // already copied
			c, err := Agent(t.Context(), o.Options)
			require.NoError(t, err)
			require.NoError(t, c.Close())
		})
	}
}

// TestBuildForOtherArchitectureIsSkipped expects that if hosts of two architectures share a home,
// each skips the other's builds.
func TestBuildForOtherArchitectureIsSkipped(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	requireWorks(t, o.connect())
	own := o.cached()
	boot := filepath.Join(filepath.Dir(own), "whole")
	require.NoError(t, os.WriteFile(boot, []byte("another-boot "+runtime.GOARCH+"-of-before\n"), 0o600))
	o.Bootstrap = false
	_, err := Agent(t.Context(), o.Options)
	require.ErrorContains(t, err, "zxfer is missing there")
	require.NoError(t, os.WriteFile(boot, []byte("another-boot\n"), 0o600)) // format of older versions
	c, err := Agent(t.Context(), o.Options)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestUnsuitableBinaryIsNotSent(t *testing.T) {
	t.Parallel()
	none := func(*testing.T, *other, []byte) {}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, o *other, text []byte)
		want    string
	}{
		"missing": {none, "its machine is i686, this zxfer is for "},
		"not a program": {func(t *testing.T, o *other, _ []byte) {
			require.NoError(t, os.WriteFile(filepath.Join(o.binaryDirs[0], "zxfer-linux-386"), []byte("#!/bin/sh"), 0o600))
		}, "zxfer-linux-386 is not zxfer"},
		"another program": {func(t *testing.T, o *other, _ []byte) {
			self, err := os.Executable()
			require.NoError(t, err)
			text, err := os.ReadFile(self)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(o.binaryDirs[0], "zxfer-linux-386"), text, 0o600))
		}, "zxfer-linux-386 is not zxfer"},
		"for another architecture": {func(t *testing.T, o *other, text []byte) {
			require.NoError(t, os.WriteFile(filepath.Join(o.binaryDirs[0], "zxfer-linux-riscv64"), text, 0o600))
			o.program("uname", `[ "$1" = -m ] && echo riscv64 || echo Linux`)
		}, "zxfer-linux-riscv64 is for linux/386"},
		"writable by others": {func(t *testing.T, o *other, text []byte) {
			file := filepath.Join(o.binaryDirs[0], "zxfer-linux-386")
			require.NoError(t, os.WriteFile(file, text, 0o600))
			require.NoError(t, os.Chmod(file, 0o620))
		}, "is ignored, because other users can write it"},
		"reports another release": {func(t *testing.T, o *other, text []byte) {
			require.NoError(t, os.WriteFile(filepath.Join(o.binaryDirs[0], "zxfer-linux-386"), text, 0o600))
			o.Release = "1.0.0/2"
		}, "the zxfer for i686 is 0.9.0/2, and not 1.0.0/2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "")
			text := foreignBinary(t, o)
			o.Options.Bootstrap = true
			if link := filepath.Join(o.bin, "uname"); name == "for another architecture" {
				require.NoError(t, os.Remove(link))
			}
			c.prepare(t, o, text)
			_, err := Agent(t.Context(), o.Options)
			require.ErrorContains(t, err, c.want)
			require.Equal(t, fault.Refused, fault.ClassOf(err))
			require.Empty(t, o.cache())
			if name == "missing" {
				hint := fault.HintOf(err)
				require.ErrorContains(t, err, filepath.Join(o.binaryDirs[0], "zxfer-linux-386"))
				require.Contains(t, hint, o.binaryDirs[1])
				require.Contains(t, hint, "CGO_ENABLED=0 GOARCH=386 go build -o="+o.binaryDirs[0])
			}
		})
	}
}

func TestCheckBinary(t *testing.T) {
	t.Parallel()
	skipCompilation(t)
	text, err := buildForeign()
	require.NoError(t, err, "%.1000s", text)
	own := func(version, revision string) *debug.BuildInfo {
		b := &debug.BuildInfo{Main: debug.Module{Version: version}}
		if revision != "" {
			b.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: revision}}
		}
		return b
	}
	require.NoError(t, checkBinary(text, "386", own("(devel)", "")))
	require.NoError(t, checkBinary(text, "386", own("", "")))
	require.EqualError(t, checkBinary(text, "386", own("v0.9.0", "")), "is of devel, and this zxfer of v0.9.0")
	require.EqualError(t, checkBinary(text, "386", own("(devel)", "abc")), "is of devel, and this zxfer of devel (abc)")
	require.EqualError(t, checkBinary(text, "386", nil), "is of devel, and this zxfer of no known build")
	require.EqualError(t, checkBinary(text, "amd64", own("", "")), "is for linux/386")
	require.EqualError(t, checkBinary(nil, "386", own("", "")), "is not zxfer")
}

// TestCopyReportsProgress expects that a slow copy shows its progress.
func TestCopyReportsProgress(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.remote(`{ head -c 100000; sleep 0.5; cat; } | sh -c "$command"`)
	stderr := make(chan func() string, 1)
	over := make(chan struct{})
	o.Activity = func(what func() string) func() {
		stderr <- what
		return func() { close(over) }
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
	defer cancel()
	c, err := Agent(ctx, o.Options)
	require.NoError(t, err)
	defer c.Close()
	what := (<-stderr)()
	require.Regexp(t, `^copying zxfer to beta, 100 % of [0-9.]+ MiB$`, what)
	<-over
}
