// Package sysinfo reads facts about a Linux host from its /proc and /sys,
// given as an fs.FS, so that a captured tree reads like a live one. What
// cannot be read is unknown, never an error.
//
// It measures nothing and changes nothing.
package sysinfo

import (
	"io/fs"
	"strings"
)

// line reads the first line of a file, "" where there is none.
func line(root fs.FS, name string) string {
	first, _, _ := strings.Cut(text(root, name), "\n")
	return strings.TrimSpace(first)
}

// ZFSVersion is the version of the loaded ZFS kernel module, "2.3.9-1"; ""
// where none is loaded.
func ZFSVersion(root fs.FS) string { return line(root, "sys/module/zfs/version") }

// Kernel is the running kernel's release, as uname -r prints it.
func Kernel(root fs.FS) string { return line(root, "proc/sys/kernel/osrelease") }

// Boot identifies the running kernel since it was started; containers and
// network namespaces of one machine have the same.
func Boot(root fs.FS) string { return line(root, "proc/sys/kernel/random/boot_id") }

// TCPReadMax is the largest receive buffer in bytes that autotuning gives a
// socket (net.ipv4.tcp_rmem, third field); 0 is unknown.
// https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html
func TCPReadMax(root fs.FS) int64 { return third(line(root, "proc/sys/net/ipv4/tcp_rmem")) }

// TCPWriteMax is the same for send buffers (net.ipv4.tcp_wmem).
func TCPWriteMax(root fs.FS) int64 { return third(line(root, "proc/sys/net/ipv4/tcp_wmem")) }

func third(s string) int64 {
	f := strings.Fields(s)
	if len(f) != 3 {
		return 0
	}
	return whole(f[2])
}
