package authz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/size"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Bounds of what a session may ask for. They are far above what a job uses;
// they keep one request from taking the host's memory or waiting for ever.
const (
	maxWindow   = 1 << 30 // bytes
	maxThreads  = 1024
	maxDeadline = 10 * time.Minute
	maxStall    = 24 * time.Hour

	// maxRings is what the rings of all streams of a session have together, but
	// that each has minRing.
	maxRings = 4 * transfer.DefaultBuffer
	minRing  = 16 << 20
)

// own returns the properties that zxfer itself sets on a receive, with a check of the
// value. What the source set, zfs.Carry judges.
func own(restore bool) map[string]func(string) bool {
	out := map[string]func(string) bool{
		"readonly":        is("on"),
		"canmount":        is("noauto", "off"),
		"encryption":      is("off"), // what was not encrypted, below an encrypted replica
		zfs.FlagsProperty: plain,
	}
	if restore {
		out[zfs.RestoreProperty] = is("on")
	}
	return out
}

func is(values ...string) func(string) bool {
	return func(v string) bool { return slices.Contains(values, v) }
}

// plain reports whether a value has only letters, digits and "-".
func plain(v string) bool {
	return v != "" && len(v) <= 32 && strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") == ""
}

// receive judges where a stream may go, and adds what keeps it from being
// mounted. What is inside of it a zfs.Gate judges, as in every receive.
func (g *Guard) receive(ctx context.Context, r *zfs.ReceiveSpec) error {
	if r.Corrective {
		return g.correct(r)
	}
	if err := g.receivable(r.Target); err != nil {
		return err
	}
	if r.Rollback {
		return errors.New("a receive that rolls back (-F) loses what is there")
	}
	if r.Origin != "" {
		if err := g.snapshots([]string{r.Origin}, g.policy.receivable(), "origin"); err != nil {
			return err
		}
	}
	// A new dataset, or a clone, to which nothing was set before.
	first := r.Arrival.Base == 0 || r.Origin != ""
	restored := below(r.Target, g.policy.Restored)
	if first && restored {
		whole, err := g.isWhole(ctx, r.Target)
		if err != nil {
			return err
		}
		first = !whole
	}
	if err := g.properties(r, first && restored); err != nil {
		return err
	}
	if g.onlyAdded(r.Target) && !below(r.Target, g.policy.Rekeyed) {
		r.KeepKey = true
	}
	// A new dataset mounts nowhere by itself, whoever forgot to ask for that.
	if first {
		forced := map[string]string{"readonly": "on"}
		if !r.Arrival.Volume {
			forced["canmount"] = "noauto"
		}
		maps.Copy(forced, r.Set)
		r.Set = forced
	}
	return nil
}

// properties judges what a receive sets: all of it comes from another host, whatever
// the request says. The administrator of this host has named nothing for a key.
func (g *Guard) properties(r *zfs.ReceiveSpec, restore bool) error {
	r.Carried, r.Carry = nil, zfs.Carry{All: restore}
	t := zfs.Filesystem
	if r.Arrival.Volume {
		t = zfs.Volume
	}
	may := own(restore)
	for _, name := range slices.Sorted(maps.Keys(r.Set)) {
		value := r.Set[name]
		if ok := may[name]; ok != nil && ok(value) {
			continue
		}
		if err := r.Carry.Check(t, name, value); err != nil {
			return fmt.Errorf("the property %q may not be set to %q by who sends: %w; the administrator can set it on %s",
				cut(name), cut(value), err, g.policy.receivable()[0])
		}
		r.Carried = append(r.Carried, name)
	}
	return nil
}

// isWhole tells that a dataset is there, and not only the part of one that a receive
// left: what is set to it stays, and is not the stream's, whatever that is said to be.
func (g *Guard) isWhole(ctx context.Context, dataset string) (bool, error) {
	have, err := g.site.Properties(ctx, []string{dataset}, []string{"type", "inconsistent"})
	if err != nil {
		return false, err
	}
	there := have[dataset]
	return there != nil && there["inconsistent"].Value != "1", nil
}

// Transfer judges where streams come from and go to.
func Transfer(ctx context.Context, g *Guard, t *hosts.Task) error {
	var err error
	switch from := t.From.(type) {
	case hosts.SendStream:
		if err = g.send(ctx, from.Spec); err == nil {
			err = g.options(ctx, &from.Options)
		}
		t.From = from
	case hosts.SendFiles:
		if err = g.files(ctx, from.Archive.Snapshot, from.Archive.KeyFile); err == nil {
			err = g.options(ctx, &from.Options)
		}
		t.From = from
	default:
		err = g.line(from)
	}
	if err != nil {
		return err
	}
	switch to := t.To.(type) {
	case hosts.ReceiveStream:
		if err = g.receive(ctx, &to.Spec); err == nil {
			err = g.options(ctx, &to.Options)
		}
		t.To = to
	default:
		err = g.line(to)
	}
	return err
}

// line judges the line to another host.
func (g *Guard) line(end any) error {
	switch e := end.(type) {
	case hosts.Accept, // of an offer, which was judged
		hosts.Nothing: // whose line is judged
		return nil
	case hosts.Dial:
		host, _, err := net.SplitHostPort(e.Ticket.Address)
		if err != nil || !g.policy.peer(host) {
			return fmt.Errorf("the agent may not connect to %q; --peer ADDRESS in authorized_keys allows it", cut(e.Ticket.Address))
		}
		return bounded(e.Ticket.Window, e.Ticket.Deadline)
	}
	return fmt.Errorf("%T is not for this key", end)
}

// options bounds the options of a stream: more helps none but who wants the
// host's memory.
func (g *Guard) options(ctx context.Context, o *transfer.Options) error {
	o.CompressThreads = min(o.CompressThreads, runtime.NumCPU())
	switch {
	case o.CompressThreads < 0 || o.CompressThreads > maxThreads:
		return fmt.Errorf("%d threads, at most %d are allowed", o.CompressThreads, maxThreads)
	case o.Buffer < 0 || o.Block < 0 || o.BandLimit < 0 || o.Stall < 0 || o.Stall > maxStall:
		return errors.New("options out of bounds")
	}
	o.Buffer = g.ring(ctx, o.Buffer)
	return nil
}

// ring is how many bytes of a ring a stream gets that asked for so many, until
// ctx, its call's, ends.
func (g *Guard) ring(ctx context.Context, asked int64) int64 {
	if asked == 0 {
		asked = transfer.DefaultBuffer
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(asked, transfer.DefaultBuffer, max(maxRings-g.rings, minRing))
	g.rings += n
	context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.rings -= n
	})
	return n
}

// Offer judges listeners.
func Offer(_ context.Context, g *Guard, o *tcp.Offer) error {
	a, err := netip.ParseAddr(o.Address)
	switch {
	case err != nil || a.IsUnspecified() || a.IsMulticast():
		return fmt.Errorf("the agent listens on one address of its host, not on %q", cut(o.Address))
	case o.PortLow != 0 && o.PortLow < 1024:
		return fmt.Errorf("port %d is a privileged one", o.PortLow)
	case o.Peer != "" && !g.policy.peer(o.Peer):
		return fmt.Errorf("%q may not connect; --peer ADDRESS in authorized_keys allows it", cut(o.Peer))
	}
	return bounded(o.Window, o.Deadline)
}

func bounded(window size.Size, deadline time.Duration) error {
	if window < 0 || window > maxWindow {
		return fmt.Errorf("a window of %d bytes, at most %d are allowed", window, maxWindow)
	}
	if deadline < 0 || deadline > maxDeadline {
		return fmt.Errorf("a deadline of %s, at most %s is allowed", deadline, maxDeadline)
	}
	return nil
}
