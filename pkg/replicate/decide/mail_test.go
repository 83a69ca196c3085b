package decide

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mailMachine returns the machine of MailState.
func mailMachine() Machine {
	return Machine{Name: "Mail about a job", States: []string{string(MailQuiet), string(MailFailing)},
		Events: []string{string(RunSucceeded), string(RunFailed), string(RunStopped)},
		Next: func(state, event string) (string, error) {
			return string(MailState(state).Next(MailEvent(event))), nil
		}}
}

// TestMails enumerates when a run sends a mail.
func TestMails(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		s             MailState
		e             MailEvent
		ago           time.Duration
		mails, always bool
	}{
		{MailQuiet, RunSucceeded, time.Hour, false, true},
		{MailQuiet, RunFailed, time.Hour, true, true},
		{MailQuiet, RunStopped, time.Hour, false, false},
		{MailFailing, RunSucceeded, time.Hour, true, true},
		{MailFailing, RunFailed, time.Hour, false, true},
		{MailFailing, RunFailed, 24 * time.Hour, true, true},
		{MailFailing, RunFailed, -time.Hour, true, true}, // the clock was wrong
		{MailFailing, RunStopped, 48 * time.Hour, false, false},
	} {
		require.Equal(t, c.mails, c.s.Mails(c.e, false, now.Add(-c.ago), now), fmt.Sprint(c))
		require.Equal(t, c.always, c.s.Mails(c.e, true, now.Add(-c.ago), now), fmt.Sprint(c))
	}
}
