package sysinfo

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// TCP is the kernel's limits for sockets, in bytes.
type TCP struct {
	ReadMax, WriteMax         int64 // what autotuning may grow a buffer to: tcp_rmem[2], tcp_wmem[2]
	CoreReadMax, CoreWriteMax int64 // what setsockopt may ask for: net.core.rmem_max, wmem_max
	Congestion                string
	Scaling                   string // net.ipv4.tcp_window_scaling: "1" is on
}

func readTCP(root fs.FS) TCP {
	return TCP{
		ReadMax: TCPReadMax(root), WriteMax: TCPWriteMax(root),
		CoreReadMax: number(root, "proc/sys/net/core/rmem_max"), CoreWriteMax: number(root, "proc/sys/net/core/wmem_max"),
		Congestion: line(root, "proc/sys/net/ipv4/tcp_congestion_control"), Scaling: line(root, "proc/sys/net/ipv4/tcp_window_scaling"),
	}
}

func number(root fs.FS, name string) int64 { return whole(line(root, name)) }

// whole is a number that is not negative, 0 where there is none.
func whole(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// Link is a network interface that is up, loopback left out.
type Link struct {
	Name             string
	MTU              int64 // bytes
	Speed            int64 // Mbit/s, 0 = unknown, as of most virtual ones
	Duplex           string
	Errors, Received int64 // packets received, and with errors, since boot
}

func readLinks(root fs.FS) []Link {
	states, _ := fs.Glob(root, "sys/class/net/*/operstate") // the pattern is well-formed
	slices.Sort(states)
	var out []Link
	for _, s := range states {
		dir := path.Dir(s)
		if path.Base(dir) == "lo" || line(root, s) != "up" {
			continue
		}
		out = append(out, Link{
			Name: path.Base(dir), MTU: number(root, dir+"/mtu"), Speed: number(root, dir+"/speed"), Duplex: line(root, dir+"/duplex"),
			Errors: number(root, dir+"/statistics/rx_errors"), Received: number(root, dir+"/statistics/rx_packets"),
		})
	}
	return out
}

// Tools are the programs that are of use beside zxfer.
type Tools struct {
	Paths map[string]string // by name, those that are there
	PyZFS string            // where pyzfs is, Missing, or "" = unknown
	NC    string            // dialect of the nc that is first in PATH; "" where there is none
}

// The dialects of nc.
const (
	OpenBSD     = "openbsd"
	Traditional = "traditional"
	Ncat        = "ncat"
	BusyBox     = "busybox"
	GNU         = "gnu"
	UnknownNC   = "unknown"
)

func readTools(root fs.FS) Tools {
	t := Tools{Paths: map[string]string{}, PyZFS: line(root, PyZFS)}
	for l := range strings.Lines(text(root, Command("which"))) {
		if name, where, ok := strings.Cut(strings.TrimSpace(l), "\t"); ok {
			t.Paths[name] = where
		}
	}
	if t.Paths["nc"] != "" {
		t.NC = Dialect(text(root, Command("nc-help")))
	}
	return t
}

// Dialect tells which nc printed a help text.
func Dialect(help string) string {
	low := strings.ToLower(help)
	switch {
	case strings.Contains(low, "busybox"):
		return BusyBox
	case strings.Contains(low, "openbsd"), strings.Contains(low, "shutdown the network socket after eof on stdin"): // the same on FreeBSD
		return OpenBSD
	case strings.Contains(low, "ncat"):
		return Ncat
	case strings.Contains(low, "[v1.10"):
		return Traditional
	case strings.Contains(low, "gnu netcat"):
		return GNU
	}
	return UnknownNC
}
