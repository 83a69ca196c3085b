package preflight

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/finding"
	"zxfer/pkg/size"
	"zxfer/pkg/sysinfo"
)

// smallBuffer is the largest window considered small, in bytes. 4 MiB carry 1 Gbit/s over 33
// ms, or 10 Gbit/s over 3 ms. Linux's default for tcp_wmem[2] is 4 MiB.
const smallBuffer = 4 << 20

func tcpScaling(s *sysinfo.System) []finding.Finding {
	if s.TCP.Scaling != "0" {
		return nil
	}
	return findings(finding.Finding{Severity: finding.Warn, Summary: "TCP windows cannot grow beyond 64 KiB: 1 ms of round trip allows 65 MB/s, 20 ms 3 MB/s",
		Evidence: "net.ipv4.tcp_window_scaling = 0", Remedy: "sysctl -w net.ipv4.tcp_window_scaling=1"})
}

func tcpBuffers(s *sysinfo.System) []finding.Finding {
	if s.TCP.ReadMax == 0 || s.TCP.WriteMax == 0 {
		return nil
	}
	f := finding.Finding{Severity: finding.OK, Summary: fmt.Sprintf("windows may grow to %s for reading, %s for writing", size.Text(uint64(s.TCP.ReadMax)), size.Text(uint64(s.TCP.WriteMax))),
		Evidence: fmt.Sprintf("net.ipv4.tcp_rmem[2] = %d, tcp_wmem[2] = %d; congestion control %s", s.TCP.ReadMax, s.TCP.WriteMax, cmp.Or(s.TCP.Congestion, "unknown"))}
	if least := min(s.TCP.ReadMax, s.TCP.WriteMax); least < smallBuffer {
		f.Severity = finding.Note
		f.Remedy = "on a path with a long round trip: more {{streams}}, or " + windowSysctl(16<<20)
	}
	return findings(f)
}

// windowSysctl returns the command that sets the maximum window.
func windowSysctl(bytes int64) string {
	return fmt.Sprintf("sysctl -w net.ipv4.tcp_rmem='4096 131072 %d' net.ipv4.tcp_wmem='4096 16384 %d'", bytes, bytes)
}

// nicErrors is the acceptable number of receive errors per million packets. TCP slows down
// markedly from a loss of about 1 in 10,000.
// https://datatracker.ietf.org/doc/html/rfc3649#section-1
const nicErrors = 10

func nics(s *sysinfo.System) []finding.Finding {
	var out []finding.Finding
	for _, l := range s.Links {
		f := finding.Finding{Severity: finding.OK, Summary: fmt.Sprintf("%s is up, MTU %d", l.Name, l.MTU), Evidence: "/sys/class/net/" + l.Name}
		if l.Speed > 0 {
			f.Summary += fmt.Sprintf(", %d Mbit/s", l.Speed)
		}
		switch {
		case l.Duplex == "half":
			f.Severity, f.Summary = finding.Warn, l.Name+" runs in half duplex: the two ends do not agree"
			f.Remedy = "ethtool " + l.Name + "; let both ends negotiate"
		case l.Received > 0 && l.Errors*1_000_000/l.Received > nicErrors:
			f.Severity, f.Summary = finding.Warn, fmt.Sprintf("%s received %d of %d packets with errors", l.Name, l.Errors, l.Received)
			f.Evidence += "/statistics/rx_errors"
			f.Remedy = "ethtool -S " + l.Name + "; change the cable, the port or the transceiver"
		}
		out = append(out, f)
	}
	return out
}

func governor(s *sysinfo.System) []finding.Finding {
	switch s.CPU.Governor {
	case "powersave":
		// With intel_pstate and amd-pstate, powersave raises the clock under load.
		return findings(finding.Finding{Severity: finding.Note, Summary: "the clock's governor is powersave", Evidence: "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
			Remedy: "during a transfer that the processor limits: cpupower frequency-set -g performance"})
	case "":
		return nil
	}
	return findings(finding.Finding{Severity: finding.OK, Summary: "the clock's governor is " + s.CPU.Governor, Evidence: "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"})
}

// netcat checks the variant of nc. It matters only for pipelines by hand and for hosts without
// zxfer.
func netcat(s *sysinfo.System) []finding.Finding {
	path := s.Tools.Paths["nc"]
	if path == "" {
		return findings(finding.Finding{Severity: finding.Note, Summary: "no nc here: zxfer needs none, pipelines by hand do", Evidence: "PATH", Remedy: "apt install netcat-openbsd"})
	}
	f := finding.Finding{Severity: finding.OK, Summary: "nc is of the dialect " + s.Tools.NC, Evidence: "nc -h of " + path}
	switch s.Tools.NC {
	case sysinfo.OpenBSD:
		f.Summary += ", reads 16 KiB at a time, ends with -N"
	case sysinfo.GNU:
		f.Severity, f.Summary = finding.Warn, "nc is GNU netcat, which reads 1 KiB at a time: pipelines through it are several times slower"
		f.Remedy = "apt install netcat-openbsd"
	case sysinfo.Traditional:
		f.Severity, f.Summary = finding.Note, "nc is the traditional one, which reads 8 KiB at a time and ends only with -q 0"
		f.Remedy = "apt install netcat-openbsd"
	case sysinfo.BusyBox:
		f.Severity, f.Summary = finding.Note, "nc is busybox's, which has neither -N nor -q"
		f.Remedy = "apt install netcat-openbsd"
	case sysinfo.UnknownNC:
		f.Severity, f.Summary = finding.Note, "nc is of no dialect that zxfer knows"
	}
	return findings(f)
}

func tools(s *sysinfo.System) []finding.Finding {
	if len(s.Tools.Paths) == 0 {
		return nil
	}
	var missing []string
	for _, name := range []string{"ssh", "mbuffer", "zstd"} {
		if s.Tools.Paths[name] == "" {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return findings(finding.Finding{Severity: finding.OK, Summary: "ssh, mbuffer and zstd are here", Evidence: "PATH"})
	}
	return findings(finding.Finding{Severity: finding.Note, Summary: "not installed: " + strings.Join(missing, ", "), Evidence: "PATH", Remedy: "zxfer works without; for pipelines by hand: apt install " + strings.Join(missing, " ")})
}

const (
	// far is longer than any round trip in a local network. Shorter round trips are mostly
	// processing time at both ends.
	far = 5 * time.Millisecond
	// usualLink is the assumed link rate in bytes per second if the interfaces do not report
	// one: 1 Gbit/s.
	usualLink = 1e9 / 8
)

// window predicts whether the kernels' window limits keep the rate below the link's: streams ×
// window / round trip. Up to half of a receive buffer is kernel overhead.
func window(in *Input) []finding.Finding {
	s, t := in.Source.System, in.Target.System
	if s == nil || t == nil || in.RTT < far || in.Streams < 1 || s.TCP.WriteMax == 0 || t.TCP.ReadMax == 0 {
		return nil
	}
	w := min(s.TCP.WriteMax, t.TCP.ReadMax)
	rate := float64(in.Streams) * float64(w) / in.RTT.Seconds()
	link := float64(usualLink)
	if n := min(speed(s), speed(t)); n > 0 {
		link = float64(n)
	}
	if rate >= link {
		return nil
	}
	need := Link{Streams: in.Streams, RTT: in.RTT}.sufficientBuffer(uint64(link))
	return findings(finding.Finding{Host: in.Source.Name, Severity: finding.Note,
		Summary: fmt.Sprintf("windows of %s allow at most %s over a round trip of %s with {{streams %d}}",
			size.Text(uint64(w)), size.Rate(uint64(rate)), in.RTT.Round(100*time.Microsecond), in.Streams),
		Evidence: fmt.Sprintf("%s: net.ipv4.tcp_wmem[2] = %d; %s: net.ipv4.tcp_rmem[2] = %d", in.Source.Name, s.TCP.WriteMax, in.Target.Name, t.TCP.ReadMax),
		Remedy:   "more {{streams}}, or on both hosts: " + windowSysctl(need)})
}

// speed returns the rate of the fastest interface in bytes per second, 0 = unknown.
func speed(s *sysinfo.System) int64 {
	var n int64
	for _, l := range s.Links {
		n = max(n, l.Speed*1_000_000/8)
	}
	return n
}
