package runner

import (
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate/notify"
	"zxfer/pkg/replicate/session"
)

// Runner runs jobs. Its runs share connections.
type Runner struct {
	Env *session.Env
	// Scheduled means that a timer started the runs. IgnorePause makes them ignore pauses and closed
	// bandwidth windows.
	Scheduled, IgnorePause bool
	// NoMail means that another command sends the mail about the runs: MailLast.
	NoMail bool
	// Agent is the User-Agent of pings. PingLimits, if not nil, replaces notify.DefaultLimits.
	Agent      string
	PingLimits *notify.Limits
}

// New returns a Runner with an Env of its own, which the caller closes.
func New(stateDir string, open hosts.Opener, now func() time.Time, log func(string)) *Runner {
	return &Runner{Env: session.NewEnv(stateDir, open, now, log)}
}
