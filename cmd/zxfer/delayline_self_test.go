package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/probe"
)

// newLine makes a link between two namespaces of this process's own.
func newLine(t *testing.T, s lineShape) (*delayLine, lineEnd, lineEnd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs TUN devices: %v", err)
	}
	host := func(name, address string) lineEnd {
		return lineEnd{Namespace: fmt.Sprintf("zxline-%d-%s", os.Getpid(), name), Device: "zxline" + name, Address: netip.MustParsePrefix(address)}
	}
	a, b := host("a", "10.79.0.1/24"), host("b", "10.79.0.2/24")
	l, err := newDelayLine(a, b, s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, a, b
}

// connected makes a TCP connection from a to b.
func connected(t *testing.T, a, b lineEnd) (client, server net.Conn) {
	t.Helper()
	var l net.Listener
	require.NoError(t, inNetns(b.Namespace, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(b.Address.Addr(), 0).String())
		return err
	}))
	defer l.Close()
	require.NoError(t, inNetns(a.Namespace, func() (err error) {
		client, err = net.Dial("tcp", l.Addr().String())
		return err
	}))
	t.Cleanup(func() { _ = client.Close() })
	server, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

// roundTrip is the least of some.
func roundTrip(t *testing.T, client, server net.Conn) time.Duration {
	t.Helper()
	least := time.Hour
	b := make([]byte, 1)
	for range 5 {
		start := time.Now()
		for _, step := range []func() (int, error){
			func() (int, error) { return client.Write(b) }, func() (int, error) { return server.Read(b) },
			func() (int, error) { return server.Write(b) }, func() (int, error) { return client.Read(b) },
		} {
			_, err := step()
			require.NoError(t, err)
		}
		least = min(least, time.Since(start))
	}
	return least
}

// rateOf is what arrives in the second half of a time, in bytes per second.
func rateOf(client, server net.Conn, d time.Duration) float64 {
	end := time.Now().Add(d)
	go func() {
		block := make([]byte, 1<<20)
		for time.Now().Before(end) {
			if _, err := client.Write(block); err != nil {
				return
			}
		}
		_ = client.Close()
	}()
	block := make([]byte, 1<<20)
	var from, last time.Time
	var bytes int
	for {
		n, err := server.Read(block)
		if err != nil {
			return float64(bytes) / last.Sub(from).Seconds()
		}
		switch last = time.Now(); {
		case time.Until(end) > d/2:
		case from.IsZero():
			from = last
		default:
			bytes += n
		}
	}
}

// TCP finds the delay and the rate that were asked for, and TSO is not undone.
func TestDelayLine(t *testing.T) { //nolint:paralleltest // it is a measurement
	shape := lineShape{Rate: 1e9, Delay: 10 * time.Millisecond, Queue: 5 << 20}
	l, a, b := newLine(t, shape)
	for _, s := range []lineShape{shape, {Rate: 100e6, Delay: 2 * time.Millisecond, Queue: 1 << 20}} {
		l.Set(s)
		for try := 1; ; try++ {
			client, server := connected(t, a, b)
			rtt := roundTrip(t, client, server)
			l.Record()
			got := rateOf(client, server, 1200*time.Millisecond)
			there, back := l.Record()
			t.Logf("%+v: round trip %s, %.0f Mbit/s; %+v; back %+v", s, rtt, got*8/1e6, there, back)
			var errs []error
			if rtt < 2*s.Delay || rtt > 2*s.Delay+3*time.Millisecond {
				errs = append(errs, fmt.Errorf("round trip %s of a delay of 2 x %s", rtt, s.Delay))
			}
			// Of 1500 bytes 1448 are payload.
			if want := float64(s.Rate) / 8 * 1448 / 1500; got < 0.85*want || got > 1.05*want {
				errs = append(errs, fmt.Errorf("%.0f B/s of %.0f", got, want))
			}
			if errs == nil {
				require.Less(t, there.Packets, there.Bytes/(4*1500), "segments come unsplit")
				break
			}
			busy, err := probe.Run(t.Context(), probe.Request{ID: probe.Idle, Time: 300 * time.Millisecond})
			require.NoError(t, err)
			t.Logf("try %d: %.1f processors are busy with other things: %v", try, busy.CPU, errs)
			late := max(there.LateShare(), back.LateShare())
			if late < 0.05 && busy.CPU < 0.5 {
				require.NoError(t, errors.Join(errs...))
			}
			if try == 3 {
				t.Skipf("this host is busy: %.1f processors with other things, %.0f %% of the bytes were late; %v", busy.CPU, 100*late, errs)
			}
		}
	}
}

// A packet waits for those before it, and is dropped where too many wait.
func TestDelayLineAdmits(t *testing.T) {
	t.Parallel()
	w := newLineWay(nil, nil, lineShape{Rate: 8e6, Delay: time.Second, Queue: 1500})
	now := time.Now()
	p := linePacket{data: make([]byte, tunHeader+1000)} // 1 ms of that rate
	for i := 1; i <= 2; i++ {
		require.True(t, w.admit(&p, now))
		require.Equal(t, time.Second+time.Duration(i)*time.Millisecond, p.due.Sub(now))
	}
	require.False(t, w.admit(&p, now), "2000 bytes wait")
	require.True(t, w.admit(&p, now.Add(time.Millisecond)), "1000 do")
	require.EqualValues(t, 1, w.take().Dropped)
	require.Zero(t, w.take().Dropped)
	w.set(lineShape{Rate: 8e9, Queue: 1})
	require.True(t, w.admit(&p, now))
	require.Equal(t, time.Microsecond, p.due.Sub(now))
}

func TestDelayLineOnWire(t *testing.T) {
	t.Parallel()
	p := make([]byte, tunHeader+54+3*1448)
	require.EqualValues(t, 54+3*1448, onWire(p))
	p[1], p[2], p[4], p[5] = 1, 54, 1448&255, 1448>>8 // little-endian, as all machines of these tests are
	require.EqualValues(t, 3*(54+1448), onWire(p))
	p = append(p, 0) // a fourth segment of a byte
	require.EqualValues(t, 3*(54+1448)+55, onWire(p))
}

func TestDelayLineFails(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, inNetns("zxline-nosuch", func() error { return nil }), os.ErrNotExist)
	_, err := openTun("a-name-of-more-than-15-bytes")
	require.Error(t, err)
}
