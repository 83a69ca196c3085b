package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// Programs that have a device open are named, except this process and udev's. Other programs may
// have the same name as udev.
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
			require.NoError(t, os.WriteFile(program, text, 0o700))
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

// Programs that have a partition open are also named, up to a limit.
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
