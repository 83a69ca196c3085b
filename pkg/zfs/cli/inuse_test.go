package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// TestInUse expects the names of programs that have a device open, except this process and udev's.
// Other programs may have the same name as udev.
func TestInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	text, err := os.ReadFile(sleep)
	require.NoError(t, err)
	devices, pids := map[string]string{}, map[string]int{}
	for _, name := range []string{"udevil", "(udev-worker)", "own", "idle"} {
		device, program := filepath.Join(dir, "of "+name), filepath.Join(dir, name)
		devices[device] = "/dev/zvol/" + name
		f, err := os.Create(device)
		require.NoError(t, err)
		defer f.Close()
		switch name {
		case "idle":
			require.NoError(t, f.Close())
		case "own":
		default:
			testenv.WriteProgram(t, program, text)
			c := exec.Command(program, "100000")
			c.ExtraFiles = []*os.File{f}
			require.NoError(t, c.Start())
			pids[name] = c.Process.Pid
			t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		}
	}
	want := map[string]string{"/dev/zvol/udevil": fmt.Sprintf(`is in use by "udevil" (process %d)`, pids["udevil"])}
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		out := map[string]string{}
		require.NoError(t, findUsers(context.Background(), devices, out))
		require.Equal(t, want, out)
	}, testenv.Timeout(), 20*time.Millisecond)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, findUsers(ctx, devices, map[string]string{}), context.Canceled)
}

// TestPartitionsInUse expects the names of programs that have a partition open, up to a limit.
func TestPartitionsInUse(t *testing.T) {
	t.Parallel()
	device := filepath.Join(t.TempDir(), "zd0")
	f, err := os.Create(device + "p12")
	require.NoError(t, err)
	defer f.Close()
	for range 5 {
		c := exec.Command("sleep", "100000")
		c.ExtraFiles = []*os.File{f}
		require.NoError(t, c.Start())
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	}
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		out := map[string]string{}
		require.NoError(t, findUsers(context.Background(), map[string]string{device: "v"}, out))
		require.Regexp(t, `^is in use by ("sleep" \(process \d+\)(, )?){3} and 2 more$`, out["v"])
	}, testenv.Timeout(), 20*time.Millisecond)
}

// kernelOf simulates a kernel that has the devices zd0, zd16 and so on for these volumes. "" is a
// device that cannot be opened.
func kernelOf(t *testing.T, names ...string) *volumes {
	t.Helper()
	sys := t.TempDir()
	of := map[string]string{}
	for i, name := range names {
		device := []string{"zd0", "zd16", "zd32"}[i]
		require.NoError(t, os.Mkdir(filepath.Join(sys, device), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(sys, device, "dev"), []byte("230:"+device[2:]+"\n"), 0o600))
		of["/nowhere/"+device] = name
	}
	return &volumes{sys, "/nowhere", func(node string, number uint64) (string, error) {
		require.Equal(t, uint32(230), unix.Major(number))
		switch of[node] {
		case "":
			return "", unix.EACCES
		case "gone":
			return "", unix.ENXIO
		}
		return of[node], nil
	}}
}

// TestVolumeWithoutLink covers a volume whose udev link is missing or outdated.
func TestVolumeWithoutLink(t *testing.T) {
	t.Parallel()
	const link = "/dev/zvol/zxfer-no-such-pool/v+1"
	for name, c := range map[string]struct {
		names []string
		nodes []string
		err   error
	}{
		"found":                  {[]string{"other/v", "zxfer-no-such-pool/v 1"}, []string{"/nowhere/zd16"}, nil},
		"two with the same link": {[]string{"zxfer-no-such-pool/v+1", "zxfer-no-such-pool/v 1"}, []string{"/nowhere/zd0", "/nowhere/zd16"}, nil},
		"found next to another":  {[]string{"", "zxfer-no-such-pool/v+1"}, []string{"/nowhere/zd16"}, nil},
		"has no device":          {[]string{"other/v", "gone"}, nil, nil},
		"ambiguous":              {[]string{"other/v", ""}, nil, unix.EACCES},
	} {
		v := kernelOf(t, c.names...)
		nodes, err := v.nodes(link)
		require.Equal(t, c.nodes, nodes, name)
		require.ErrorIs(t, err, c.err, name)
		out, err := findInUse(t.Context(), []string{link}, v)
		require.NoError(t, err)
		if c.err != nil {
			require.Contains(t, out[link], "may be in use: it has no link in /dev/zvol, and its device was not found: /nowhere/zd16: ", name)
		} else {
			require.Empty(t, out, name)
		}
	}
	out, err := findInUse(t.Context(), []string{link}, &volumes{sys: "/nowhere", dev: "/nowhere"})
	require.NoError(t, err)
	require.Contains(t, out[link], "may be in use", "nothing is known without sysfs")
	v := kernelOf(t, "x")
	require.NoError(t, os.WriteFile(filepath.Join(v.sys, "zd0", "dev"), []byte("x"), 0o600))
	_, err = v.nodes(link)
	require.Error(t, err)
	require.False(t, errors.Is(err, os.ErrNotExist))
}
