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
	maxDeadline = 10 * time.Minute
)

// mayTransfer checks both ends of a transfer.
func mayTransfer(ctx context.Context, g *Guard, t *hosts.Task) error {
	var err error
	switch from := t.From.(type) {
	case hosts.SendStream:
		if err = g.checkSend(ctx, from.Spec); err == nil {
			err = limitOptions(&from.Options)
		}
		t.From = from
	case hosts.SendFiles:
		if err = g.checkFiles(ctx, from.Archive.Snapshot, from.Archive.KeyFile); err == nil {
			err = limitOptions(&from.Options)
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
			err = limitOptions(&to.Options)
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
		hosts.Nothing, hosts.Attached: // the other end is checked
		return nil
	case hosts.Dial:
		host, _, err := net.SplitHostPort(e.Ticket.Address)
		if err != nil || !g.policy.isPeer(host) {
			return hosts.NotConnected(fmt.Errorf("connecting to %q is not permitted; to permit it, add --peer ADDRESS in authorized_keys", clipName(e.Ticket.Address)))
		}
		return checkSocket(e.Ticket.Window, e.Ticket.Deadline)
	}
	return fmt.Errorf("this key does not permit %T", end)
}

// limitOptions refuses stream options that are out of bounds. The host limits the memory of streams
// (hosts.Local.Restrict).
func limitOptions(o *transfer.Options) error {
	switch {
	case o.CompressThreads < 0:
		return fmt.Errorf("%d threads", o.CompressThreads)
	case o.Buffer < 0 || o.Block < 0 || o.BandLimit < 0 || o.Stall < 0 || o.Stall > transfer.MaxStall:
		return errors.New("options out of bounds")
	}
	o.CompressThreads = min(o.CompressThreads, runtime.NumCPU())
	return nil
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
