package notify

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/printable"
)

// Signal is a kind of ping. Its value is the end of the URL's path.
//
// https://healthchecks.io/docs/http_api/
type Signal string

// The signals. Log does not change the state of the check.
const (
	Start   Signal = "/start"
	Success Signal = ""
	Failure Signal = "/fail"
	Log     Signal = "/log"
)

// MaxBody is the number of bytes of a message that a ping carries. healthchecks stores 10 kB or
// more.
const MaxBody = 10_000

// Limits bound the pings of a run, which waits for the last one.
type Limits struct {
	Attempt time.Duration // for one request and its answer
	Total   time.Duration // for all attempts
	Pause   time.Duration // before the second attempt; it doubles
	Tries   int
}

// DefaultLimits returns the limits of a run.
func DefaultLimits() Limits {
	return Limits{Attempt: 8 * time.Second, Total: 25 * time.Second, Pause: time.Second, Tries: 3}
}

// maxHeader bounds the header of an answer in bytes. The body is not read.
const maxHeader = 16 << 10

// Pinger sends the pings of one run. Its methods are not for concurrent use.
type Pinger struct {
	Limits
	url    *url.URL
	run    string // ID by which the server joins the start with the end
	agent  string
	client *http.Client

	ending  chan struct{} // closed when the run ends
	started chan error    // nil without a start
}

// NewPinger returns a Pinger for a URL, whose errors name only the host. agent is the User-Agent.
func NewPinger(at *url.URL, agent string) *Pinger {
	return &Pinger{Limits: DefaultLimits(), url: at, run: newID(), agent: agent, client: &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader},
		// A redirect could send the secret to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// newID returns a random UUID (RFC 9562, version 4).
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Host returns the host of the URL, which is not secret.
func (p *Pinger) Host() string { return p.url.Hostname() }

// Start sends the start signal in the background, so that the run does not wait for it.
func (p *Pinger) Start(ctx context.Context) {
	p.started, p.ending = make(chan error, 1), make(chan struct{})
	go func() { p.started <- p.send(context.WithoutCancel(ctx), Start, "", p.ending) }()
}

// End sends the last signal of the run. It waits for the answer to a start in progress: if the
// server handled both at the same time, it could create two checks for one slug. An error concerns
// the last signal or, if it arrived, the start. End ignores the end of ctx, and takes Attempt and
// Total at most.
func (p *Pinger) End(ctx context.Context, s Signal, body string) error {
	var start error
	if p.started != nil {
		close(p.ending)
		if start = <-p.started; start != nil {
			start = fmt.Errorf("start: %w", start)
		}
	}
	return cmp.Or(p.Send(context.WithoutCancel(ctx), s, body), start)
}

// Send sends one signal, with retries.
func (p *Pinger) Send(ctx context.Context, s Signal, body string) error {
	return p.send(ctx, s, body, nil)
}

// send is Send. It does not retry after noRetry is closed.
func (p *Pinger) send(ctx context.Context, s Signal, body string, noRetry <-chan struct{}) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Total)
	defer cancel()
	wait := p.Pause
	for try := 1; ; try++ {
		again := false
		if again, err = p.try(ctx, s, body); err == nil || !again || try >= p.Tries {
			break
		}
		select {
		case <-time.After(wait):
			wait *= 2
			continue
		case <-noRetry:
		case <-ctx.Done():
		}
		break
	}
	if err != nil {
		err = p.withoutURL(err)
	}
	return err
}

// try sends one request, and reports whether another one may succeed.
func (p *Pinger) try(ctx context.Context, s Signal, body string) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Attempt)
	defer cancel()
	at := *p.url
	at.Path, at.RawPath = strings.TrimSuffix(at.Path, "/")+string(s), strings.TrimSuffix(at.EscapedPath(), "/")+string(s)
	q := at.Query()
	q.Set("rid", p.run)
	at.RawQuery = q.Encode()
	if len(body) > MaxBody {
		body = strings.ToValidUTF8(body[:MaxBody], "")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), strings.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header.Set("User-Agent", p.agent)
	req.Header.Set("Content-Type", "text/plain; charset=utf-8")
	answer, err := p.client.Do(req)
	if err != nil {
		return true, err
	}
	_ = answer.Body.Close()
	switch code := answer.StatusCode; {
	case code >= 200 && code < 300:
		return false, nil
	case code >= 300 && code < 400:
		return false, fault.Failf("write the final URL into the job file", "the server answered with a redirect, which zxfer does not follow")
	case code == http.StatusNotFound:
		return false, fault.Failf("compare the URL with the check's ping URL", "the server knows no such check (404)")
	default:
		again := code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
		return again, fmt.Errorf("the server answered %d %s", code, http.StatusText(code))
	}
}

// withoutURL returns an error without the URL: http.Client puts it into its errors.
func (p *Pinger) withoutURL(err error) error {
	hint := fault.HintOf(err)
	for {
		var of *url.Error
		if !errors.As(err, &of) {
			break
		}
		err = of.Err
	}
	text := err.Error()
	if errors.Is(err, context.DeadlineExceeded) {
		text = "no answer in time"
	}
	for _, secret := range []string{p.url.String(), p.url.RequestURI(), p.url.EscapedPath(), p.url.Path, strings.Trim(p.url.Path, "/"), p.url.RawQuery} {
		if len(secret) > 1 {
			text = strings.ReplaceAll(text, secret, "...")
		}
	}
	if len(text) > maxError {
		text = text[:maxError]
	}
	return fault.Failf(hint, "ping to %s: %s", p.Host(), printable.Line(strings.ToValidUTF8(text, "?")))
}

// maxError bounds the text of an error in bytes.
const maxError = 300
