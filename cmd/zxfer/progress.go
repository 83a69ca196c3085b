package main

import (
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// presenter shows the work of a verb: report.Text or report.JSON.
type presenter interface {
	Status()       // shows the progress on one line
	Tick()         // refreshes the output
	State() string // describes the progress on one line, or returns ""
}

const (
	tickEvery   = 500 * time.Millisecond // for a presenter
	notifyEvery = 2 * time.Second        // for systemd
)

// startLive refreshes a presenter, shows its status on SIGUSR1 and reports it to systemd, until stop is
// called.
func startLive(p presenter) (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	tick, tell := time.NewTicker(tickEvery), time.NewTicker(notifyEvery)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-c:
				p.Status()
			case <-tick.C:
				p.Tick()
			case <-tell.C:
				if state := p.State(); state != "" {
					notify(state)
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(c)
		tick.Stop()
		tell.Stop()
		close(done)
	}
}

// notify reports the status of a service to systemd, if systemd wants it (NotifyAccess=), as
// sd_notify(3) does with STATUS=. It waits a second at most.
func notify(status string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		return // no receiver, and nothing depends on it
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte("STATUS=" + status))
	_ = c.Close()
}
