package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// heldSnapshots returns the full names of snapshots with the job's hold for its target.
func (r *replica) heldSnapshots(t *testing.T, datasets ...string) []string {
	t.Helper()
	out := []string{}
	for _, n := range datasets {
		for _, name := range r.names(n) {
			if slices.Contains(r.held(n+"@"+name), replicate.Tag("j", "t")) {
				out = append(out, n+"@"+name)
			}
		}
	}
	return out
}

func (r *replica) arrival(t *testing.T, source string) *replicate.CopyState {
	t.Helper()
	st, err := statedir.Peek(r.dir, "j").State()
	require.NoError(t, err)
	return st.Copy(source, "t")
}

// TestFailedHoldIsPlacedByNextRun expects that the next run places a hold that failed, or that a killed run
// did not place, even if it sends nothing.
func TestFailedHoldIsPlacedByNextRun(t *testing.T) {
	t.Parallel()
	for _, pool := range []string{"src", "dst"} {
		t.Run(pool, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, adopting())
			r.snapshot("src", "s1")
			r.snapshot("src/a", "s1")
			r.fail(zfs.OpHold, pool, errors.New("the line was cut"))
			r.run(t)
			require.Len(t, r.heldSnapshots(t, "src/a", "dst/copy/a"), 1)
			r.fail("", "", nil)
			r.now += 10
			run, _ := r.run(t)
			require.Zero(t, run.Targets[0].Sent)
			require.Equal(t, []string{"src/a@s1", "dst/copy/a@s1"}, r.heldSnapshots(t, "src/a", "dst/copy/a"))
			r.runUntilUnchanged(t)
		})
	}
}

// TestLostConnectionAfterStreams loses the connection after the streams, and expects
// zxfer to retry holds, bookmarks, releases and retention. Holds and bookmarks that failed before the
// streams are placed after them. If the connection is lost again, the run reports it and the next run
// catches up.
func TestLostConnectionAfterStreams(t *testing.T) {
	t.Parallel()
	for _, operation := range []string{"hold", "release", "bookmark", "destroy"} {
		for _, lost := range []int{0, 1, 2, 4} {
			fails := lost > 1
			if operation == "hold" || operation == "bookmark" {
				fails = lost > 2
			}
			t.Run(fmt.Sprint(operation, lost), func(t *testing.T) {
				t.Parallel()
				r, want := newReplica(t, adopting()), newReplica(t, adopting())
				for i := range 5 {
					last := i == 4
					for _, w := range []*replica{r, want} {
						w.snapshot("src", fmt.Sprint("s", i))
						w.snapshot("src/a", fmt.Sprint("s", i))
					}
					left := lost
					if last {
						r.before = func(op string, _ []string) error {
							if op != operation || left == 0 {
								return nil
							}
							left--
							return hosts.ErrLost
						}
					}
					run, _ := r.run(t)
					want.run(t)
					require.Equal(t, last && fails, run.Notes != nil, run.Notes)
					require.True(t, !last || left == 0)
					r.now, want.now = r.now+10, want.now+10
				}
				require.Equal(t, !fails, fmt.Sprint(want.state()) == fmt.Sprint(r.state()))
				r.run(t)
				want.run(t)
				require.Equal(t, want.state(), r.state())
			})
		}
	}
}

// TestHoldsDoNotAccumulate expects that if one side cannot hold, the holds of the other still move.
// Otherwise, they would accumulate and block retention.
func TestHoldsDoNotAccumulate(t *testing.T) {
	t.Parallel()
	for _, pool := range []string{"src", "dst"} {
		t.Run(pool, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, adopting())
			r.fail(zfs.OpHold, pool, &zfs.Error{Kind: zfs.Permission, Op: zfs.OpHold})
			for i := range 9 {
				r.snapshot("src", fmt.Sprint("s", i))
				r.snapshot("src/a", fmt.Sprint("s", i))
				r.run(t)
				r.now += 10
			}
			other := map[string]string{"src": "dst/copy/a@s8", "dst": "src/a@s8"}[pool]
			require.Equal(t, []string{other}, r.heldSnapshots(t, "src/a", "dst/copy/a"))
			require.Len(t, r.arrival(t, "src/a").Held, 1)
			require.Len(t, r.names("src/a"), 3)
			require.Len(t, r.names("dst/copy/a"), 2)
		})
	}
}

// TestHoldsFollowTheSetting expects that holds follow the job's setting even if the incremental
// source is unchanged.
func TestHoldsFollowTheSetting(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.snapshot("src", "s1")
	r.snapshot("src/a", "s1")
	for _, step := range []struct {
		holds string
		want  []string
	}{
		{"", []string{"src/a@s1", "dst/copy/a@s1"}},
		{"source", []string{"src/a@s1"}},
		{"target", []string{"dst/copy/a@s1"}},
		{"both", []string{"src/a@s1", "dst/copy/a@s1"}},
		{"none", []string{}},
		{"none", []string{}},
		{"source", []string{"src/a@s1"}},
	} {
		r.job.Holds = step.holds
		r.now += 10
		r.run(t)
		require.Equal(t, step.want, r.heldSnapshots(t, "src/a", "dst/copy/a"), step.holds)

	}
	r.job.Holds = "none"
	r.job.Retention = &retention.Grid{Last: 1}
	r.snapshot("src/a", "s2")
	r.now += 10
	r.run(t)
	require.Equal(t, []string{"s2"}, r.names("src/a"), "no hold on snapshots that retention destroys")
}

// TestRenamedDatasetKeepsIncrementalSource expects that a renamed dataset keeps its incremental source. Its hold
// protects it even if holds --gc runs before the copy is renamed, and without holds the job's state
// does.
func TestRenamedDatasetKeepsIncrementalSource(t *testing.T) {
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
						require.Equal(t, decision.Renamed, run.Targets[0].Datasets[0].Conflict)
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

// TestKeptBookmarks expects that bookmarks are kept if the next incremental send to a target
// may need them, even if the target is unreachable for long. Other bookmarks are destroyed, because
// each run would add one.
func TestKeptBookmarks(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	r.job.Holds, r.job.Retention = "none", &retention.Grid{Last: 1}
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
	r.Set("dst/copy", "written", "100") // target t conflicts with this change
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
	require.Zero(t, run.Targets[0].Datasets[0].Full, "its incremental source is the bookmark of s21")
}

// TestInterruptedReceiveKeepsSnapshots expects the source to keep the snapshots of an interrupted
// receive until the receive is complete.
func TestInterruptedReceiveKeepsSnapshots(t *testing.T) {
	t.Parallel()
	r := newReplica(t, adopting())
	none := 0
	r.job.Retries, r.job.Retention = &none, &retention.Grid{Last: 1}
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
	require.Equal(t, []string{"zxfer:j:s1", "zxfer:j:s2", "zxfer:j:s3"}, r.names("src", zfs.Bookmark), "each may be the next incremental source")

	r.fail("", "", nil)
	r.now += 10
	run, _ = r.run(t)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Equal(t, 2, run.Targets[0].Datasets[0].Streams, "it continued")
	require.Equal(t, []string{"s3"}, r.names("src"))
	require.Equal(t, []string{"zxfer:j:s3"}, r.names("src", zfs.Bookmark))
}

// TestGCDuringRun expects that a job that runs during holds --gc keeps its holds.
func TestGCDuringRun(t *testing.T) {
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
	require.Equal(t, []string{"src@s2", "dst/copy@s2"}, r.heldSnapshots(t, "src", "dst/copy"))
}

// TestHoldsWithoutRecords moves the records away, as the hint for a damaged state says, while a target is absent. It
// expects that holds --gc releases nothing that the absent target, or a dataset that failed, may need.
func TestHoldsWithoutRecords(t *testing.T) {
	t.Parallel()
	for _, absent := range []string{"dst", "dst/copy/a", "other"} {
		t.Run(absent, func(t *testing.T) {
			t.Parallel()
			j := adopting()
			j.Targets = []replicate.Target{{Name: "other", To: "other/copy"}}
			r := newReplica(t, j)
			r.snapshot("src", "s1")
			r.snapshot("src/a", "s1")
			_, err := r.runner(t).Run(t.Context(), r.job, true)
			require.NoError(t, err)
			holds := func() (out []string) {
				for _, name := range []string{"src@s1", "src/a@s1", "dst/copy@s1", "dst/copy/a@s1", "other/copy@s1", "other/copy/a@s1"} {
					out = append(out, fmt.Sprint(name, r.held(name)))
				}
				return out
			}
			before := holds()
			require.NoError(t, os.Rename(filepath.Join(r.dir, "j", "state.json"), filepath.Join(r.dir, "moved")))
			r.away, r.now = absent, r.now+10
			_, err = r.runner(t).Run(t.Context(), r.job, true)
			require.Equal(t, absent != "dst/copy/a", err != nil, err)
			r.away = ""
			_, err = r.gc(t)
			require.NoError(t, err)
			require.Equal(t, before, holds())
		})
	}
}

// TestHoldsDespiteInvalidRecords lets the owner of a record that the job file lacks write a place that is not valid. It
// expects that holds lists and releases the others.
func TestHoldsDespiteInvalidRecords(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"place":   `{"last_run":{"source":"src","targets":[{"to":"::"},{"to":"dst/copy"}]},"datasets":{}}`,
		"source":  `{"last_run":{"source":"","targets":[{"to":"dst/copy"}]},"datasets":{}}`,
		"damaged": `{`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, adopting())
			r.snapshot("src", "s1")
			r.run(t)
			r.snapshot("src", "s2")
			tag := replicate.Tag("j", "gone")
			require.NoError(t, r.Host.Hold(t.Context(), tag, []string{"src@s1"}))
			require.NoError(t, os.MkdirAll(filepath.Join(r.dir, "old"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "old", "state.json"), []byte(text), 0o600))
			held, err := r.gc(t)
			require.ErrorContains(t, err, `records of job "old", which is not in the job file`)
			require.Contains(t, fault.HintOf(err), "rm -r "+filepath.Join(r.dir, "old"))
			require.NotEmpty(t, held)
			require.NotContains(t, r.held("src@s1"), tag)
		})
	}
}

// TestPatternsThatSelectNothing expects that if patterns select nothing by mistake, no records are
// deleted.
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
