package netcat

import (
	"strconv"

	"zxfer/pkg/sysinfo"
)

// dialArgs are the arguments with which an nc of a dialect connects, ok false
// for a dialect that is not known. Every one of them ends when its peer closes.
// One that sends a stream must also close when its own input ends; one that
// receives must not, as its input is but the secret.
//
// https://manpages.debian.org/trixie/netcat-openbsd/nc.1.en.html (-N)
// https://manpages.debian.org/trixie/netcat-traditional/nc.1.en.html (-q)
// https://nmap.org/book/ncat-man-misc-options.html (--send-only)
func dialArgs(dialect, host string, port int, sends bool) (args []string, ok bool) {
	switch dialect {
	case sysinfo.OpenBSD:
		args = []string{"-N"}
	case sysinfo.Traditional:
		args = []string{"-q", "0"}
	case sysinfo.Ncat:
		args = []string{"--send-only"}
	case sysinfo.BusyBox: // closes by itself
	case sysinfo.GNU:
		args = []string{"-c"}
	default:
		return nil, false
	}
	if !sends {
		args = nil
	}
	return append(args, host, strconv.Itoa(port)), true
}
