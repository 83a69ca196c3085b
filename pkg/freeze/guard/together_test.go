package guard

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/freeze"
	"zxfer/pkg/testenv"
)

// shell returns an application that two shell scripts freeze and thaw. In each script, $0 is the
// directory.
func shell(dir, name, freezes, thaws string) freeze.Spec {
	return freeze.Spec{Kind: freeze.Command, Name: name, Timeout: testenv.Timeout(),
		Freeze: []string{"/bin/sh", "-c", freezes, dir}, Thaw: []string{"/bin/sh", "-c", thaws, dir}}
}

const untilAll = `; until test -e "$0/a" && test -e "$0/b" && test -e "$0/c"; do sleep 0.01; done`

func meeting(dir string) *freeze.Request {
	return request(shell(dir, "a", "true", `: >"$0/a"`+untilAll), shell(dir, "b", "true", `: >"$0/b"`+untilAll),
		shell(dir, "c", "true", `: >"$0/c"`+untilAll))
}

// TestThawTogether makes each application wait in its thaw until all others are thawed. The
// watchdog, the run after the watchdog was killed, and the next run must thaw them.
func TestThawTogether(t *testing.T) {
	t.Parallel()
	for _, o := range begin(t, meeting(t.TempDir())).Finish() {
		require.Empty(t, o.Error)
		require.False(t, o.ThawFailed)
	}
	g := begin(t, meeting(t.TempDir()))
	g.kill()
	for _, o := range g.Finish() {
		require.False(t, o.ThawFailed, o.Error)
	}
	// There are two notes, and the first cannot be thawed before the second.
	dir, notes := t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "c"), nil, 0o600))
		q, err := json.Marshal(request(shell(dir, name, "true", `: >"$0/`+name+`"`+untilAll)))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(notes, notePrefix+name), q, 0o600))
	}
	thawNotes(notes)
	left, err := os.ReadDir(notes)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestDeadlinesAreIndependent freezes b only after a was thawed at its deadline, and expects that b is
// verified.
func TestDeadlinesAreIndependent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := request(shell(dir, "a", "true", `: >"$0/a"`), shell(dir, "b", `until test -e "$0/a"; do sleep 0.01; done`, "true"))
	q.Applications[0].Timeout, q.Applications[0].Required = 300*time.Millisecond, false
	g := begin(t, q)
	require.False(t, g.Stopped, g.Outcomes)
	require.Contains(t, g.Outcomes[0].Error, "a took longer than its timeout of 300ms")
	o := g.Finish()
	require.Empty(t, o[1].Error)
	require.NotContains(t, o[0].Error, "not taken")

	// If a is required, no snapshot is taken and the guard does not wait for b. The timeout must not pass
	// before a is frozen.
	testenv.Widen(t, 300*time.Millisecond, func(timeout time.Duration) error {
		dir := t.TempDir()
		q := request(shell(dir, "a", "true", `: >"$0/a"`), shell(dir, "b", "sleep 100000", "true"), shell(dir, "c", "true", "true"))
		q.Applications[0].Timeout = timeout
		g := begin(t, q)
		require.True(t, g.Stopped)
		g.Cancel()
		require.FileExists(t, filepath.Join(dir, "a"))
		if !strings.Contains(g.Outcomes[1].Error, "a took longer than its timeout of "+timeout.String()) {
			return fmt.Errorf("b was not tried: %+v", g.Outcomes)
		}
		return nil
	})
}

// TestSilentMachineDoesNotDelayThaw uses an agent that answers, after the snapshot, only if the
// other application is thawed.
func TestSilentMachineDoesNotDelayThaw(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	thawed := make(chan struct{})
	asked := 0
	m := &machine{answer: func(command string) string {
		if command != "status" {
			return ""
		}
		if asked++; asked > 1 {
			<-thawed
		}
		return ""
	}}
	g := begin(t, request(shell(dir, "a", "true", `: >"$0/a"`), m.listen(t)))
	require.False(t, g.Stopped, g.Outcomes)
	outcomes := make(chan []freeze.Outcome, 1)
	go func() { outcomes <- g.Finish() }()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "a")); return err == nil }, testenv.Timeout(), 10*time.Millisecond)
	close(thawed)
	require.Empty(t, (<-outcomes)[0].Error)
}

// TestBlockedRunDoesNotDelayThaw starts a watchdog whose messages are never read, and
// expects it to thaw.
func TestBlockedRunDoesNotDelayThaw(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := request(script(dir, "a"))
	q.Applications[0].Timeout = 500 * time.Millisecond
	text, err := json.Marshal(q)
	require.NoError(t, err)
	in, send := io.Pipe()
	_, blocked := io.Pipe()
	go func() { _ = serve(in, blocked, thawTimeout) }() // it is still blocked at the end of the test
	_, err = send.Write(text)
	require.NoError(t, err)
	requireThawed(t, dir)
}
