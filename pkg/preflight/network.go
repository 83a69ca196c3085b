package preflight

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/size"
	"zxfer/pkg/sysinfo"
)

// Link is a measurement of the network in one direction.
type Link struct {
	From, To       string // hosts
	BytesPerSecond uint64
	Streams        int
	Window         int // requested socket buffers in bytes; 0 = autotuning
	Seconds        float64
	// Limit is the bottleneck named by package transfer.
	Limit string
	// Spare reports whether the limiting host has idle processors. One connection uses at most
	// one processor.
	Spare bool

	// From the sender's kernel (TCP_INFO), summed over the streams.
	RTT                              time.Duration // the longest
	Busy, RwndLimited, SndbufLimited time.Duration
	Retransmits                      uint64
	Congestion                       string

	// WriteMax and ReadMax are the maximum buffers of the sender's and the receiver's kernel,
	// in bytes; 0 = unknown.
	WriteMax, ReadMax int64

	PathMTU       int // largest packet that passes unfragmented, in bytes; 0 = unknown
	Interface     string
	MTU, PeerMTU  int // of the interfaces at both ends
	PeerInterface string
}

const (
	// lossy: one retransmission in so many segments makes loss-based congestion control
	// underuse a path.
	// https://datatracker.ietf.org/doc/html/rfc3649#section-1
	lossy = 2000
	// segment is the usual payload of a segment, in bytes.
	segment = 1448
)

// MeasuredLink is a measured link with its additional measurements.
type MeasuredLink struct {
	Link
	// MoreStreams are measurements of the same link with increasing numbers of streams; empty if not
	// tried. The fastest shows what the path carries and what a remedy can gain.
	MoreStreams []Link
	Reverse     bool   // the transfer goes the other way
	Failed      string // why there was no data connection; then only From is set
}

// checkRate finds what limits a link and how to fix it.
func checkRate(m *MeasuredLink) []finding.Finding {
	if m.Failed != "" {
		return findings(finding.Finding{Host: m.From, Severity: finding.Fail, Summary: "cannot establish a data connection", Evidence: m.Failed,
			Remedy: "open a port and name it: {{port-range}}\nor let the other host connect: {{dial}}"})
	}
	l, more := m.Link, m.MoreStreams
	f := finding.Finding{Host: l.From, Severity: finding.OK,
		Evidence: fmt.Sprintf("%s for %.1f s; TCP_INFO: round trip %s, busy %s, of that receiver's window closed %s, send buffer full %s; %d retransmits; %s",
			english.Plural(l.Streams, "stream", ""), l.Seconds, l.RTT.Round(10*time.Microsecond), l.Busy.Round(time.Millisecond), l.RwndLimited.Round(time.Millisecond),
			l.SndbufLimited.Round(time.Millisecond), l.Retransmits, cmp.Or(l.Congestion, "unknown"))}
	where := fmt.Sprintf("%s to %s: %s", l.From, l.To, size.Rate(l.BytesPerSecond))
	best := l
	for _, m := range more {
		if m.BytesPerSecond > best.BytesPerSecond {
			best = m
		}
	}
	switch {
	case l.MayBeLimited() && (len(more) == 0 && !l.singleProcessor() || best.faster(l)):
		expected := ""
		switch n := len(more); {
		case n > 1 && more[n-1].ScaledFrom(more[n-2]), n == 1 && more[0].ScaledFrom(l):
			expected = "for the same rate or more, "
		case n > 0:
			expected = "for the same rate, "
		}
		cause, cure := l.diagnose(best.BytesPerSecond, expected)
		f.Severity, f.Summary, f.Remedy = finding.Warn, where+", "+cause, strings.Join(append(l.moreStreams(more, best), cure...), "; or ")
	case l.processor() != "":
		f.Summary = where + ", limited by the " + l.processor() + ", not by the network"
	case len(more) > 0 && more[len(more)-1].processor() != "":
		last := more[len(more)-1]
		f.Summary = fmt.Sprintf("%s, and little more with %d streams, limited by the %s", where, last.Streams, last.processor())
	default:
		f.Summary = where + ", the capacity of the network path"
	}
	if m.Reverse && f.Severity == finding.Warn {
		f.Severity = finding.Note
	}
	return findings(f)
}

// moreStreams recommends the smallest number of streams that was about as fast as the best.
func (l Link) moreStreams(more []Link, best Link) []string {
	for _, m := range more {
		if m.faster(l) && m.BytesPerSecond > best.BytesPerSecond-best.BytesPerSecond/10 {
			return []string{fmt.Sprintf("{{streams %d}} (measured: %s)", m.Streams, size.Rate(m.BytesPerSecond))}
		}
	}
	return nil
}

// diagnose returns the cause of a limited link and remedies for a rate in bytes per second.
// expected is put before the remedy that reaches the rate.
//
// net.core.rmem_max and wmem_max limit only buffers that a program requests,
// not the kernel's autotuning: https://man7.org/linux/man-pages/man7/tcp.7.html
func (l Link) diagnose(rate uint64, expected string) (cause string, cures []string) {
	var cure string
	read := fmt.Sprintf("on %s: sysctl -w net.ipv4.tcp_rmem='4096 131072 %d'", l.To, l.sufficientBuffer(rate))
	write := fmt.Sprintf("on %s: sysctl -w net.ipv4.tcp_wmem='4096 16384 %d'", l.From, l.sufficientBuffer(rate))
	// Also raise the limit that would be reached next.
	short := func(limit int64) bool { return limit > 0 && limit < l.inFlight(rate)*3/2 }
	switch {
	case l.shortWindow():
		cause, cure = "limited by the receiver's window", read
		if short(l.WriteMax) {
			cure += ", and " + write
		}
	case l.shortBuffer():
		cause, cure = "limited by the sender's buffer", write
		if short(l.ReadMax) {
			cure += ", and " + read
		}
	case l.lossy():
		cause = fmt.Sprintf("%d segments were lost", l.Retransmits)
		if l.Congestion == "bbr" {
			return cause, []string{"check for a bad cable, a duplex mismatch, or a traffic policer"}
		}
		return cause, []string{"on " + l.From + ": modprobe tcp_bbr && sysctl -w net.ipv4.tcp_congestion_control=bbr"}
	default:
		return "limited by the " + l.processor() + ", one per stream", nil
	}
	if l.Window > 0 {
		cure = "omit {{window}}, which fixes both buffers"
	}
	return cause, []string{expected + cure}
}

// MayBeLimited reports whether windows, buffers, losses or a single processor may limit the
// link below the path's rate. A full path looks the same: its queue delays and drops packets.
// Measuring with more streams distinguishes the two.
func (l Link) MayBeLimited() bool {
	return l.shortWindow() || l.shortBuffer() || l.lossy() || l.singleProcessor()
}

func (l Link) singleProcessor() bool { return l.Spare && l.processor() != "" }

// processor returns the processor that limits a link, or "" if the network does. A source or
// target in memory counts as its processor.
func (l Link) processor() string {
	switch {
	case strings.HasSuffix(l.Limit, "cpu"):
		return l.Limit
	case l.Limit == "source":
		return "sender cpu"
	case l.Limit == "target":
		return "receiver cpu"
	}
	return ""
}

func (l Link) shortWindow() bool { return strings.Contains(l.Limit, "receiver window") }

func (l Link) shortBuffer() bool { return strings.Contains(l.Limit, "send buffer") }

// lossy reports whether losses may limit the rate.
func (l Link) lossy() bool {
	segments := uint64(float64(l.BytesPerSecond)*l.Seconds) / segment
	return l.Retransmits > 10 && l.Retransmits*lossy > segments && l.RTT > time.Millisecond
}

// ScaledFrom reports whether the rate grew about as much as the number of streams. If it did,
// something limits each stream; otherwise the path is full.
func (l Link) ScaledFrom(from Link) bool {
	return 4*l.BytesPerSecond*uint64(from.Streams) >= 3*from.BytesPerSecond*uint64(l.Streams)
}

// faster reports whether a link is faster than another beyond chance.
func (l Link) faster(other Link) bool {
	return l.BytesPerSecond > other.BytesPerSecond+other.BytesPerSecond*minGain/100
}

// inFlight returns the bytes in flight per stream at a rate in bytes per second.
func (l Link) inFlight(rate uint64) int64 {
	return int64(float64(rate) / float64(max(1, l.Streams)) * l.RTT.Seconds())
}

// sufficientBuffer returns a buffer size in bytes that does not limit the rate. Up to half of a
// buffer is kernel overhead, and a sender keeps data for up to a second round trip.
func (l Link) sufficientBuffer(rate uint64) int64 {
	w := int64(2 * smallBuffer)
	for w < 4*l.inFlight(rate) && w < 1<<30 {
		w *= 2
	}
	return w
}

// checkMTU compares the packets that pass with the MTUs of the interfaces at both ends. It
// finds nothing if they are unknown.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h (tcpi_pmtu)
func checkMTU(l *MeasuredLink) []finding.Finding {
	if l.Reverse || l.PathMTU == 0 || l.MTU == 0 {
		return nil
	}
	f := finding.Finding{Host: l.From, Severity: finding.OK, Summary: fmt.Sprintf("packets of up to %d bytes reach %s", l.PathMTU, l.To),
		Evidence: fmt.Sprintf("TCP_INFO: tcpi_pmtu %d; MTU of %s on %s: %d", l.PathMTU, l.Interface, l.From, l.MTU)}
	if l.PeerMTU > 0 {
		f.Evidence += fmt.Sprintf(", of %s on %s: %d", l.PeerInterface, l.To, l.PeerMTU)
	}
	switch {
	case l.PathMTU < l.MTU:
		f.Severity, f.Summary = finding.Note, fmt.Sprintf("packets of more than %d bytes do not reach %s, although %s has an MTU of %d", l.PathMTU, l.To, l.Interface, l.MTU)
		f.Remedy = "raise the MTU of the devices between the hosts; or on " + l.From + ": " + command("ip", "link", "set", "dev", l.Interface, "mtu", fmt.Sprint(l.PathMTU))
	case l.PeerMTU > 0 && l.PeerMTU != l.MTU:
		f.Severity, f.Summary = finding.Note, fmt.Sprintf("the interfaces have different MTUs, %d and %d: TCP uses the smaller one", l.MTU, l.PeerMTU)
		host, name := l.From, l.Interface
		if l.PeerMTU < l.MTU {
			host, name = l.To, l.PeerInterface
		}
		f.Remedy = "if the network supports it, on " + host + ": " + command("ip", "link", "set", "dev", name, "mtu", fmt.Sprint(max(l.MTU, l.PeerMTU)))
	}
	return findings(f)
}

// checkPath reports the network path of the data if it is not the first choice.
func checkPath(in *Input) []finding.Finding {
	w := in.Path
	f := finding.Finding{Host: w.Listen, Severity: finding.Note, Evidence: strings.Join(w.Rejected, "; ")}
	remedy := []string{"open ports for the other host and name them: {{port-range LOW-HIGH}}"}
	if w.Unroutable {
		remedy[0] = "name an address that the other host can reach: {{data-address ADDRESS}}"
	}
	switch {
	case len(w.Rejected) == 0:
		f.Severity, f.Summary, f.Evidence = finding.OK, "data passes "+w.Path, "one connection to the data port"
		return findings(f)
	case w.NoPath:
		f.Severity, f.Summary, f.Evidence = finding.Fail, "no data passes between the two hosts: "+f.Evidence, ""
		for _, o := range w.Untried {
			remedy = append(remedy, "use another path: "+o)
		}
	case w.OverSSH:
		f.Severity, f.Summary = finding.Warn, "only ssh gets through: ssh encrypts all data in one stream, which is slower and uses one processor core on each host"
		remedy = append(remedy, "or skip the search: "+w.Option)
	default:
		f.Summary = "the connection is made " + w.Path + ", because the other direction failed"
		remedy = append(remedy, "or skip the search: "+w.Option)
	}
	f.Remedy = strings.Join(remedy, "\n")
	return findings(f)
}

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
	f := finding.Finding{Severity: finding.OK, Summary: fmt.Sprintf("TCP windows may grow to %s for reading, %s for writing", size.Text(uint64(s.TCP.ReadMax)), size.Text(uint64(s.TCP.WriteMax))),
		Evidence: fmt.Sprintf("net.ipv4.tcp_rmem[2] = %d, tcp_wmem[2] = %d; congestion control %s", s.TCP.ReadMax, s.TCP.WriteMax, cmp.Or(s.TCP.Congestion, "unknown"))}
	if least := min(s.TCP.ReadMax, s.TCP.WriteMax); least < smallBuffer {
		f.Severity = finding.Note
		f.Remedy = "for high-latency links: more {{streams}}, or " + windowSysctl(16<<20)
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
			f.Severity, f.Summary = finding.Warn, l.Name+" runs in half duplex: probably a duplex mismatch"
			f.Remedy = "ethtool " + l.Name + "; enable autonegotiation on both sides"
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
		return findings(finding.Finding{Severity: finding.Note, Summary: "the CPU frequency governor is powersave", Evidence: "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
			Remedy: "if the processor limits a transfer: cpupower frequency-set -g performance"})
	case "":
		return nil
	}
	return findings(finding.Finding{Severity: finding.OK, Summary: "the CPU frequency governor is " + s.CPU.Governor, Evidence: "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"})
}

// netcat checks the variant of nc. It matters only for pipelines by hand and for hosts without
// zxfer.
func netcat(s *sysinfo.System) []finding.Finding {
	path := s.Tools.Paths["nc"]
	if path == "" {
		return findings(finding.Finding{Severity: finding.Note, Summary: "nc is not installed: only manual pipelines need it", Evidence: "PATH", Remedy: "apt install netcat-openbsd"})
	}
	f := finding.Finding{Severity: finding.OK, Summary: "the variant of nc is " + s.Tools.NC, Evidence: "nc -h of " + path}
	switch s.Tools.NC {
	case sysinfo.OpenBSD:
		f.Summary += ", which reads 16 KiB at a time and exits with -N"
	case sysinfo.GNU:
		f.Severity, f.Summary = finding.Warn, "nc is GNU netcat, which reads 1 KiB at a time: manual pipelines are several times slower"
		f.Remedy = "apt install netcat-openbsd"
	case sysinfo.Traditional:
		f.Severity, f.Summary = finding.Note, "nc is the traditional netcat, which reads 8 KiB at a time and exits only with -q 0"
		f.Remedy = "apt install netcat-openbsd"
	case sysinfo.BusyBox:
		f.Severity, f.Summary = finding.Note, "nc is BusyBox nc, which has neither -N nor -q"
		f.Remedy = "apt install netcat-openbsd"
	case sysinfo.UnknownNC:
		f.Severity, f.Summary = finding.Note, "the variant of nc is unknown"
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
		return findings(finding.Finding{Severity: finding.OK, Summary: "ssh, mbuffer and zstd are installed", Evidence: "PATH"})
	}
	return findings(finding.Finding{Severity: finding.Note, Summary: "not installed: " + strings.Join(missing, ", "), Evidence: "PATH", Remedy: "zxfer does not need it; for manual pipelines: apt install " + strings.Join(missing, " ")})
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
		Summary: fmt.Sprintf("TCP windows of %s allow at most %s over a round trip of %s with {{streams %d}}",
			size.Text(uint64(w)), size.Rate(uint64(rate)), in.RTT.Round(100*time.Microsecond), in.Streams),
		Evidence: fmt.Sprintf("%s: net.ipv4.tcp_wmem[2] = %d; %s: net.ipv4.tcp_rmem[2] = %d", in.Source.Name, s.TCP.WriteMax, in.Target.Name, t.TCP.ReadMax),
		Remedy:   "use more {{streams}}, or run on both hosts: " + windowSysctl(need)})
}

// speed returns the rate of the fastest interface in bytes per second, 0 = unknown.
func speed(s *sysinfo.System) int64 {
	var n int64
	for _, l := range s.Links {
		n = max(n, l.Speed*1_000_000/8)
	}
	return n
}
