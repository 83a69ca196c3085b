package sysinfo

import (
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// Usage holds the counters of /proc/stat for all processors, in ticks of 1/100 s.
//
// The kernel samples busy time at each tick. This overstates work that the tick
// itself wakes, such as a shaped network's. With CONFIG_NO_HZ_IDLE, idle time is
// measured exactly. So busy time here is all time that is not idle, including time
// stolen by a hypervisor.
// https://man7.org/linux/man-pages/man5/proc_stat.5.html
type Usage struct {
	cpus, idle, iowait float64
	at                 time.Time
}

// ReadUsage reads the counters from a host's root. If it cannot, the result is zero
// usage.
func ReadUsage(root fs.FS) Usage {
	raw, _ := fs.ReadFile(root, "proc/stat")
	return parseUsage(string(raw), time.Now())
}

// parseUsage parses "cpu user nice system idle iowait ..." and counts the lines of
// single processors.
func parseUsage(stat string, at time.Time) Usage {
	u := Usage{at: at}
	for l := range strings.Lines(stat) {
		f := strings.Fields(l)
		switch {
		case len(f) < 6 || !strings.HasPrefix(f[0], "cpu"):
		case f[0] == "cpu":
			u.idle, u.iowait = ticks(f[4]), ticks(f[5])
		default:
			u.cpus++
		}
	}
	return u
}

// ticks returns 0 if s is not a number.
func ticks(s string) float64 {
	n, err := strconv.ParseUint(s, 10, 53)
	if err != nil {
		return 0
	}
	return float64(n)
}

// Processors returns the number of processors, or 0 if unknown.
func (u Usage) Processors() int { return int(u.cpus) }

// Since returns the average number of processors that were busy, and that waited
// for I/O.
func (u Usage) Since(earlier Usage) (busy, iowait float64) {
	passed := u.at.Sub(earlier.at).Seconds() * 100
	if passed <= 0 {
		return 0, 0
	}
	iowait = max(0, (u.iowait-earlier.iowait)/passed)
	idle := max(0, (u.idle-earlier.idle)/passed)
	return max(0, u.cpus-idle-iowait), iowait
}
