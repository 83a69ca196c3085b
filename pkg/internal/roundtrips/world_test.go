package roundtrips

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/transport/tcp/tcptest"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

const oneWay = 50 * time.Millisecond

// world has the local host with the pool "tank" and the remote host beta with the pool "vault".
// Everything but the network takes no time.
type world struct {
	t           *testing.T
	net         *tcptest.Network
	local, beta *zfsmem.Host

	estimate []uint64 // replaces the estimates of the local host, if not nil
	holds    bool     // beta keeps connections without data open
	// losesOffers is how many offers of a listener the remote shell does not survive.
	losesOffers int
	rate        int // of the remote shell to beta in bytes per second, 0 = unlimited

	mu     sync.Mutex
	login  time.Time // when the remote shell started the agent
	logins int
	shell  *shell // the last one
	events []event
}

// event is something that happened in a command, with its start and end.
type event struct {
	start, end time.Time
	text       string
}

// inWorld runs f with a world on a fake clock.
func inWorld(t *testing.T, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: &tcptest.Network{OneWay: oneWay}, local: zfsmem.New("tank", "tank/a", "vault"), beta: zfsmem.New("vault", "tank", "tank/a")}
		w.observe(w.local, "local")
		w.observe(w.beta, "beta")
		f(w)
	})
}

func (w *world) hosts() []*zfsmem.Host { return []*zfsmem.Host{w.local, w.beta} }

// end is a host of the world.
type end struct {
	*hosts.Local
	w     *world
	facts hosts.Facts
}

const localAddress, betaAddress = "10.0.0.1", "10.0.0.2"

func (w *world) host(of *zfsmem.Host, address string, facts hosts.Facts) *end {
	l := hosts.On(of, "test", func(line string) { w.t.Log(line) })
	l.SetStack(w.net.Host(address))
	facts.Version, facts.ZFS, facts.Root, facts.Hostname = "test", "2.3.9-1", true, address
	facts.Boot, facts.TCPReadMax, facts.TCPWriteMax, facts.Congestion = address, 32<<20, 32<<20, []string{"cubic"}
	return &end{l, w, facts}
}

func (e *end) Run(ctx context.Context, r *hosts.Request) error {
	if e.w.estimate != nil && r.Op.Name() == hosts.OpEstimate.Name() {
		*r.Answer.(*[]uint64) = e.w.estimate
		return nil
	}
	if task, ok := r.Args.(hosts.Task); ok && task.To == (hosts.Nothing{}) && e.w.holds {
		<-ctx.Done()
		return ctx.Err()
	}
	if r.Op.Name() == hosts.OpOffer.Name() && e.w.losesOffers > 0 {
		e.w.losesOffers--
		_ = e.w.shell.Conn.Close() // never fails
		return hosts.ErrLost
	}
	known := func(context.Context, hosts.None) (hosts.Facts, error) { return e.facts, nil }
	return hoststest.Run(ctx, e.Local, r, hoststest.With(hosts.OpFacts, known), hoststest.With(hosts.OpHostFacts, known),
		hoststest.With(hosts.OpCapture, func(context.Context, bool) (string, error) { return "-- proc/version --\nLinux\n", nil }))
}

// Open opens the local host, or logs in to beta.
func (w *world) Open(ctx context.Context, a hosts.Address) (hosts.Host, error) {
	if a.Host == "" {
		return w.host(w.local, localAddress, hosts.Facts{}), nil
	}
	near, far := w.net.Pipe()
	life, stop := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		s := agent.Server{Host: w.host(w.beta, betaAddress, hosts.Facts{SSHLocal: betaAddress, SSHPeer: localAddress}), Version: "test"}
		_ = s.Serve(life, far, far)
		_ = far.Close()
	}()
	remote := &shell{near, served, stop, w.rate}
	r, err := agent.NewRemote(ctx, a.Host, remote, func(line string) { w.t.Log(line) })
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logins++
	w.shell = remote
	if w.login.IsZero() {
		w.login = time.Now()
	}
	return &recorded{r, w}, nil
}

func (w *world) Relay(context.Context, hosts.Address, string, func(error)) (string, error) {
	return "", fault.Refusef("", "beta does not forward connections")
}

// shell is the remote shell that started the agent.
type shell struct {
	*tcptest.Conn
	served chan struct{}
	stop   func()
	rate   int
}

// Write takes as long as the rate permits.
func (s *shell) Write(p []byte) (n int, err error) {
	for s.rate > 0 && len(p)-n > s.rate && err == nil {
		_, err = s.Conn.Write(p[n : n+s.rate])
		n += s.rate
		time.Sleep(time.Second)
	}
	if err != nil {
		return n, err
	}
	k, err := s.Conn.Write(p[n:])
	return n + k, err
}

// Close ends the agent's input and waits for the end of its output, as for the exit status of ssh.
func (s *shell) Close() error {
	_ = s.CloseWrite()
	<-s.served
	time.Sleep(oneWay)
	s.stop()
	return s.Conn.Close()
}

// Leave ends the agent's input.
func (s *shell) Leave() {
	_ = s.CloseWrite()
	go func() {
		<-s.served
		s.stop()
	}()
}

// recorded is a remote host whose calls the world records.
type recorded struct {
	*agent.Remote
	w *world
}

func (r *recorded) Run(ctx context.Context, q *hosts.Request) error {
	start := time.Now()
	err := r.Remote.Run(ctx, q)
	names := []string{"`" + q.Op.Name() + "`"}
	if list, ok := q.Args.(hosts.ChangeList); ok {
		names = nil
		for _, c := range list.Changes {
			names = append(names, "`"+c.Op.Name()+"`")
		}
		if list.List != nil {
			names = append(names, "`"+hosts.OpList.Name()+"`")
		}
	}
	r.w.record(start, fmt.Sprintf("%s, %s", strings.Join(names, ", "), r.Name()))
	return err
}

func (r *recorded) Close() error {
	start := time.Now()
	err := r.Remote.Close()
	r.w.record(start, "end of the agent")
	return err
}

func (w *world) record(start time.Time, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, event{start, time.Now(), text})
}

// trips returns a duration in round trips.
func (w *world) trips(d time.Duration) float64 { return float64(d) / float64(w.net.RTT()) }

// measure runs a command with new connections. It returns its round trips after the login, and the
// timeline in round trips.
func (w *world) measure(command func(at *hosts.Set) error) (float64, string) {
	w.login, w.events = time.Time{}, nil
	at := hosts.New(w)
	require.NoError(w.t, command(at))
	require.NoError(w.t, at.Close())
	total := w.trips(time.Since(w.login))
	time.Sleep(time.Minute) // until the agents have ended
	slices.SortStableFunc(w.events, func(a, b event) int {
		if c := a.start.Compare(b.start); c != 0 {
			return c
		}
		return strings.Compare(a.text, b.text)
	})
	var lines []string
	count := map[string]int{} // of the same activities at the same time
	for _, e := range w.events {
		line := fmt.Sprintf("| %.1f | %.1f | %%s%s |\n", w.trips(e.start.Sub(w.login)), w.trips(e.end.Sub(w.login)), e.text)
		if count[line]++; count[line] == 1 {
			lines = append(lines, line)
		}
	}
	var b strings.Builder
	for _, line := range lines {
		times := ""
		if n := count[line]; n > 1 {
			times = fmt.Sprint(n, " × ")
		}
		fmt.Fprintf(&b, line, times)
	}
	return total, b.String()
}

// observe records when the streams of a host start and end.
func (w *world) observe(h *zfsmem.Host, name string) {
	h.Around = func(_ context.Context, op string, names []string, do func() error) error {
		start := time.Now()
		err := do()
		if op == zfs.OpSend || op == zfs.OpReceive {
			w.record(start, "zfs "+op+", "+name)
		}
		return err
	}
}

var (
	_ hosts.Opener = (*world)(nil)
	_ tcp.Socket   = (*tcptest.Conn)(nil)
)
