package statedir

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
)

// TestBadCopyDeterminesOutcome expects that a copy that is not good determines the outcome, even if
// others were interrupted or the drill stopped early.
func TestBadCopyDeterminesOutcome(t *testing.T) {
	t.Parallel()
	copies := func(ended ...string) (out []*DrillResult) {
		for _, o := range ended {
			out = append(out, &DrillResult{Outcome: o, Error: "why"})
		}
		return out
	}
	cut, refused := fault.Interrupt("", errors.New("cut")), fault.Refusef("", "no")
	for _, c := range []struct {
		copies  []*DrillResult
		err     error
		stopped bool
		want    string
		class   fault.Class
	}{
		{copies(outcome.Done, outcome.Failed, outcome.Interrupted, Unverified), nil, false, outcome.Failed, fault.Failed},
		{copies(outcome.Failed), cut, false, outcome.Failed, fault.Failed},
		{copies(outcome.Failed), refused, false, outcome.Failed, fault.Failed},
		{copies(outcome.Failed), cut, true, outcome.Failed, fault.Failed},
		{copies(outcome.Done, Unverified), cut, true, outcome.Interrupted, fault.Interrupted},
		{copies(Unverified, outcome.Interrupted), nil, false, outcome.Interrupted, fault.Interrupted},
		{copies(outcome.Done), refused, false, outcome.Refused, fault.Refused},
		{copies(outcome.Done, Unverified), nil, false, Unverified, fault.Failed},
	} {
		d := &Drill{Copies: c.copies}
		d.Conclude(time.Unix(1, 0), c.err, c.stopped)
		require.Equal(t, c.want, d.Outcome)
		require.Equal(t, c.class, fault.ClassOf(d.Err(c.err)), c.want)
	}
}
