// Package devicetest makes block devices for tests: loop devices whose files are
// on a tmpfs, which go with their test. It is for tests only, and takes root.
package devicetest

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Run runs a command and returns what it prints.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// Scratch is a directory on a tmpfs.
func Scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "zxfer-dev-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Image is a file of size bytes, all hole.
func Image(t testing.TB, size int64) string {
	t.Helper()
	name := filepath.Join(Scratch(t), "image")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	require.NoError(t, os.Truncate(name, size))
	return name
}

// Attach makes a loop device of a file. The test may detach it.
func Attach(t testing.TB, file string, args ...string) string {
	t.Helper()
	dev := Run(t, "losetup", append(append([]string{"--find", "--show"}, args...), file)...)
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", dev).Run() })
	return dev
}

// Loop makes a loop device of size bytes, with sectors of sector bytes.
func Loop(t testing.TB, size int64, sector int) string {
	t.Helper()
	return Attach(t, Image(t, size), "--sector-size", strconv.Itoa(sector))
}

// Sum is a hash of all that a device or file holds.
func Sum(t testing.TB, name string) string {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}
