package notify

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
)

// secret is the UUID of the check.
const secret = "5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278"

// hcServer implements the calls of healthchecks' pinging API that zxfer uses, and refuses all others.
//
// https://healthchecks.io/docs/http_api/
type hcServer struct {
	*httptest.Server
	mu    sync.Mutex
	calls []string // signal, and the body
	runs  map[string]bool
}

func newServer(t *testing.T) *hcServer {
	t.Helper()
	s := &hcServer{runs: map[string]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, 100_001))
		signal, ours := strings.CutPrefix(r.URL.Path, "/"+secret)
		rid := r.URL.Query().Get("rid")
		switch {
		case !ours:
			http.NotFound(w, r)
			return
		case r.Method != http.MethodPost || err != nil || len(body) > 100_000 || !utf8.Valid(body) || r.URL.Query().Get("create") != "1",
			!regexp.MustCompile(`^(/start|/fail|/log|)$`).MatchString(signal),
			!regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(rid):
			http.Error(w, "invalid url format", http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.runs[rid] = true
		s.calls = append(s.calls, signal+" "+string(body))
		_, _ = io.WriteString(w, "OK")
	}))
	t.Cleanup(s.Close)
	return s
}

func pinger(t *testing.T, at string) *Pinger {
	t.Helper()
	u, err := url.Parse(at)
	require.NoError(t, err)
	p := NewPinger(u, "zxfer/test")
	p.Limits = Limits{Attempt: testenv.Timeout(), Total: 2 * testenv.Timeout(), Pause: time.Millisecond, Tries: 3}
	return p
}

func TestPings(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, end := range []Signal{Success, Failure, Log} {
		p := pinger(t, s.URL+"/"+secret+"/?create=1")
		p.Start(t.Context())
		require.NoError(t, <-p.started)
		p.started <- nil
		require.NoError(t, p.End(t.Context(), end, "grün\n"))
	}
	require.Equal(t, []string{"/start ", " grün\n", "/start ", "/fail grün\n", "/start ", "/log grün\n"}, s.calls)
	require.Len(t, s.runs, 3, "each run has an ID")
	p := pinger(t, s.URL+"/"+secret+"?create=1")
	require.NoError(t, p.Send(t.Context(), Success, strings.Repeat("ü", MaxBody)))
	require.LessOrEqual(t, len(s.calls[6]), MaxBody+1)
	err := pinger(t, s.URL+"/11111111-d4c7-4bf5-bcc8-b8d8a82ea278").Send(t.Context(), Success, "")
	require.ErrorContains(t, err, "ping to 127.0.0.1: the server knows no such check (404)")
	require.NotEmpty(t, fault.HintOf(err))
}

// requireHidden expects an error without the secret.
func requireHidden(t *testing.T, err error, want string) {
	t.Helper()
	require.ErrorContains(t, err, want)
	for _, form := range []string{"%v", "%+v", "%#v", "%q"} {
		require.NotContains(t, fmt.Sprintf(form, err), secret[9:])
	}
	require.NotContains(t, err.Error(), "\n")
	require.LessOrEqual(t, len(err.Error()), maxError+100)
}

// TestHostileServers expects that no server can block a run, learn the secret of another, or put text into
// a message.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	var leaked sync.Map
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { leaked.Store(r.URL.Path, true) }))
	t.Cleanup(other.Close)
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		}
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string // "" = success
	}{
		"another host": {redirect(other.URL + "/" + secret), "answered with a redirect"},
		"a file":       {redirect("file:///etc/passwd"), "answered with a redirect"},
		"itself": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String(), http.StatusPermanentRedirect)
		}, "answered with a redirect"},
		"a broken one": {redirect("http://\x1b[2J"), "ping to 127.0.0.1"},
		"server error": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "x\x1b[2J", http.StatusBadGateway) }, "answered 502 Bad Gateway"},
		"unknown code": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) }, "answered 799"},
		"endless answer": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(c.handler)
			defer s.Close()
			err := pinger(t, s.URL+"/"+secret).Send(t.Context(), Success, "")
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			requireHidden(t, err, c.want)
		})
	}
	t.Cleanup(func() {
		leaked.Range(func(path, _ any) bool { t.Errorf("a redirect was followed: %v", path); return true })
	})
}

// TestRetries expects that an error of the server is retried, and a refusal is not.
func TestRetries(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]int{500: 3, 429: 3, 503: 3, 400: 1, 404: 1, 409: 1, 302: 1} {
		asked := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { asked++; w.WriteHeader(code) }))
		require.Error(t, pinger(t, s.URL+"/"+secret).Send(t.Context(), Success, ""))
		s.Close()
		require.Equal(t, want, asked, code)
	}
	tries := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if tries++; tries == 1 {
			w.WriteHeader(500)
		}
	}))
	defer s.Close()
	require.NoError(t, pinger(t, s.URL+"/"+secret).Send(t.Context(), Success, ""))
	require.Equal(t, 2, tries)
}

// rawServer accepts connections and passes each to serve.
func rawServer(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}

// TestSilentServer expects that a server that never answers ends neither the start nor the run. The
// clock is fake, so that the server always reads the request before the time of the ping ends.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan string, 99)
		p := pinger(t, "http://127.0.0.1/"+secret)
		p.Limits = DefaultLimits()
		p.client.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				r := bufio.NewReader(far)
				line, _ := r.ReadString('\n')
				asked <- line
				_, _ = io.Copy(io.Discard, r)
			}()
			return near, nil
		}
		began := time.Now()
		p.Start(t.Context())
		require.Contains(t, <-asked, "/start?rid=")
		require.Zero(t, time.Since(began), "the run does not wait for the start")
		requireHidden(t, p.End(t.Context(), Success, ""), "ping to 127.0.0.1: no answer in time")
		require.NotContains(t, <-asked, "/start?rid=")
		require.LessOrEqual(t, time.Since(began), p.Attempt+p.Total)
	})
}

// TestStrangeProtocols covers answers that are not HTTP, endless headers, closed ports and unknown
// certificates.
func TestStrangeProtocols(t *testing.T) {
	t.Parallel()
	endless := rawServer(t, func(c net.Conn) {
		defer c.Close()
		_, _ = bufio.NewReader(c).ReadString('\n')
		for _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n"); err == nil; {
			_, err = io.WriteString(c, "X-More: "+strings.Repeat("x", 1000)+"\r\n")
		}
	})
	requireHidden(t, pinger(t, "http://"+endless+"/"+secret).Send(t.Context(), Success, ""), "header")
	garbage := rawServer(t, func(c net.Conn) {
		_, _ = bufio.NewReader(c).ReadString('\n')
		_, _ = io.WriteString(c, "\x1b[2J /"+secret+" \r\nBcc: x\r\n\r\n")
		_ = c.Close()
	})
	requireHidden(t, pinger(t, "http://"+garbage+"/"+secret).Send(t.Context(), Success, ""), "ping to 127.0.0.1")
	requireHidden(t, pinger(t, "http://"+testenv.RefusingAddress(t)+"/"+secret).Send(t.Context(), Success, ""), "connection refused")
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	defer tls.Close()
	requireHidden(t, pinger(t, tls.URL+"/"+secret).Send(t.Context(), Success, ""), "certificate")
}

// TestEndWaitsForStart expects that the server never handles the start and the end of a run at the same
// time: with create=1, healthchecks 4.3 creates two checks for the slug then, and refuses later pings
// as ambiguous.
func TestEndWaitsForStart(t *testing.T) {
	t.Parallel()
	arrived, answer := make(chan bool, 1), make(chan bool)
	var mu sync.Mutex
	var order []string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/start") {
			arrived <- true
			<-answer
		}
		mu.Lock()
		defer mu.Unlock()
		order = append(order, strings.TrimPrefix(r.URL.Path, "/"+secret))
	}))
	defer s.Close()
	p := pinger(t, s.URL+"/"+secret)
	p.Start(t.Context())
	<-arrived
	ended := make(chan error, 1)
	go func() { ended <- p.End(t.Context(), Failure, "") }()
	<-p.ending
	close(answer)
	require.NoError(t, <-ended)
	require.Equal(t, []string{"/start", "/fail"}, order)
}

// TestStartDoesNotOutliveRun expects that a start cannot arrive after the end.
func TestStartDoesNotOutliveRun(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var order []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		order = append(order, r.URL.Path)
		first := len(order) == 1
		mu.Unlock()
		if first {
			w.WriteHeader(500) // the start would be retried
		}
	}))
	defer s.Close()
	p := pinger(t, s.URL+"/"+secret)
	p.Pause = testenv.Timeout()
	p.Start(t.Context())
	require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == 1 }, testenv.Timeout(), time.Millisecond)
	ended, cancel := context.WithCancel(t.Context())
	cancel() // the run was interrupted
	require.ErrorContains(t, p.End(ended, Failure, ""), "start: ")
	require.Equal(t, []string{"/" + secret + "/start", "/" + secret + "/fail"}, order)
}

func TestReadSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "ping")
	_, err := ReadSecret(name, "")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, odd := ReadSecret("/nonexistent/it's; rm -rf x", "")
	require.Equal(t, "create it: install -D -m 600 /dev/null '/nonexistent/it'\\''s; rm -rf x'\nwrite the ping URL of the check into its first line", fault.HintOf(odd))
	write := func(text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		require.NoError(t, os.Chmod(name, mode))
	}
	for _, mode := range []os.FileMode{0o600, 0o400, 0o640} {
		write(" https://hc.example/x \nmore\n", mode)
		text, err := ReadSecret(name, "")
		require.NoError(t, err)
		require.Equal(t, "https://hc.example/x", text)
	}
	for _, mode := range []os.FileMode{0o644, 0o660, 0o604, 0o602, 0o777} {
		write("https://hc.example/x", mode)
		_, err := ReadSecret(name, "")
		require.ErrorContains(t, err, "other users may read it", "%o", mode)
		require.Equal(t, "chmod g-w,o= "+name, fault.HintOf(err))
	}
	for _, text := range []string{"", "\nhttps://hc.example/x", strings.Repeat("x", maxSecret+1)} {
		write(text, 0o600)
		_, err := ReadSecret(name, "")
		require.ErrorContains(t, err, "its first line is empty")
	}
	_, err = ReadSecret(dir, "")
	require.ErrorContains(t, err, "not a regular file")
}

// TestSecretOfAccount expects that root reads the file of a job's account, and that no hint takes it away from
// that account.
func TestSecretOfAccount(t *testing.T) {
	t.Parallel()
	nobody, err := user.Lookup("nobody")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("requires root and the account nobody")
	}
	uid, err := strconv.Atoi(nobody.Uid)
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "ping")
	require.NoError(t, os.WriteFile(name, []byte("https://hc.example/x"), 0o600))
	require.NoError(t, os.Chown(name, uid, 0))
	_, err = ReadSecret(name, "nobody")
	require.NoError(t, err)
	_, err = ReadSecret("/nonexistent/x", "nobody")
	require.Contains(t, fault.HintOf(err), "create it: install -D -m 600 -o nobody /dev/null /nonexistent/x\n")
	for account, owner := range map[string]string{"": "root", "daemon": "daemon"} {
		_, err = ReadSecret(name, account)
		require.ErrorContains(t, err, "belongs to another user")
		require.Equal(t, "chown "+owner+" "+name, fault.HintOf(err))
	}
}
