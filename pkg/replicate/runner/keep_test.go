package runner

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// heldBy returns the full names of snapshots with the job's hold for its target.
func (r *replica) heldBy(t *testing.T, datasets ...string) []string {
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
	return st.Arrival(source, "t")
}

// The next run places a hold that failed, or was not tried because the run was killed, even if it
// sends nothing.
func TestHoldIsPlacedLater(t *testing.T) {
	t.Parallel()
	for _, pool := range []string{"src", "dst"} {
		t.Run(pool, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, adopting())
			r.snapshot("src", "s1")
			r.snapshot("src/a", "s1")
			r.fail(zfs.OpHold, pool, errors.New("the line was cut"))
			r.run(t)
			require.Len(t, r.heldBy(t, "src/a", "dst/copy/a"), 1)
			r.fail("", "", nil)
			r.now += 10
			run, _ := r.run(t)
			require.Zero(t, run.Targets[0].Sent)
			require.Equal(t, []string{"src/a@s1", "dst/copy/a@s1"}, r.heldBy(t, "src/a", "dst/copy/a"))
			r.settle(t)
		})
	}
}

// A connection that is lost after the streams prevents no hold, bookmark, release or retention. If
// it is lost again, that is reported, and the next run catches up.
func TestWhatFollowsTheStreamsBearsALostConnection(t *testing.T) {
	t.Parallel()
	for _, operation := range []string{"hold", "release", "bookmark", "destroy"} {
		for lost := range 3 {
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
					require.Equal(t, last && lost > 1, run.Notes != nil, run.Notes)
					require.True(t, !last || left == 0)
					r.now, want.now = r.now+10, want.now+10
				}
				require.Equal(t, lost < 2, fmt.Sprint(want.state()) == fmt.Sprint(r.state()))
				r.run(t)
				want.run(t)
				require.Equal(t, want.state(), r.state())
			})
		}
	}
}

// If one side cannot hold, the holds of the other still move. Otherwise they would accumulate and
// block retention.
func TestHoldsDoNotPileUp(t *testing.T) {
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
			require.Equal(t, []string{other}, r.heldBy(t, "src/a", "dst/copy/a"))
			require.Len(t, r.arrival(t, "src/a").Held, 1)
			require.Len(t, r.names("src/a"), 3)
			require.Len(t, r.names("dst/copy/a"), 2)
		})
	}
}

// Holds follow the job's setting even if the incremental source stays the same.
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
		require.Equal(t, step.want, r.heldBy(t, "src/a", "dst/copy/a"), step.holds)

	}
	r.job.Holds = "none"
	r.job.Retention = &replicate.Grid{Last: 1}
	r.snapshot("src/a", "s2")
	r.now += 10
	r.run(t)
	require.Equal(t, []string{"s2"}, r.names("src/a"), "nothing holds what retention removes")
}
