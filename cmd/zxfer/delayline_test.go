package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lineShape holds the parameters of a link. They apply to each direction.
type lineShape struct {
	Rate  int64         // bits per second of IP packets, headers included
	Delay time.Duration // one way, without the time that a packet takes at Rate
	Queue int64         // bytes that can wait for the wire; further packets are dropped
}

// lineEnd is the host at one end of a link.
type lineEnd struct {
	Namespace string       // name for ip netns
	Device    string       // name in the namespace, up to 15 bytes
	Address   netip.Prefix // address of the device
}

// delayLine connects two network namespaces of this host with a link of a given rate, delay
// and queue. Both ends use the kernel's TCP. netem would do the same, but not every kernel has
// it and it needs a fast machine.
//
// Each namespace gets a TUN device. Goroutines of this process carry the packets between the
// devices. The kernel passes segments of up to 64 KiB unsplit (TSO), so that 1 Gbit/s needs
// only a fraction of a processor. The link computes their time on the wire for the equivalent
// packets.
//
// delayLine drops packets only if the queue is full, and never corrupts or reorders them. It
// needs root.
type delayLine struct {
	hosts      [2]lineEnd
	devices    [2]*tunDevice
	directions [2]*lineDirection
	wg         sync.WaitGroup
}

// newDelayLine creates both namespaces and the link. Close removes them.
func newDelayLine(a, b lineEnd, s lineShape) (l *delayLine, err error) {
	l = &delayLine{hosts: [2]lineEnd{a, b}}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	for i, h := range l.hosts {
		if err := ipCommand("netns", "add", h.Namespace); err != nil {
			return l, err
		}
		if l.devices[i], err = openTun(h.Device); err != nil {
			return l, err
		}
		for _, args := range [][]string{
			{"link", "set", h.Device, "netns", h.Namespace},
			{"-n", h.Namespace, "addr", "add", h.Address.String(), "dev", h.Device},
			{"-n", h.Namespace, "link", "set", h.Device, "txqueuelen", "10000", "up"},
			{"-n", h.Namespace, "link", "set", "lo", "up"},
		} {
			if err := ipCommand(args...); err != nil {
				return l, err
			}
		}
	}
	for i := range l.directions {
		l.directions[i] = newLineDirection(l.devices[i], l.devices[1-i], s)
		l.wg.Go(l.directions[i].run)
	}
	return l, nil
}

// Set changes the shape for future packets.
func (l *delayLine) Set(s lineShape) {
	for _, w := range l.directions {
		w.set(s)
	}
}

// Record returns the records of both directions since the last call. forward starts at the first
// host, backward at the second.
func (l *delayLine) Record() (forward, backward lineRecord) {
	return l.directions[0].take(), l.directions[1].take()
}

// Close stops the link and removes both namespaces. Processes in them keep their namespace
// until they end.
func (l *delayLine) Close() error {
	var errs []error
	for _, w := range l.directions {
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
		if err := ipCommand("netns", "del", h.Namespace); err != nil && !strings.Contains(err.Error(), "No such file") {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func ipCommand(args ...string) error {
	cmd := exec.Command("ip", args...)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// inNetns runs f in a network namespace. Sockets that f opens remain in it. f must open them
// itself, not in another goroutine.
func inNetns(namespace string, f func() error) error {
	done := make(chan error)
	go func() {
		// The thread remains locked, so it ends with this goroutine. No other code runs in the
		// namespace.
		runtime.LockOSThread()
		done <- func() error {
			ns, err := os.Open(filepath.Join("/run/netns", namespace))
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("namespace %s: %w", namespace, err)
			}
			return f()
		}()
	}()
	return <-done
}
