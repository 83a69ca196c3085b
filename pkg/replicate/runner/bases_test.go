package runner

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// A renamed dataset keeps its incremental source: through its hold even if holds --gc runs before
// the copy is renamed, and without holds through the state.
func TestRenamedKeepsItsBase(t *testing.T) {
	t.Parallel()
	for name, holds := range map[string]string{"held": "both", "not held": "none"} {
		for _, away := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", target away"}[away], func(t *testing.T) {
				t.Parallel()
				r := newReplica(t, adopting())
				none := 0
				r.job.Retries, r.job.Holds, r.job.Bookmarks = &none, holds, "none"
				r.snapshot("src", "s1")
				r.snapshot("src/a", "s1")
				r.run(t)
				success := r.arrival(t, "src/a").Success
				r.rename("src/a", "src/b")
				if away {
					r.away = "dst"
				}
				for _, s := range []string{"s2", "s3", "s4", "s5", "s6"} {
					r.snapshot("src/b", s)
					r.now += 10
					run, _ := r.run(t)
					if !away {
						require.Equal(t, replicate.Renamed, run.Targets[0].Datasets[0].Conflict)
						_, err := r.gc(t)
						require.NoError(t, err)
					}
				}
				require.Equal(t, []string{"s1", "s4", "s5", "s6"}, r.names("src/b"))
				require.Equal(t, success, r.arrival(t, "src/b").Success, "it is late, and not new")
				r.away = ""
				r.rename("dst/copy/a", "dst/copy/b")
				r.now += 10
				run, _ := r.run(t)
				require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
				require.Zero(t, run.Targets[0].Datasets[0].Full)
				require.Equal(t, []string{"s4", "s5", "s6"}, r.names("src/b"))
				held, err := r.gc(t)
				require.NoError(t, err)
				for _, h := range held {
					require.False(t, h.Stale, h.Snapshot)
				}
			})
		}
	}
}

// Bookmarks are kept if a target's next incremental send may need them, however long the target is
// unreachable. Others are destroyed, or each run would add one.
func TestBookmarksThatStay(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.job.Holds, r.job.Retention = "none", &replicate.Grid{Last: 1}
	r.job.Targets = []replicate.Target{{Name: "t", To: "dst/copy"}, {Name: "u", To: "dst/other"}}
	r.snapshot("src", "s1")
	r.run(t)
	r.away = "dst/other"
	for i := range 20 {
		r.snapshot("src", fmt.Sprint("s", i+2))
		r.now += 10
		r.run(t)
	}
	r.destroy("src@s1") // by hand
	require.Equal(t, []string{"zxfer:j:s1", "zxfer:j:s21"}, r.names("src", zfs.Bookmark))
	r.away = ""
	r.Set("dst/copy", "written", "100") // which stops t
	r.snapshot("src", "s22")
	run, _ := r.run(t)
	require.Equal(t, 1, run.Targets[0].Failed)
	require.Equal(t, 1, run.Targets[1].Sent, run.FirstError())
	require.Zero(t, run.Targets[1].Datasets[0].Full)
	require.Equal(t, []string{"s21", "s22"}, r.names("src"))
	r.destroy("src@s21")
	r.Set("dst/copy", "written", "0")
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Zero(t, run.Targets[0].Datasets[0].Full, "its base is the bookmark of s21")
}

// The source keeps what an interrupted receive needs until the receive is complete.
func TestWhatAnInterruptedReceiveNeeded(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	none := 0
	r.job.Retries, r.job.Retention = &none, &replicate.Grid{Last: 1}
	r.snapshot("src", "s1")
	r.run(t)
	r.Write("src", []byte("what comes of it is kept"))
	r.snapshot("src", "s2")
	r.fail(zfs.OpReceive, "dst/copy@s2", &zfs.Error{Kind: zfs.Incomplete})
	r.run(t)
	require.NotEqual(t, "-", r.Get("dst/copy", "receive_resume_token"))
	r.snapshot("src", "s3")
	r.now += 10
	r.fail(zfs.OpSend, "src", &zfs.Error{Kind: zfs.NoBase})
	run, _ := r.run(t)
	require.Equal(t, 1, run.Targets[0].Failed)
	require.Equal(t, []string{"s1", "s2", "s3"}, r.names("src"))
	require.Equal(t, []string{"zxfer:j:s1"}, r.names("src", zfs.Bookmark))

	r.fail("", "", nil)
	r.now += 10
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, 2, run.Targets[0].Datasets[0].Streams, "it went on")
	require.Equal(t, []string{"s3"}, r.names("src"))
	require.Equal(t, []string{"zxfer:j:s3"}, r.names("src", zfs.Bookmark))
}

// A job that runs during holds --gc keeps its holds.
func TestGCBesideARun(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.snapshot("src", "s1")
	r.run(t)
	r.snapshot("src", "s2")
	r.now += 10
	r.before = func(string, []string) error {
		r.before = nil
		r.run(t)
		return nil
	}
	_, err := r.gc(t)
	require.NoError(t, err)
	require.Equal(t, []string{"src@s2", "dst/copy@s2"}, r.heldBy(t, "src", "dst/copy"))
}

// Patterns that select nothing by mistake do not delete records.
func TestPatternsThatSelectNothing(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.snapshot("src", "s1")
	r.run(t)
	known := r.arrival(t, "src")
	require.NotZero(t, known.BaseGUID)
	r.job.Include = []string{"typo"}
	run, _ := r.run(t)
	require.Equal(t, outcome.Refused, run.Outcome)
	require.Equal(t, known, r.arrival(t, "src"))
}
