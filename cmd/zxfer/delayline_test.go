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

// lineShape is what a link is like, the same in both directions.
type lineShape struct {
	Rate  int64         // bits per second of IP packets, headers included
	Delay time.Duration // one way, beside the time that a packet takes at Rate
	Queue int64         // bytes that may wait for the wire; what comes then is dropped
}

// lineEnd is a host at one end.
type lineEnd struct {
	Namespace string       // its name, as ip netns has it
	Device    string       // of the link, up to 15 bytes
	Address   netip.Prefix // of the device
}

// delayLine joins two network namespaces of this host by a link of a
// given rate, delay and queue: the kernel's own TCP at both ends,
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
type delayLine struct {
	hosts   [2]lineEnd
	devices [2]*tunDevice
	ways    [2]*lineWay
	wg      sync.WaitGroup
}

// newDelayLine makes both namespaces, and the link between them. Close removes them.
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
	for i := range l.ways {
		l.ways[i] = newLineWay(l.devices[i], l.devices[1-i], s)
		l.wg.Go(l.ways[i].run)
	}
	return l, nil
}

// Set changes the shape for the packets to come.
func (l *delayLine) Set(s lineShape) {
	for _, w := range l.ways {
		w.set(s)
	}
}

// Record returns what the two directions did since the last call: that from
// the first host, and that from the second.
func (l *delayLine) Record() (there, back lineRecord) {
	return l.ways[0].take(), l.ways[1].take()
}

// Close ends the link and removes both namespaces; processes in them keep
// theirs until they end.
func (l *delayLine) Close() error {
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

// inNetns runs f in a network namespace: what sockets it opens stay there. f must
// open them itself, not in another goroutine.
func inNetns(namespace string, f func() error) error {
	done := make(chan error)
	go func() {
		// The thread is not unlocked: it ends with this goroutine, and nothing
		// else ever runs in the namespace.
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
