// Package delayline joins two network namespaces of this host by a link of a
// given rate, delay and queue, for tests: the kernel's own TCP at both ends,
// and a wire between them as long and as narrow as a test wants it. netem does
// the same where a kernel has it, and where the machine is fast enough to run
// it.
//
// Each namespace gets a TUN device, and goroutines of this process carry the
// packets from one to the other. The kernel hands over and takes segments of
// up to 64 KiB unsplit (TSO), so that 1 Gbit/s costs a fraction of a processor;
// their time on the wire is counted as of the packets that they stand for.
//
// It does not lose, corrupt or reorder packets other than by a full queue, and
// needs root.
package delayline

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Shape is what a link is like, the same in both directions.
type Shape struct {
	Rate  int64         // bits per second of IP packets, headers included
	Delay time.Duration // one way, beside the time that a packet takes at Rate
	Queue int64         // bytes that may wait for the wire; what comes then is dropped
}

// Host is one end.
type Host struct {
	Namespace string       // its name, as ip netns has it
	Device    string       // of the link, up to 15 bytes
	Address   netip.Prefix // of the device
}

// Line is a link in use.
type Line struct {
	hosts   [2]Host
	devices [2]*device
	ways    [2]*way
	wg      sync.WaitGroup
}

// New makes both namespaces, and the link between them. Close removes them.
func New(a, b Host, s Shape) (l *Line, err error) {
	l = &Line{hosts: [2]Host{a, b}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	for i, h := range l.hosts {
		if err := ip("netns", "add", h.Namespace); err != nil {
			return l, err
		}
		if l.devices[i], err = openDevice(h.Device); err != nil {
			return l, err
		}
		for _, args := range [][]string{
			{"link", "set", h.Device, "netns", h.Namespace},
			{"-n", h.Namespace, "addr", "add", h.Address.String(), "dev", h.Device},
			{"-n", h.Namespace, "link", "set", h.Device, "txqueuelen", "10000", "up"},
			{"-n", h.Namespace, "link", "set", "lo", "up"},
		} {
			if err := ip(args...); err != nil {
				return l, err
			}
		}
	}
	for i := range l.ways {
		l.ways[i] = newWay(l.devices[i], l.devices[1-i], s)
		l.wg.Go(l.ways[i].run)
	}
	return l, nil
}

// Set changes the shape for the packets to come.
func (l *Line) Set(s Shape) {
	for _, w := range l.ways {
		w.set(s)
	}
}

// Record returns what the two directions did since the last call: that from
// the first host, and that from the second.
func (l *Line) Record() (there, back Record) {
	return l.ways[0].take(), l.ways[1].take()
}

// Close ends the link and removes both namespaces; processes in them keep
// theirs until they end.
func (l *Line) Close() error {
	var errs []error
	for _, w := range l.ways {
		if w != nil {
			w.closed.Store(true)
		}
	}
	l.wg.Wait()
	for _, d := range l.devices {
		if d != nil {
			errs = append(errs, d.close())
		}
	}
	for _, h := range l.hosts {
		if err := ip("netns", "del", h.Namespace); err != nil && !strings.Contains(err.Error(), "No such file") {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func ip(args ...string) error {
	cmd := exec.Command("ip", args...)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
