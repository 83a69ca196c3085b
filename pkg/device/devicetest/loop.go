// Package devicetest creates block devices for tests: loop devices backed by files
// on tmpfs. They are removed when the test ends. It is for tests only and requires
// root.
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

// Run runs a command and returns its trimmed output.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// Scratch returns a temporary directory on tmpfs.
func Scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "zxfer-dev-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Image returns the path of a new file of size bytes, without allocated space.
func Image(t testing.TB, size int64) string {
	t.Helper()
	name := filepath.Join(Scratch(t), "image")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	require.NoError(t, os.Truncate(name, size))
	return name
}

// Attach attaches a file to a loop device and returns its path. The test may detach
// it.
func Attach(t testing.TB, file string, args ...string) string {
	t.Helper()
	dev := Run(t, "losetup", append(append([]string{"--find", "--show"}, args...), file)...)
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", dev).Run() })
	return dev
}

// Loop returns the path of a new loop device of size bytes, with the given sector
// size.
func Loop(t testing.TB, size int64, sector int) string {
	t.Helper()
	return Attach(t, Image(t, size), "--sector-size", strconv.Itoa(sector))
}

// Sum returns the SHA-256 of a device or file in hex.
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
