package runner

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/notify"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// pinged is a server that records the signals of a check, and their bodies.
type pinged struct {
	*httptest.Server
	mu      sync.Mutex
	signals []string
	bodies  []string
	seen    chan string
}

const checkID = "/5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278"

func newPinged(t *testing.T) *pinged {
	t.Helper()
	p := &pinged{seen: make(chan string, 99)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		defer p.mu.Unlock()
		signal := strings.TrimPrefix(r.URL.Path, checkID)
		p.signals, p.bodies = append(p.signals, signal), append(p.bodies, string(body))
		p.seen <- signal
	}))
	t.Cleanup(p.Close)
	return p
}

// take returns the signals so far, and forgets them.
func (p *pinged) take() (signals []string, bodies string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	signals, bodies = p.signals, strings.Join(p.bodies, "\n")
	p.signals, p.bodies = nil, nil
	return signals, bodies
}

// pinging returns a replica whose runs ping a server. The first run waits for its start.
func pinging(t *testing.T, p *pinged) *replica {
	t.Helper()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	r.job.Notify = &replicate.Notify{Ping: replicate.Secret(p.URL + checkID)}
	around, started := r.Around, sync.Once{}
	r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		started.Do(func() { // so that the order does not depend on speed
			select {
			case <-p.seen:
			case <-time.After(testenv.Timeout()):
				t.Error("no start")
			}
		})
		return around(ctx, op, names, do)
	}
	return r
}

func TestPings(t *testing.T) {
	t.Parallel()
	p := newPinged(t)
	r := pinging(t, p)
	environment := filepath.Join(t.TempDir(), "env")
	r.job.After = []replicate.Hook{{Command: []string{"/bin/sh", "-c", "env >" + environment + "; cat >>" + environment}}}
	run, err := r.scheduled(t)
	require.NoError(t, err)
	require.Empty(t, run.Notes)
	signals, bodies := p.take()
	require.Equal(t, []string{"/start", ""}, signals)
	require.Contains(t, bodies, "target t: done, 2 datasets sent")
	log, err := os.ReadFile(filepath.Join(r.dir, "j", "runs.jsonl"))
	require.NoError(t, err)
	env, err := os.ReadFile(environment)
	require.NoError(t, err)
	require.Contains(t, string(env), `"job":"j"`)
	for _, text := range []string{string(log), string(env)} {
		require.NotContains(t, text, checkID[1:])
	}

	r.now += 3600
	r.fail(zfs.OpReceive, "dst", errors.New("no space\r\n\x1b[2J left"))
	_, err = r.scheduled(t)
	require.Error(t, err)
	signals, bodies = p.take()
	require.Equal(t, "/fail", signals[len(signals)-1])
	require.Contains(t, bodies, "no space? ?[2J left\n")
	r.fail("", "", nil)

	r.pause(time.Time{}, false)
	_, err = r.scheduled(t)
	require.NoError(t, err)
	signals, bodies = p.take()
	require.Equal(t, []string{""}, signals, "a paused job is no failure")
	require.Contains(t, bodies, "paused until resume (new switch)")
	_, err = r.runner(t).Run(t.Context(), r.job, true)
	require.Error(t, err)
	signals, _ = p.take()
	require.Empty(t, signals, "a refused command")
	r.now += 8 * 24 * 3600
	_, err = r.scheduled(t)
	require.NoError(t, err)
	signals, _ = p.take()
	require.Equal(t, []string{"/log"}, signals, "a forgotten pause makes the server raise the alarm")

	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "j", "pause.json"), []byte("{"), 0o600))
	_, err = r.scheduled(t)
	require.Error(t, err)
	signals, bodies = p.take()
	require.Equal(t, []string{"/fail"}, signals)
	require.Contains(t, bodies, "cannot read the pause")
	last, err := statedir.Peek(r.dir, "j").LastRun()
	require.NoError(t, err)
	require.Equal(t, outcome.Failed, last.Outcome, "the log has it, too")
}

// TestStoppedRunPings expects that a run that a signal stopped is no failure.
func TestStoppedRunPings(t *testing.T) {
	t.Parallel()
	p := newPinged(t)
	r := pinging(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	around := r.Around
	r.Around = func(_ context.Context, op string, names []string, do func() error) error {
		if op == zfs.OpReceive {
			cancel()
			return ctx.Err()
		}
		return around(ctx, op, names, do)
	}
	run, err := r.runner(t).Run(ctx, r.job, true)
	require.Error(t, err)
	require.True(t, run.Stopped)
	signals, _ := p.take()
	require.Equal(t, "/log", signals[len(signals)-1])
}

// TestPingsNeverFailARun expects that a run ends as without a ping if the server is missing, or its URL
// is unreadable.
func TestPingsNeverFailARun(t *testing.T) {
	t.Parallel()
	missing := "http://" + testenv.RefusingAddress(t)
	for _, n := range []*replicate.Notify{{Ping: replicate.Secret(missing + checkID)}, {PingFile: "/nonexistent"}} {
		r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
		r.job.Notify = n
		at := r.runner(t)
		at.PingLimits = &notify.Limits{Attempt: time.Second, Total: time.Second, Tries: 1}
		var messages []string
		at.Env.Log = func(text string) { messages = append(messages, text) }
		run, err := at.Run(t.Context(), r.job, true)
		require.NoError(t, err)
		require.True(t, run.Succeeded())
		require.Contains(t, strings.Join(messages, "\n"), "ping")
		require.NotContains(t, strings.Join(messages, "\n"), checkID[1:])
	}
}

// mailing returns a replica whose sendmail stores each mail in a file, and a function that returns
// the subjects of new mails.
func mailing(t *testing.T, on string) (r *replica, subjects func() []string) {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "sendmail")
	testenv.WriteProgram(t, program, "#!/bin/sh\n[ \"$*\" = \"-t -i\" ] || exit 64\nexec cat >"+dir+"/$$.eml\n")
	r = newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	r.job.Notify = &replicate.Notify{Mail: []string{"root"}, MailOn: on, Sendmail: []string{program, "-t", "-i"}}
	return r, func() (out []string) {
		all, err := filepath.Glob(dir + "/*.eml")
		require.NoError(t, err)
		for _, name := range all {
			f, err := os.Open(name)
			require.NoError(t, err)
			m, err := mail.ReadMessage(f)
			require.NoError(t, err)
			require.NoError(t, errors.Join(f.Close(), os.Remove(name)))
			require.Len(t, m.Header, 7)
			out = append(out, m.Header.Get("Subject"))
		}
		return out
	}
}

// TestMailOnFailure expects a mail about the first failure, one each day, and about the next
// success. An error of another host cannot add a header.
func TestMailOnFailure(t *testing.T) {
	t.Parallel()
	r, subjects := mailing(t, "")
	hour := func() []string { r.now += 3600; _, _ = r.scheduled(t); return subjects() }
	require.Empty(t, hour())
	r.fail(zfs.OpReceive, "dst", errors.New("no space\r\nBcc: evil@example.org\r\n\r\nbody"))
	got := hour()
	require.Len(t, got, 1)
	require.Contains(t, got[0], "zxfer: j on "+localHost()+": failed: t: ")
	require.Contains(t, got[0], "Bcc: evil@example.org")
	for range 23 {
		require.Empty(t, hour())
	}
	require.Len(t, hour(), 1, "a day later")
	r.pause(time.Unix(r.now, 0).Add(30*time.Minute), false)
	_, err := r.scheduled(t)
	require.NoError(t, err)
	require.Empty(t, subjects(), "a paused run")
	r.fail("", "", nil)
	require.Equal(t, []string{"zxfer: j on " + localHost() + ": works again"}, hour())
	require.Empty(t, hour())
	require.NoError(t, r.runner(t).MailLast(t.Context(), r.job, ""))
	r.now += 1800
	require.NoError(t, r.runner(t).MailUnrecorded(t.Context(), r.job, "the run was killed: oom-kill"))
	require.Equal(t, []string{"zxfer: j on " + localHost() + ": failed: the run was killed: oom-kill"}, subjects())
	r.pause(time.Time{}, false)
	_, err = r.runner(t).Run(t.Context(), r.job, true)
	require.Error(t, err)
	require.Empty(t, subjects(), "a refused command does not mean that it works again")
}

// TestFullStateDirectory expects that a run whose record cannot be stored counts as failed, in its ping and
// in its mail.
func TestFullStateDirectory(t *testing.T) {
	t.Parallel()
	p := newPinged(t)
	r, subjects := mailing(t, "")
	r.job.Notify.Ping = replicate.Secret(p.URL + checkID)
	_, err := r.scheduled(t)
	require.NoError(t, err)
	log := filepath.Join(r.dir, "j", "runs.jsonl")
	require.NoError(t, os.Remove(log))
	require.NoError(t, os.Mkdir(log, 0o700)) // nothing can be appended
	r.now += 3600
	run, err := r.scheduled(t)
	require.ErrorContains(t, err, `job "j": cannot store the record of the run: `)
	require.Equal(t, outcome.Failed, run.Outcome)
	signals, bodies := p.take()
	require.Equal(t, "/fail", signals[len(signals)-1])
	require.Contains(t, bodies, "error: cannot store the record of the run")
	require.Len(t, subjects(), 1)
	require.NoError(t, os.Remove(log))
	r.now += 3600
	_, err = r.scheduled(t)
	require.NoError(t, err)
	require.Equal(t, []string{"zxfer: j on " + localHost() + ": works again"}, subjects())

	require.NoError(t, r.runner(t).MailLast(t.Context(), r.job, "it left no record"))
	require.Equal(t, []string{"zxfer: j on " + localHost() + ": failed: it left no record"}, subjects())
	r.now += 3600
	_, err = r.scheduled(t)
	require.NoError(t, err)
	require.Equal(t, []string{"zxfer: j on " + localHost() + ": works again"}, subjects())

	state := filepath.Join(r.dir, "j", "state.json")
	r.before = func(op string, _ []string) error {
		if op == zfs.OpReceive { // from now on, it cannot be replaced
			return errors.Join(os.RemoveAll(state), os.MkdirAll(state+"/x", 0o700))
		}
		return nil
	}
	r.now += 3600
	at := r.runner(t)
	at.NoMail = true // another process reads the log
	_, err = at.Run(t.Context(), r.job, true)
	require.Error(t, err)
	require.NoError(t, r.runner(t).MailLast(t.Context(), r.job, "it left no record"))
	got := subjects()
	require.Len(t, got, 1)
	require.Contains(t, got[0], "failed: cannot store the record of the run")
	r.now += 24 * 3600
	require.NoError(t, os.RemoveAll(filepath.Join(r.dir, "j")))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "j"), nil, 0o600)) // no directory
	_, err = r.scheduled(t)
	require.Error(t, err)
	signals, _ = p.take()
	require.Equal(t, "/fail", signals[len(signals)-1])
	require.Len(t, subjects(), 1)
}

func TestMailAlways(t *testing.T) {
	t.Parallel()
	r, subjects := mailing(t, "always")
	for range 2 {
		r.now += 3600
		_, err := r.scheduled(t)
		require.NoError(t, err)
		require.Equal(t, []string{"zxfer: j on " + localHost() + ": done"}, subjects())
	}
	at := r.runner(t)
	at.NoMail, r.now = true, r.now+3600
	_, err := at.Run(t.Context(), r.job, true)
	require.NoError(t, err)
	require.Empty(t, subjects(), "another command sends it")
	require.NoError(t, r.runner(t).MailLast(t.Context(), r.job, ""))
	require.Len(t, subjects(), 1)
	require.NoError(t, r.runner(t).MailLast(t.Context(), r.job, ""))
	require.Empty(t, subjects(), "once")
}

// TestMailNeverFailsARun expects that a mail that could not be sent is a note, and is sent after
// the next run.
func TestMailNeverFailsARun(t *testing.T) {
	t.Parallel()
	r, subjects := mailing(t, "always")
	r.job.Notify.Sendmail = []string{"/bin/sh", "-c", "echo no transport >&2; exit 75"}
	run, err := r.scheduled(t)
	require.NoError(t, err)
	require.Len(t, run.Notes, 1)
	require.Contains(t, run.Notes[0], "mail: /bin/sh: exit status 75: no transport")
	require.Empty(t, subjects())
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "j", "mail.json"), []byte("{"), 0o600), "a damaged record does not matter")
	r.job.Notify.Sendmail = []string{"/bin/true"}
	r.now += 3600
	run, err = r.scheduled(t)
	require.NoError(t, err)
	require.Empty(t, run.Notes)
}

func TestSendTest(t *testing.T) {
	t.Parallel()
	p := newPinged(t)
	r, subjects := mailing(t, "")
	r.job.Notify.Ping = replicate.Secret(p.URL + checkID)
	sent, err := r.runner(t).SendTest(t.Context(), r.job)
	require.NoError(t, err)
	require.Equal(t, []string{"ping to 127.0.0.1", "mail to root"}, sent)
	signals, _ := p.take()
	require.Equal(t, []string{"/log"}, signals, "it changes no state")
	require.Equal(t, []string{"zxfer: j on " + localHost() + ": test"}, subjects())

	shown, err := previewNotify(r.job)
	require.NoError(t, err)
	require.Equal(t, &NotifyPreview{Ping: "127.0.0.1", Mail: []string{"root"}, On: "failure"}, shown)
	r.job.Notify.Sendmail, r.job.Notify.Ping, r.job.Notify.PingFile = []string{"/nonexistent/sendmail"}, "", "/nonexistent/ping"
	_, err = previewNotify(r.job)
	require.ErrorContains(t, err, "notify.ping_file: open /nonexistent/ping: no such file")
	require.Contains(t, fault.HintOf(err), "create it: install -D -m 600 /dev/null /nonexistent/ping")
	require.ErrorContains(t, err, "notify.sendmail: ")
	_, err = r.runner(t).SendTest(t.Context(), r.job)
	require.Error(t, err)
}
