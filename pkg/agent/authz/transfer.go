package authz

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/size"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// Limits of requests. Jobs need far less. They keep one request from using up the host's memory
// or waiting forever.
const (
	maxWindow   = 1 << 30 // bytes
	maxThreads  = 1024
	maxDeadline = 10 * time.Minute

	// maxBuffers limits the sum of all stream buffers of a session, except that each gets at
	// least minBuffer. In bytes.
	maxBuffers = 4 * transfer.DefaultBuffer
	minBuffer  = 16 << 20
)

// mayTransfer checks both ends of a transfer.
func mayTransfer(ctx context.Context, g *Guard, t *hosts.Task) error {
	var err error
	switch from := t.From.(type) {
	case hosts.SendStream:
		if err = g.checkSend(ctx, from.Spec); err == nil {
			err = g.limitOptions(ctx, &from.Options)
		}
		t.From = from
	case hosts.SendFiles:
		if err = g.checkFiles(ctx, from.Archive.Snapshot, from.Archive.KeyFile); err == nil {
			err = g.limitOptions(ctx, &from.Options)
		}
		t.From = from
	default:
		err = g.checkConnection(from)
	}
	if err != nil {
		return err
	}
	switch to := t.To.(type) {
	case hosts.ReceiveStream:
		if err = g.checkReceive(ctx, &to.Spec); err == nil {
			err = g.limitOptions(ctx, &to.Options)
		}
		t.To = to
	default:
		err = g.checkConnection(to)
	}
	return err
}

// checkConnection checks the connection to another host.
func (g *Guard) checkConnection(end any) error {
	switch e := end.(type) {
	case hosts.Accept, // its offer was checked
		hosts.Nothing, hosts.Inline, hosts.Collect: // the other end is checked
		return nil
	case hosts.Dial:
		host, _, err := net.SplitHostPort(e.Ticket.Address)
		if err != nil || !g.policy.isPeer(host) {
			return fmt.Errorf("connecting to %q is not permitted; to permit it, add --peer ADDRESS in authorized_keys", clipName(e.Ticket.Address))
		}
		return checkSocket(e.Ticket.Window, e.Ticket.Deadline)
	}
	return fmt.Errorf("this key does not permit %T", end)
}

// limitOptions reduces or refuses stream options that would use up the host's memory.
func (g *Guard) limitOptions(ctx context.Context, o *transfer.Options) error {
	o.CompressThreads = min(o.CompressThreads, runtime.NumCPU())
	switch {
	case o.CompressThreads < 0 || o.CompressThreads > maxThreads:
		return fmt.Errorf("%d threads, more than %d", o.CompressThreads, maxThreads)
	case o.Buffer < 0 || o.Block < 0 || o.BandLimit < 0 || o.Stall < 0 || o.Stall > transfer.MaxStall:
		return errors.New("options out of bounds")
	}
	o.Buffer = g.reserveBuffer(ctx, o.Buffer)
	return nil
}

// reserveBuffer returns the buffer size in bytes granted to a stream. ctx must be the context
// of the call: the reservation ends with it.
func (g *Guard) reserveBuffer(ctx context.Context, asked int64) int64 {
	if asked == 0 {
		asked = transfer.DefaultBuffer
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(asked, transfer.DefaultBuffer, max(maxBuffers-g.bufferBytes, minBuffer))
	g.bufferBytes += n
	context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.bufferBytes -= n
	})
	return n
}

// mayOffer checks the address, port and peer of a listener.
func mayOffer(_ context.Context, g *Guard, o *tcp.Offer) error {
	a, err := netip.ParseAddr(o.Address)
	switch {
	case err != nil || a.IsUnspecified() || a.IsMulticast():
		return fmt.Errorf("the agent must listen on one address of its host, not on %q", clipName(o.Address))
	case o.PortLow != 0 && o.PortLow < 1024:
		return fmt.Errorf("port %d is privileged", o.PortLow)
	case o.Peer != "" && !g.policy.isPeer(o.Peer):
		return fmt.Errorf("connections from %q are not permitted; to permit them, add --peer ADDRESS in authorized_keys", clipName(o.Peer))
	}
	return checkSocket(o.Window, o.Deadline)
}

func checkSocket(window size.Size, deadline time.Duration) error {
	if window < 0 || window > maxWindow {
		return fmt.Errorf("a window of %d bytes, more than %d", window, maxWindow)
	}
	if deadline < 0 || deadline > maxDeadline {
		return fmt.Errorf("a deadline of %s, more than %s", deadline, maxDeadline)
	}
	return nil
}
