package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// errKilled is the error of every operation after the kill.
var errKilled = errors.New("killed")

// runKilled runs the job and kills it at operation number at: before it, or after it but before its
// answer. Nothing that the run does later has an effect, also on its records. It reports whether
// the run had that many operations.
func (r *replica) runKilled(t *testing.T, at int, after bool) (killed bool) {
	t.Helper()
	saved, around, n := filepath.Join(t.TempDir(), "saved"), r.Around, 0
	var mu sync.Mutex
	kill := func() {
		killed = true
		err := os.CopyFS(saved, os.DirFS(r.dir))
		for ; errors.Is(err, fs.ErrNotExist); err = os.CopyFS(saved, os.DirFS(r.dir)) { // the run replaced a file of its state
			assert.NoError(t, os.RemoveAll(saved))
		}
		assert.NoError(t, err) // the run may call this in another goroutine
	}
	r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if op == zfs.OpStatus { // it changes nothing, and runs while the run saves its state
			return around(ctx, op, names, do)
		}
		mu.Lock()
		n++
		now := n == at
		if now && !after && !killed {
			kill()
		}
		dead := killed
		mu.Unlock()
		switch {
		case dead && now && op == zfs.OpReceive: // in the middle of the stream
			return around(ctx, op, names, func() error { return &zfs.Error{Kind: zfs.Incomplete} })
		case dead:
			return errKilled
		}
		err := around(ctx, op, names, do)
		if now {
			mu.Lock()
			defer mu.Unlock()
			kill()
			return errKilled
		}
		return err
	}
	_, err := r.runner(t).Run(t.Context(), r.job, true)
	r.Around = around
	if !killed {
		require.NoError(t, err)
		return false
	}
	require.NoError(t, os.RemoveAll(r.dir))
	require.NoError(t, os.Rename(saved, r.dir))
	return true
}

// TestKilledRunKeepsIncrementalSource kills a run at each of its operations (at the quick level, at every
// third). Then another tool
// destroys every snapshot of the source that is not held. It expects the next run to send increments
// to every copy that has a complete snapshot, and to leave one bookmark per dataset.
func TestKilledRunKeepsIncrementalSource(t *testing.T) {
	t.Parallel()
	for _, holds := range []string{"both", "none"} {
		for _, first := range []bool{true, false} {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("holds %s, first %v, after %v", holds, first, after), func(t *testing.T) {
					t.Parallel()
					kills := 0
					for at := 1; killedKeepsSource(t, holds, first, after, at); at += testenv.Rounds(3, 1, 1) {
						kills++
					}
					require.Greater(t, kills, 3)
				})
			}
		}
	}
}

func killedKeepsSource(t *testing.T, holds string, first, after bool, at int) bool {
	t.Helper()
	none, sources := 0, []string{"src", "src/a"}
	r := newReplica(t, adopting())
	r.job.Holds, r.job.Retries, r.job.Targets[0].Retention = holds, &none, nil
	take := func(names ...string) {
		for _, name := range names {
			for _, d := range sources {
				r.Write(d, []byte(name))
				r.snapshot(d, name)
			}
		}
	}
	take("s1", "s2")
	if !first {
		r.run(t)
		take("s3", "s4", "s5")
	}
	r.now += 10
	if !r.runKilled(t, at, after) {
		return false
	}
	before := map[string]uint64{}
	r.Edit(func(all map[string]*zfs.Dataset) {
		for _, d := range sources {
			copied := "dst/copy" + d[len("src"):]
			if c := all[copied]; c != nil && len(c.Snapshots()) > 0 {
				before[copied] = c.GUID
			}
		}
	})
	for _, d := range sources {
		for _, name := range r.names(d) {
			if len(r.held(d+"@"+name)) == 0 {
				r.destroy(d + "@" + name)
			}
		}
	}
	take("s9")
	r.now += 10
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, "operation %d: %s", at, run.FirstError())
	r.Edit(func(all map[string]*zfs.Dataset) {
		for name, guid := range before {
			require.Equal(t, guid, all[name].GUID, "operation %d: %s was sent in full", at, name)
		}
	})
	for _, d := range sources {
		copied := r.names("dst/copy" + d[len("src"):])
		require.Equal(t, "s9", copied[len(copied)-1])
	}
	r.now += 10
	take("s10")
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	for _, d := range sources {
		require.Equal(t, []string{"zxfer:j:s10"}, r.names(d, zfs.Bookmark), "operation %d", at)
		held := []string{}
		for _, name := range r.names(d) {
			if len(r.held(d+"@"+name)) > 0 {
				held = append(held, name)
			}
		}
		require.Equal(t, map[string][]string{"both": {"s10"}, "none": {}}[holds], held, "operation %d", at)
	}
	return true
}

// TestBookmarksOfInterruptedStreamAreKept interrupts a stream, makes the target unreachable and destroys
// the snapshots of the stream on the source. It expects runs to keep their bookmarks until the target
// is reachable, because one of them is the incremental source.
func TestBookmarksOfInterruptedStreamAreKept(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	none := 0
	r.job.Retries, r.job.Holds, r.job.Targets[0].Retention = &none, "none", nil
	r.snapshot("src", "s1")
	r.run(t)
	for _, name := range []string{"s2", "s3", "s4"} {
		r.snapshot("src", name)
	}
	r.now += 10
	require.True(t, func() bool {
		for at := 1; r.runKilled(t, at, true); at++ {
			if len(r.names("dst/copy")) == 3 { // s4 has not arrived
				return true
			}
		}
		return false
	}())
	r.away = "dst"
	for _, name := range []string{"s1", "s2", "s3", "s4"} {
		r.destroy("src@" + name)
	}
	for range 3 {
		r.now += 10
		run, _ := r.run(t)
		require.NotEmpty(t, run.Targets[0].Error)
		require.Equal(t, []string{"zxfer:j:s1", "zxfer:j:s2", "zxfer:j:s3", "zxfer:j:s4"}, r.names("src", zfs.Bookmark))
	}
	r.away = ""
	r.snapshot("src", "s5")
	r.now += 10
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, []string{"s1", "s2", "s3", "s5"}, r.names("dst/copy"))
	require.Equal(t, []string{"zxfer:j:s5"}, r.names("src", zfs.Bookmark))
}

// TestWithoutBookmarks expects that bookmarks = "none" creates none, and holds = "none" places no hold.
func TestWithoutBookmarks(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.job.Bookmarks, r.job.Holds = "none", "none"
	r.before = func(op string, names []string) error {
		require.NotContains(t, []string{zfs.OpBookmark, zfs.OpHold}, op, names)
		return nil
	}
	r.snapshot("src", "s1")
	r.run(t)
	require.Equal(t, []string{"s1"}, r.names("dst/copy"))
}

// TestBookmarkIsNotPermitted expects a note and no failure, in one call before and one after the streams.
func TestBookmarkIsNotPermitted(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.fail(zfs.OpBookmark, "src", &zfs.Error{Kind: zfs.Permission, Op: zfs.OpBookmark})
	r.snapshot("src", "s1")
	run, _ := r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Len(t, run.Notes, 1)
	require.Contains(t, run.Notes[0], "bookmark")
}
