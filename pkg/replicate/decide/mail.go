package decide

import "time"

// MailState is the state of a job in regard to mail about failures.
type MailState string

// The states.
const (
	MailQuiet   MailState = "no failure reported"
	MailFailing MailState = "failure reported"
)

// MailEvent is the end of a run, or of the time after which a failure is reported again.
type MailEvent string

// The events. A stopped run was ended by a signal, such as at a shutdown.
const (
	RunSucceeded MailEvent = "run succeeds"
	RunFailed    MailEvent = "run fails"
	RunStopped   MailEvent = "run is stopped"
)

// reminder is the time after which a further failed run sends a mail again.
const reminder = 24 * time.Hour

// Next returns the state after an event.
func (s MailState) Next(e MailEvent) MailState {
	switch e {
	case RunSucceeded:
		return MailQuiet
	case RunFailed:
		return MailFailing
	}
	return s
}

// Mails reports whether a run that ends with an event sends a mail, if the last one was sent at a
// time. always sends one after each run that was not stopped.
func (s MailState) Mails(e MailEvent, always bool, last, now time.Time) bool {
	overdue := e == RunFailed && (now.Sub(last) >= reminder || last.After(now))
	return e != RunStopped && (always || s.Next(e) != s || overdue)
}
