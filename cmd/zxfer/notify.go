package main

import (
	"net"
	"os"
	"time"
)

// notify tells systemd what a service is doing, where it wants to know
// (NotifyAccess=): sd_notify(3) of STATUS=. One that does not read holds up nothing.
func notify(status string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		return // nobody to tell, and nothing that depends on it
	}
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte("STATUS=" + status))
	_ = c.Close()
}
