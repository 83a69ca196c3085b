package meet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
)

func TestChoose(t *testing.T) {
	t.Parallel()
	reached := func(local, peer string) site.Facts { return site.Facts{SSHLocal: local, SSHPeer: peer} }
	tests := []struct {
		name                string
		way                 way.Way
		source, target      string
		sf, tf              site.Facts
		dial, address, peer string
		wire                string
		class               fault.Class
	}{
		{name: "push: the target listens where ssh reached it", source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "source", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "pull: the source listens, as only that way is known to be open", source: "a", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.2", peer: "10.0.0.1", wire: "auto"},
		{name: "third party: the target listens, and the source may come from anywhere", source: "a", target: "b",
			sf: reached("10.0.0.2", "10.0.0.1"), tf: reached("10.0.0.3", "10.0.0.1"), dial: "source", address: "10.0.0.3", wire: "auto"},
		{name: "push turned around: this host listens", way: way.Way{Dial: "target"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "auto"},
		{name: "an address of one's own, from any peer", way: way.Way{DataAddress: "192.168.7.2"}, source: "", target: "b",
			tf: reached("10.0.0.2", "10.0.0.1"), dial: "source", address: "192.168.7.2", wire: "auto"},
		{name: "through ssh: loopback", way: way.Way{Wire: "ssh"}, source: "", target: "b", dial: "source", address: "127.0.0.1", wire: "ssh"},
		{name: "through ssh between two other hosts", way: way.Way{Wire: "ssh"}, source: "a", target: "b", class: fault.Usage},
		{name: "plain tools, push: this host listens", way: way.Way{Wire: "nc"}, source: "", target: "b", tf: reached("10.0.0.2", "10.0.0.1"),
			dial: "target", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools, pull: this host listens", way: way.Way{Wire: "nc"}, source: "b", target: "", sf: reached("10.0.0.2", "10.0.0.1"),
			dial: "source", address: "10.0.0.1", peer: "10.0.0.2", wire: "nc"},
		{name: "plain tools between two other hosts", way: way.Way{Wire: "nc"}, source: "a", target: "b", class: fault.Usage},
		{name: "no address known: through ssh", source: "", target: "b", dial: "source", address: "127.0.0.1", wire: "ssh"},
		{name: "no address known of others", source: "a", target: "b", class: fault.Refused},
		{name: "no address known, the direction was asked for", way: way.Way{Dial: "source"}, source: "", target: "b", class: fault.Refused},
		{name: "a jump host of ssh: data may come from elsewhere", source: "", target: "b", tf: reached("10.0.0.2", "10.9.9.9"),
			dial: "source", address: "10.0.0.2", wire: "auto"},
		{name: "a jump host of ssh does not listen for this one", way: way.Way{Dial: "target"}, source: "", target: "b", tf: reached("10.0.0.2", "10.9.9.9"), class: fault.Refused},
		{name: "an address that is none", way: way.Way{DataAddress: "beta"}, source: "", target: "b", class: fault.Usage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			source, target := side(tt.source, tt.sf), side(tt.target, tt.tf)
			for _, s := range []*Side{&source, &target} {
				if s.Local() {
					s.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
				}
			}
			l, err := Choose(tt.way, source, target)
			if tt.class != 0 {
				require.Error(t, err)
				require.Equal(t, tt.class, fault.ClassOf(err))
				return
			}
			require.NoError(t, err)
			dialer, listener := source.Host, target.Host
			if tt.dial == "target" {
				dialer, listener = listener, dialer
			}
			require.Same(t, dialer, l.dialer)
			require.Same(t, listener, l.listener)
			require.Equal(t, []string{tt.dial, tt.address, tt.peer, tt.wire}, []string{l.dial, l.address, l.peer, l.Wire})
		})
	}
	t.Run("one host needs no network", func(t *testing.T) {
		t.Parallel()
		both := side("", site.Facts{})
		l := chosen(t, way.Way{Wire: "tls", Ports: way.Ports{Low: 1, High: 2}}, both, both)
		require.Equal(t, Report{Mode: Local, Why: "source and target are on one host"}, l.Report(true, true))
	})
}

// A host that says it was reached at loopback would have this one connect to
// itself, and another host to itself.
func TestAnAddressThatLeadsToNoOtherHostIsRefused(t *testing.T) {
	t.Parallel()
	near := side("", site.Facts{Boot: "1"})
	for _, address := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"} {
		there := site.Facts{SSHLocal: address, SSHPeer: address, Boot: "2"}
		for _, dial := range []string{"source", "target"} {
			_, err := Choose(way.Way{Dial: dial}, near, side("beta", there))
			require.Equal(t, fault.Refused, fault.ClassOf(err), address)
			require.ErrorContains(t, err, address, dial)
		}
		l, err := Choose(way.Way{}, near, side("beta", there))
		require.NoError(t, err, address)
		require.Equal(t, "ssh", l.Wire, "which leads there")
		_, err = Choose(way.Way{DataAddress: address}, near, side("beta", there))
		require.NoError(t, err, "asked for: a tunnel")
		there.Boot = "1"
		_, err = Choose(way.Way{}, near, side("beta", there))
		require.NoError(t, err, "another container of this machine")
	}
}

// doors are two hosts of which some directions are closed.
type doors struct {
	near, far doorway
	log       []string
}

// doorway is a host that notes what it is asked for.
type doorway struct {
	host
	site.Full
	says   error // of a connection from here, but through a relay
	offers []wire.Offer
}

const relay = "127.0.0.1:9"

func (d *doorway) Do(_ context.Context, f func(site.Site) error) error { return f(d) }

func (d *doorway) Relay(context.Context, string, func(error)) (string, error) {
	return relay, nil
}

func (d *doorway) Offer(_ context.Context, o wire.Offer) (wire.Ticket, error) {
	d.offers = append(d.offers, o)
	return wire.Ticket{}, nil
}

func (d *doorway) RTT() time.Duration { return 0 }

func (d *doorway) Transfer(ctx context.Context, task site.Task, _ func(transfer.Progress)) (site.Result, error) {
	_, sends := task.From.(site.Nothing)
	_, receives := task.To.(site.Nothing)
	dial, dials := task.To.(site.Dial)
	if from, ok := task.From.(site.Dial); ok {
		dial, dials = from, true
	}
	switch {
	case !sends && !receives:
		return site.Result{}, errors.New("it carries something")
	case dials && dial.Ticket.Address != relay:
		return site.Result{}, d.says
	case dials:
		return site.Result{}, nil
	}
	select {
	case <-ctx.Done():
		return site.Result{}, ctx.Err()
	case <-time.After(time.Millisecond):
		return site.Result{}, nil
	}
}

func newDoors(near, far string) (d *doors, source, target Side) {
	d = &doors{near: doorway{host: host{label: near}}, far: doorway{host: host{label: far}}}
	facts := site.Facts{SSHLocal: "10.0.0.2", SSHPeer: "10.0.0.1"}
	return d, Side{Host: &d.near, Facts: facts}, Side{Host: &d.far, Facts: facts}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	shut := fmt.Errorf("%w to 10.0.0.2:4 (tcp): timeout", wire.ErrDial)
	older := errors.New(`beta: malformed arguments: from: there is no end "nothing"`)
	lost := fmt.Errorf("beta: %w", site.ErrLost)
	for _, tt := range []struct {
		name      string
		near, far string
		says      [2]error // of a connection from near, from far
		way       way.Way
		err       error
		wire      string
		dial      string
		closed    bool
		tries     int // that do not pass
		untried   string
	}{
		{name: "the first way passes", far: "b", wire: "auto", dial: "source"},
		{name: "the other direction", far: "b", says: [2]error{shut}, wire: "auto", dial: "target", tries: 1},
		{name: "between others", near: "a", far: "b", says: [2]error{shut}, wire: "auto", dial: "target", tries: 1},
		{name: "a key that may not connect", far: "b", says: [2]error{shut, fault.Refusef("", "%w: no", site.ErrForbidden)}, wire: "ssh", dial: "source", tries: 2},
		{name: "only ssh", far: "b", says: [2]error{shut, shut}, wire: "ssh", dial: "source", tries: 2},
		{name: "nothing between others", near: "a", far: "b", says: [2]error{shut, shut}, wire: "auto", dial: "source", closed: true, tries: 2},
		{name: "the direction is obeyed", far: "b", says: [2]error{shut}, way: way.Way{Dial: "source"}, wire: "auto", dial: "source", closed: true, tries: 1,
			untried: "{{dial target}} {{wire ssh}}"},
		{name: "so is an address", far: "b", says: [2]error{shut}, way: way.Way{DataAddress: "10.0.0.7"}, wire: "auto", dial: "source", closed: true, tries: 1,
			untried: "{{dial target}} {{wire ssh}}"},
		{name: "and the wire", far: "b", says: [2]error{shut, shut}, way: way.Way{Wire: "tls"}, wire: "tls", dial: "source", closed: true, tries: 2, untried: "{{wire ssh}}"},
		{name: "whose direction is free", far: "b", says: [2]error{shut}, way: way.Way{Wire: "tls"}, wire: "tls", dial: "target", tries: 1},
		{name: "ssh that was asked for is not tried", far: "b", says: [2]error{shut, shut}, way: way.Way{Wire: "ssh"}, wire: "ssh", dial: "source"},
		{name: "an earlier build cannot say", far: "b", says: [2]error{older, shut}, wire: "auto", dial: "source"},
		{name: "a lost host closes nothing", far: "b", says: [2]error{lost}, err: site.ErrLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, source, target := newDoors(tt.near, tt.far)
			d.near.says, d.far.says = tt.says[0], tt.says[1]
			l, err := Choose(tt.way, source, target)
			require.NoError(t, err)
			l, err = l.Open(t.Context(), func(text string) { d.log = append(d.log, text) })
			require.ErrorIs(t, err, tt.err)
			if err != nil {
				return
			}
			s := l.Search()
			require.Equal(t, []string{tt.wire, tt.dial}, []string{l.Wire, l.dial})
			require.Equal(t, tt.closed, s.Closed)
			require.Len(t, s.Shut, tt.tries, "%v", s.Shut)
			require.Equal(t, tt.untried, strings.Join(s.Untried, " "))
			if !tt.closed {
				require.Len(t, d.log, tt.tries, "each change of the way is told")
			}
			for _, o := range append(d.near.offers, d.far.offers...) {
				require.Equal(t, 1, o.Streams)
				if tt.wire != "ssh" {
					require.Equal(t, tryDeadline, o.Deadline)
				}
			}
			require.Equal(t, linkDeadline, l.deadline, "what data waits for is as ever")
		})
	}
}

// A try between real hosts leaves neither a connection nor a listener, and takes
// the place of none that data needs.
func TestATryLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, w := range []string{"", "signed", "tls", "plain"} {
		near, far, l := pair(t, way.Way{Wire: w, Streams: 2})
		asked := l.As(false)
		ticket, err := far.site.(site.Mover).Offer(t.Context(), asked.offer(0))
		require.NoError(t, err)
		began := time.Now()
		l, err = l.Open(t.Context(), func(text string) { t.Error(text) })
		require.NoError(t, err)
		require.False(t, l.Search().Closed)
		require.Less(t, time.Since(began), tryDeadline)
		require.True(t, l.met.Load())
		done := make(chan error, 1)
		go func() {
			_, err := far.site.(site.Mover).Transfer(t.Context(), site.Task{From: site.Accept{Session: ticket.Session}, To: site.Nothing{}}, nil)
			done <- err
		}()
		_, err = near.site.(site.Mover).Transfer(t.Context(), site.Task{From: site.Nothing{}, To: site.Dial{Ticket: ticket}}, nil)
		require.NoError(t, err, "an offer that was there before")
		require.NoError(t, <-done)
		_, err = Run(t.Context(), l, From{near, site.Noise{Time: 10 * time.Millisecond}}, To{far, site.Nowhere{}}, Count{}, nil)
		require.NoError(t, err)
	}
}
