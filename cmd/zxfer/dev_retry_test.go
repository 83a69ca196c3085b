package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/dev"
	"zxfer/pkg/testenv"
)

// TestDevResumesImage interrupts a copy to a new image file and expects the rest to be
// resumed. If the agent was killed, the same command resumes the copy. Otherwise, the next
// command does.
func TestDevResumesImage(t *testing.T) { //nolint:paralleltest // it waits for a sync
	m := buildForTest(t)
	const size = 48 << 20
	for name, agent := range map[string]bool{"agent killed": true, "zxfer killed": false} {
		t.Run(name, func(t *testing.T) {
			src, dst := filepath.Join(m.dir, "src"), filepath.Join(m.dir, "dst")
			defer os.Remove(src)
			defer os.Remove(dst)
			image(t, src, size, size, false)
			// The copy must last until a process is killed.
			testenv.Widen(t, 4*time.Second, func(lasts time.Duration) error {
				require.NoError(t, os.RemoveAll(dst))
				return m.resumesImage(t, src, dst, size/int(lasts.Seconds()), agent)
			})
		})
	}
}

// resumesImage copies src to dst with at most limit bytes per second, kills the agent or zxfer, and expects
// the copy to resume. It returns an error if the copy was too fast to be interrupted.
func (m *testBuild) resumesImage(t *testing.T, src, dst string, limit int, agent bool) error {
	t.Helper()
	want, err := os.ReadFile(src)
	require.NoError(t, err)
	args := []string{"dev", "--json", "--compress", "off", "--bwlimit", strconv.Itoa(limit), src, "beta:" + dst}
	var out, report bytes.Buffer
	cmd := m.command(t.Context(), args...)
	cmd.Stdout, cmd.Stderr = &report, &out
	require.NoError(t, cmd.Start())
	ended, failure := make(chan struct{}), error(nil)
	go func() {
		defer close(ended)
		failure = cmd.Wait()
	}()
	isOver := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	// Wait for at least one sync, which happens every two seconds.
	require.Eventually(t, func() bool { return m.journalSize(dst) > 1<<10 || isOver() }, testenv.Timeout(), 10*time.Millisecond)
	victims := []string{strconv.Itoa(cmd.Process.Pid)}
	if agent {
		victims = m.agents(cmd.Process.Pid)
	}
	for _, v := range victims {
		pid, err := strconv.Atoi(v)
		require.NoError(t, err)
		if !isOver() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may end by itself at this moment
		}
	}
	<-ended
	if !agent {
		if failure == nil {
			return errors.New("the copy was complete before zxfer was killed")
		}
		require.Eventually(t, func() bool { return len(m.agents(0)) == 0 }, testenv.Timeout(), 10*time.Millisecond)
		report.Reset()
		cmd = m.command(t.Context(), args...)
		cmd.Stdout, cmd.Stderr = &report, &out
		failure = cmd.Run()
	}
	require.NoError(t, failure, "%s", out.String())
	var r dev.Report
	require.NoError(t, json.Unmarshal(report.Bytes(), &r))
	last := r.Results[len(r.Results)-1]
	if agent && len(r.Results) == 1 {
		return errors.New("the copy was complete before the agent was killed")
	}
	require.NotZero(t, last.Resumed)
	require.Less(t, last.WireBytes, int64(len(want)))
	if agent {
		require.Len(t, r.Results, 2, "zxfer must retry once")
	}
	got, err := os.ReadFile(dst)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	return nil
}

// journalSize returns the size in bytes of the journal of a copy to an image.
func (m *testBuild) journalSize(image string) int {
	dir := filepath.Join(m.dir, "zxfer")
	if os.Geteuid() == 0 {
		dir = "/var/lib/zxfer"
	}
	return journalBytes(dir, image)
}

// journalBytes returns the total size in bytes of the journals in a directory that contain a
// name. The first line of a journal names the image.
func journalBytes(dir, name string) (n int) {
	all, _ := filepath.Glob(filepath.Join(dir, "*.journal"))
	for _, j := range all {
		if b, err := os.ReadFile(j); err == nil && bytes.Contains(b, []byte(name)) {
			n += len(b)
		}
	}
	return n
}
