package runner

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/printable"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/hook"
	"zxfer/pkg/replicate/notify"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/size"
)

// PingURL returns the ping URL of a job, whose text is secret.
func PingURL(j *replicate.Job) (*url.URL, error) {
	text, where := string(j.Notify.Ping), "notify.ping"
	if j.Notify.PingFile != "" {
		var err error
		where = j.Notify.PingFile
		if text, err = notify.ReadSecret(where, j.User); err != nil {
			return nil, fmt.Errorf("notify.ping_file: %w", err)
		}
	}
	at, err := j.Notify.PingURL(text, j.Name)
	if err != nil {
		return nil, statedir.UsageToFailed(fmt.Errorf("%s: %w", where, err))
	}
	return at, nil
}

// pinger returns the Pinger of a run, or nil. Problems only cause a message.
func (r *Runner) pinger(j *replicate.Job) *notify.Pinger {
	if !j.Notify.HasPing() {
		return nil
	}
	at, err := PingURL(j)
	if err != nil {
		r.Env.Log(fmt.Sprintf("%s: no ping: %v", j.Name, err))
		return nil
	}
	p := notify.NewPinger(at, r.Agent)
	if r.PingLimits != nil {
		p.Limits = *r.PingLimits
	}
	return p
}

// notifyEnd reports the end of a run: rec is its record, or nil if it did not start because of
// err. Failures to report are notes.
func (r *Runner) notifyEnd(ctx context.Context, j *replicate.Job, p *notify.Pinger, rec *statedir.Run, err error) {
	note := func(err error) {
		if err == nil {
			return
		}
		text := replicate.Keys(err.Error())
		if rec != nil {
			rec.Notes = append(rec.Notes, text)
		}
		r.Env.Log(j.Name + ": " + text)
	}
	if p != nil {
		if signal, body, send := r.signal(j, rec, err); send {
			done := r.Env.ReportTo(j.Name, "").Activity(j.Name + ": ping to " + p.Host())
			note(p.End(ctx, signal, body))
			done()
		}
	}
	switch {
	case r.NoMail:
	case rec != nil && !rec.Skipped:
		note(r.mailAbout(ctx, j, rec)) // the log lacks it if the state directory is full
	case failedUnrecorded(rec, err):
		note(r.MailLast(ctx, j, err.Error()))
	default:
		note(r.MailLast(ctx, j, ""))
	}
}

// failedUnrecorded reports whether a run failed without a record. Otherwise, a run without one was refused
// or interrupted: another run is in progress, or the job is paused.
func failedUnrecorded(rec *statedir.Run, err error) bool {
	return rec == nil && err != nil && fault.ClassOf(err) != fault.Refused && fault.ClassOf(err) != fault.Interrupted
}

// signal returns the ping at the end of a run, with its message.
func (r *Runner) signal(j *replicate.Job, rec *statedir.Run, err error) (s notify.Signal, body string, send bool) {
	switch {
	case failedUnrecorded(rec, err):
		return notify.Failure, printable.Text(err.Error()), true
	case rec == nil:
		return "", "", false
	case rec.Paused != "" && rec.Succeeded():
		if p, _ := statedir.Paused(r.Env.StateDir, j.Name, r.Env.Now()); p.Forgotten(r.Env.Now()) {
			return notify.Log, summary(rec) + "The pause has no end and lasts longer than a week, so that this is not a success.\n", true
		}
		return notify.Success, summary(rec), true
	case rec.Succeeded():
		return notify.Success, summary(rec), true
	case rec.Stopped:
		return notify.Log, summary(rec), true
	}
	return notify.Failure, summary(rec), true
}

// MailLast sends the mail that the job's last run is due, if any. Each run is considered once. failed, if
// not "", is the reason why a run failed that may have left no record.
func (r *Runner) MailLast(ctx context.Context, j *replicate.Job, failed string) error {
	if !j.Notify.HasMail() {
		return nil
	}
	store := statedir.Peek(r.Env.StateDir, j.Name)
	last, err := store.LastRun()
	before, unreadable := store.Mailed()
	err = cmp.Or(err, unreadable)
	switch {
	case err != nil && failed == "":
		return err
	case err == nil && last != nil && !before.Run.Equal(last.Started):
		return r.mailAbout(ctx, j, last)
	case failed != "":
		return r.MailUnrecorded(ctx, j, failed)
	}
	return nil
}

// MailUnrecorded sends a mail about a run that left no record, for example because it was killed. why is
// its error.
func (r *Runner) MailUnrecorded(ctx context.Context, j *replicate.Job, why string) error {
	if !j.Notify.HasMail() {
		return nil
	}
	store := statedir.Peek(r.Env.StateDir, j.Name)
	before, err := store.Mailed()
	if err != nil {
		before = &statedir.Mailed{} // the state directory may be the reason of the failure
	}
	if last, err := store.LastRun(); err == nil && last != nil {
		before.Run = last.Started // otherwise a success before this run would end the failure
	}
	now := r.Env.Now()
	run := &statedir.Run{Job: j.Name, Source: j.Source, Started: now, Ended: now, Outcome: outcome.Failed, Error: why}
	return r.mail(ctx, j, store, before, run, decide.RunFailed)
}

// mailAbout sends the mail that a recorded run is due.
func (r *Runner) mailAbout(ctx context.Context, j *replicate.Job, run *statedir.Run) error {
	if !j.Notify.HasMail() {
		return nil
	}
	store := statedir.Peek(r.Env.StateDir, j.Name)
	m, err := store.Mailed()
	if err != nil {
		return err
	}
	m.Run = run.Started
	event := decide.RunFailed
	switch {
	case run.Succeeded():
		event = decide.RunSucceeded
	case run.Stopped:
		event = decide.RunStopped
	}
	return r.mail(ctx, j, store, m, run, event)
}

// mail sends the mail that a run is due after an event, and saves m, which is the record before.
func (r *Runner) mail(ctx context.Context, j *replicate.Job, store *statedir.Store, m *statedir.Mailed, run *statedir.Run, event decide.MailEvent) error {
	state := decide.MailQuiet
	if m.Failing {
		state = decide.MailFailing
	}
	m.Failing = state.Next(event) == decide.MailFailing
	if state.Mails(event, j.Notify.WhetherAlways(), m.At, r.Env.Now()) {
		m.At = r.Env.Now().UTC().Truncate(time.Second)
		if err := r.SendMail(ctx, j, subject(run, state), summary(run)); err != nil {
			return err
		}
	}
	return store.SaveMailed(m)
}

// subject returns the subject of the mail about a run.
func subject(run *statedir.Run, before decide.MailState) string {
	what := run.Outcome
	if run.Succeeded() && before == decide.MailFailing {
		what = "works again"
	} else if !run.Succeeded() {
		what += ": " + run.FirstError()
	}
	return fmt.Sprintf("zxfer: %s on %s: %s", run.Job, localHost(), what)
}

func localHost() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown host"
	}
	return name
}

// mailTimeout limits sendmail, which only has to queue the message.
const mailTimeout = time.Minute

// SendMail sends a mail to the recipients of a job by the host's sendmail.
func (r *Runner) SendMail(ctx context.Context, j *replicate.Job, subject, body string) error {
	m := notify.Mail{To: j.Notify.Mail, Subject: subject, Body: body, Date: r.Env.Now()}
	h := &replicate.Hook{Command: j.Notify.SendmailCommand(), Timeout: calendar.Duration(mailTimeout)}
	if err := hook.Pipe(context.WithoutCancel(ctx), h, []string{"LC_ALL=C"}, bytes.NewReader(m.Bytes())); err != nil {
		return fmt.Errorf("mail: %w", err)
	}
	return nil
}

// maxLines bounds the errors in a summary.
const maxLines = 100

// summary describes a run for people, one fact on each line.
func summary(run *statedir.Run) string {
	var b strings.Builder
	line := func(format string, args ...any) {
		if strings.Count(b.String(), "\n") < maxLines {
			b.WriteString(printable.Line(fmt.Sprintf(format, args...)) + "\n")
		}
	}
	line("job %s on %s, source %s: %s", run.Job, localHost(), run.Source, run.Outcome)
	line("started %s, took %s", run.Started.Local().Format(time.RFC1123Z), run.Ended.Sub(run.Started))
	if run.Paused != "" {
		line("%s", run.Paused)
	}
	failure := func(text, hint string) {
		line("error: %s", text)
		for h := range strings.Lines(replicate.Keys(hint)) {
			line("  hint: %s", h)
		}
	}
	if run.Error != "" {
		failure(run.Error, run.Hint)
	}
	for _, t := range run.Targets {
		switch {
		case t.Paused != "":
			line("target %s: %s", t.Target, t.Paused)
		case t.Outcome != "":
			line("target %s: %s, %d datasets sent (%s), %s", t.Target, t.Outcome, t.Sent, size.Text(t.Bytes), t.FailureText())
		}
	}
	for _, f := range run.Failures() {
		where := f.Target
		if f.Source != "" {
			where += ": " + f.Source
		}
		failure(where+": "+f.Error, f.Hint)
	}
	for _, d := range run.Damaged {
		line("data errors: %s", d.Error)
	}
	for _, n := range run.Notes {
		line("note: %s", n)
	}
	return b.String()
}

// SendTest sends a ping that changes no state, and a mail, for a job.
func (r *Runner) SendTest(ctx context.Context, j *replicate.Job) (sent []string, err error) {
	text := fmt.Sprintf("This is a test of job %s on %s. No run has failed.\n", j.Name, localHost())
	var errs []error
	if j.Notify.HasPing() {
		at, err := PingURL(j)
		if err == nil {
			p := notify.NewPinger(at, r.Agent)
			if err = p.Send(ctx, notify.Log, text); err == nil {
				sent = append(sent, "ping to "+p.Host())
			}
		}
		errs = append(errs, err)
	}
	if j.Notify.HasMail() {
		err := r.SendMail(ctx, j, "zxfer: "+j.Name+" on "+localHost()+": test", text)
		if err == nil {
			sent = append(sent, "mail to "+strings.Join(j.Notify.Mail, ", "))
		}
		errs = append(errs, err)
	}
	if err := outcome.Join(errs...); err != nil {
		return sent, fmt.Errorf("job %q: %w", j.Name, err)
	}
	return sent, nil
}

// NotifyPreview describes the messages about runs of a job.
type NotifyPreview struct {
	Ping string   `json:"ping,omitempty"` // host of the URL
	Mail []string `json:"mail,omitempty"`
	On   string   `json:"mail_on,omitempty"`
}

// previewNotify describes the messages, and checks what they need on this host.
func previewNotify(j *replicate.Job) (*NotifyPreview, error) {
	if j.Notify == nil {
		return nil, nil
	}
	p := &NotifyPreview{Mail: j.Notify.Mail}
	var errs []error
	if j.Notify.HasPing() {
		at, err := PingURL(j)
		if errs = append(errs, err); err == nil {
			p.Ping = at.Hostname()
		}
	}
	if j.Notify.HasMail() {
		p.On = cmp.Or(j.Notify.MailOn, "failure")
		if _, err := exec.LookPath(j.Notify.SendmailCommand()[0]); err != nil {
			errs = append(errs, fault.Failf("install a mail transfer agent, for example: apt install msmtp-mta", "notify.sendmail: %w", err))
		}
	}
	return p, outcome.Join(errs...)
}
