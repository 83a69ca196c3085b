package sysinfo

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// TCP holds the kernel's socket limits in bytes, and TCP settings.
type TCP struct {
	ReadMax, WriteMax         int64 // limits of autotuning: tcp_rmem[2], tcp_wmem[2]
	CoreReadMax, CoreWriteMax int64 // limits of setsockopt: net.core.rmem_max, wmem_max
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

// TCPReadMax returns the maximum receive buffer of autotuning in bytes
// (net.ipv4.tcp_rmem, third field), or 0 if unknown.
// https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html
func TCPReadMax(root fs.FS) int64 { return thirdField(line(root, "proc/sys/net/ipv4/tcp_rmem")) }

// TCPWriteMax returns the same limit for send buffers (net.ipv4.tcp_wmem).
func TCPWriteMax(root fs.FS) int64 { return thirdField(line(root, "proc/sys/net/ipv4/tcp_wmem")) }

func thirdField(s string) int64 {
	f := strings.Fields(s)
	if len(f) != 3 {
		return 0
	}
	return nonNegative(f[2])
}

func number(root fs.FS, name string) int64 { return nonNegative(line(root, name)) }

// nonNegative parses a number. It returns 0 if s is malformed or negative.
func nonNegative(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// Link is a network interface that is up, except loopback.
type Link struct {
	Name             string
	MTU              int64 // bytes
	Speed            int64 // Mbit/s; 0 is unknown, as for most virtual interfaces
	Duplex           string
	Errors, Received int64 // packets received, with errors and in total, since boot
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
