package runner

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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
	"zxfer/pkg/replicate/decide"
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
		if text, err = notify.ReadSecret(where); err != nil {
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
		r.Log(fmt.Sprintf("%s: no ping: %v", j.Name, err))
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
		r.Log(j.Name + ": " + text)
	}
	if p != nil {
		if signal, body, send := r.signal(j, rec, err); send {
			done := r.reporter(j.Name, "").Activity(j.Name + ": ping to " + p.Host())
			note(p.End(ctx, signal, body))
			done()
		}
	}
	if !r.NoMail {
		note(r.MailLast(ctx, j))
	}
}

// signal returns the ping at the end of a run, with its message.
func (r *Runner) signal(j *replicate.Job, rec *statedir.Run, err error) (s notify.Signal, body string, send bool) {
	switch {
	case rec == nil && (err == nil || fault.ClassOf(err) == fault.Refused || fault.ClassOf(err) == fault.Interrupted):
		return "", "", false // another run is in progress, or the job is paused
	case rec == nil:
		return notify.Failure, printable.Text(err.Error()), true
	case rec.Paused != "" && rec.Succeeded():
		if p, _ := statedir.Paused(r.StateDir, j.Name, r.Now()); p.Forgotten(r.Now()) {
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

// MailLast sends the mail that the job's last run is due, if any. Each run is considered once.
func (r *Runner) MailLast(ctx context.Context, j *replicate.Job) error {
	if !j.Notify.HasMail() {
		return nil
	}
	store := statedir.Peek(r.StateDir, j.Name)
	last, err := store.LastRun()
	if err != nil || last == nil {
		return err
	}
	before, err := store.Mailed()
	if err != nil || before.Run.Equal(last.Started) {
		return err
	}
	event := decide.RunFailed
	switch {
	case last.Succeeded():
		event = decide.RunSucceeded
	case last.Stopped:
		event = decide.RunStopped
	}
	return r.mailAbout(ctx, j, store, before, last, event)
}

// MailKilled sends a mail about a run that was killed and left no record. result is the reason in
// systemd's words, such as "oom-kill".
func (r *Runner) MailKilled(ctx context.Context, j *replicate.Job, result string) error {
	if !j.Notify.HasMail() {
		return nil
	}
	store := statedir.Peek(r.StateDir, j.Name)
	before, err := store.Mailed()
	if err != nil {
		return err
	}
	now := r.Now()
	run := &statedir.Run{Job: j.Name, Source: j.Source, Started: now, Ended: now, Outcome: outcome.Failed, Error: "the run was killed: " + result}
	return r.mailAbout(ctx, j, store, before, run, decide.RunFailed)
}

// mailAbout sends the mail that a run is due, and records it.
func (r *Runner) mailAbout(ctx context.Context, j *replicate.Job, store *statedir.Store, before *statedir.Mailed, run *statedir.Run, event decide.MailEvent) error {
	state := decide.MailQuiet
	if before.Failing {
		state = decide.MailFailing
	}
	next, _ := state.Next(event) // it never fails
	now := &statedir.Mailed{Run: run.Started, At: before.At, Failing: next == decide.MailFailing}
	if state.Mails(event, j.Notify.WhetherAlways(), before.At, r.Now()) {
		now.At = r.Now().UTC().Truncate(time.Second)
		if err := r.SendMail(ctx, j, subject(run, state), summary(run)); err != nil {
			return err
		}
	}
	return store.SaveMailed(now)
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
	m := notify.Mail{To: j.Notify.Mail, Subject: subject, Body: body, Date: r.Now()}
	h := &replicate.Hook{Command: j.Notify.SendmailCommand(), Timeout: replicate.Duration(mailTimeout)}
	if err := runHook(context.WithoutCancel(ctx), h, []string{"LC_ALL=C"}, bytes.NewReader(m.Bytes())); err != nil {
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
			line("target %s: %s, %d datasets sent (%s), %d failed", t.Target, t.Outcome, t.Sent, size.Text(t.Bytes), t.Failed)
		}
	}
	for _, f := range run.Failures() {
		failure(strings.ReplaceAll(f.Target+": "+f.Source+": "+f.Error, ": : ", ": "), f.Hint)
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

// recordFailure appends a record of a run that failed before it read the state.
func (r *Runner) recordFailure(j *replicate.Job, store *statedir.Store, err error) error {
	now := r.Now().UTC().Truncate(time.Second)
	run := &statedir.Run{Job: j.Name, Source: j.Source, Started: now, Targets: []*statedir.TargetRun{}}
	run.Conclude(now, err, false)
	if stored := store.Append(run); stored != nil {
		err = errors.Join(err, stored)
	}
	return err
}
