package decide

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

// pauseMachine returns the machine of PauseState.
func pauseMachine() Machine {
	m := Machine{Name: "Pause of a job"}
	for _, s := range pauseStates() {
		m.States = append(m.States, string(s))
	}
	for _, e := range pauseEvents() {
		m.Events = append(m.Events, string(e))
	}
	m.Next = func(state, event string) (string, error) {
		next, err := PauseState(state).Next(PauseEvent(event))
		return string(next), err
	}
	return m
}

func pauseStates() []PauseState { return []PauseState{NotPaused, Paused, TransfersPaused, PauseEnded} }

func pauseEvents() []PauseEvent {
	return []PauseEvent{PauseAll, PauseTransfers, Resume, EndPassed, ScheduledRun, ManualRun, IgnoringRun}
}

// TestPauseExtents enumerates which part of a run each state permits.
func TestPauseExtents(t *testing.T) {
	t.Parallel()
	want := map[PauseState]map[PauseEvent]Extent{
		NotPaused:       {ScheduledRun: RunAll, ManualRun: RunAll, IgnoringRun: RunAll},
		Paused:          {ScheduledRun: RunNothing, ManualRun: RunNothing, IgnoringRun: RunAll},
		TransfersPaused: {ScheduledRun: RunSource, ManualRun: RunSource, IgnoringRun: RunAll},
		PauseEnded:      {ScheduledRun: RunAll, ManualRun: RunAll, IgnoringRun: RunAll},
	}
	for _, s := range pauseStates() {
		for e, extent := range want[s] {
			require.Equal(t, extent, s.Extent(e), "%s, %s", s, e)
			if _, err := s.Next(e); err != nil {
				require.Equal(t, RunNothing, extent, "%s, %s", s, e)
			}
		}
	}
}

func TestPauseState(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
	require.Equal(t, NotPaused, (*Pause)(nil).State(now))
	require.Equal(t, Paused, (&Pause{}).State(now), "until resume")
	require.Equal(t, Paused, (&Pause{Until: now.Add(1)}).State(now))
	require.Equal(t, PauseEnded, (&Pause{Until: now}).State(now))
	require.Equal(t, TransfersPaused, (&Pause{TransfersOnly: true}).State(now))
	require.Equal(t, Paused, (&Pause{Since: now.Add(time.Hour)}).State(now), "the clock was wrong")
}

func TestStrongerPause(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
	ended, later := &Pause{Until: now.Add(-time.Hour)}, &Pause{Until: now.Add(-time.Minute)}
	short, endless := &Pause{Until: now.Add(time.Hour)}, &Pause{}
	transfers := &Pause{TransfersOnly: true}
	for _, c := range []struct{ weak, strong *Pause }{
		{nil, ended}, {ended, later}, {later, transfers}, {transfers, short}, {short, endless}, {nil, nil}, {ended, short},
	} {
		require.Same(t, c.strong, Stronger(c.weak, c.strong, now))
		require.Same(t, c.strong, Stronger(c.strong, c.weak, now))
	}
}

func TestPauseCheck(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
	for text, p := range map[string]Pause{
		"":                           {Until: now.Add(time.Second), Reason: "Umzug des Serverschranks – bis Montag"},
		"is in the past":             {Until: now},
		"year one is in the past":    {Until: time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC)},
		"more than ten years":        {Until: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)},
		"more than 200":              {Reason: strings.Repeat("x", 201)},
		"control characters":         {Reason: "\x1b[2J"},
		"line breaks":                {Reason: "a\r\nBcc: b@c"},
		"contains control char":      {Reason: "a\u202eb"},
		"characters, line breaks or": {Reason: "\xff"},
	} {
		err := p.Check(now)
		if text == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, strings.TrimPrefix(text, "year one "))
		require.Equal(t, fault.Usage, fault.ClassOf(err))
		require.NotEmpty(t, fault.HintOf(err))
	}
}

// TestPauseIsClean expects that a hostile record prints as one short line, and as JSON.
func TestPauseIsClean(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"since":"9999-12-31T23:59:59-12:00","until":"9999-12-31T23:59:59-12:00","reason":"` + strings.Repeat(`a\n`, 1000) + `"}`,
		`{"since":"0001-01-01T00:00:00Z","until":"0001-01-01T00:00:00+12:00","reason":"\u001b[2Jx\r\nBcc: a","by":"\u202e"}`,
		`{}`,
	} {
		var p Pause
		require.NoError(t, json.Unmarshal([]byte(text), &p))
		p.Clean()
		_, err := json.Marshal(p)
		require.NoError(t, err)
		require.Equal(t, Paused, p.State(time.Now()), "it lasts until resume")
		out := p.Text(func(t time.Time) string { return t.UTC().Format(time.DateTime) })
		require.LessOrEqual(t, len(out), 2*MaxReason+50)
		require.NotRegexp(t, `[\x00-\x1f]|\x{202e}`, out)
	}
}

func TestPauseText(t *testing.T) {
	t.Parallel()
	stamp := func(t time.Time) string { return t.Format(time.DateTime) }
	until := time.Date(2026, 11, 27, 6, 0, 0, 0, time.UTC)
	require.Equal(t, "paused until resume", (&Pause{}).Text(stamp))
	require.Equal(t, "paused until resume (by alice)", (&Pause{By: "alice"}).Text(stamp))
	require.Equal(t, "transfers paused until 2026-11-27 06:00:00 (new switch)", (&Pause{TransfersOnly: true, Until: until, Reason: "new switch"}).Text(stamp))
	require.Equal(t, "paused until 2026-11-27 06:00:00 (new switch, by alice)", (&Pause{Until: until, Reason: "new switch", By: "alice"}).Text(stamp))
}

func TestForgottenPause(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
	since := now.Add(-forgottenAfter - time.Second)
	require.True(t, (&Pause{Since: since}).Forgotten(now))
	require.False(t, (&Pause{Since: since.Add(time.Second)}).Forgotten(now))
	require.False(t, (&Pause{Since: since, Until: now.Add(1)}).Forgotten(now), "it has an end")
	require.False(t, (&Pause{Since: since, Until: now}).Forgotten(now), "it has ended")
	require.False(t, (*Pause)(nil).Forgotten(now))
}

func TestDueFrom(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
	before, after := now.Add(-3*time.Hour), now.Add(-time.Hour)
	p := &Pause{Since: now.Add(-2 * time.Hour), Until: now.Add(-90 * time.Minute)}
	require.Equal(t, p.Until.Add(-1), p.DueFrom(before, now), "a run at the end is due")
	require.Equal(t, after, p.DueFrom(after, now), "a run succeeded since")
	require.Equal(t, before, (*Pause)(nil).DueFrom(before, now))
	require.Equal(t, before, (&Pause{Since: p.Since}).DueFrom(before, now), "it has no end yet")
	require.Equal(t, before, (&Pause{Since: now.Add(1), Until: now.Add(2)}).DueFrom(before, now), "it has not begun")
}
