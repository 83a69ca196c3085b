package sysinfo

import (
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// Usage is what /proc/stat tells of all processors together, in ticks of
// 1/100 s.
//
// What is busy is counted by looking at each tick, and so too often where the
// work is woken by that very tick, as a shaped network's is. Idle time is
// measured where the kernel stops the tick meanwhile (CONFIG_NO_HZ_IDLE), so
// that busy is here what was not idle, time stolen by a hypervisor included.
// https://man7.org/linux/man-pages/man5/proc_stat.5.html
type Usage struct {
	cpus, idle, iowait float64
	at                 time.Time
}

// ReadUsage reads it from a host's root; of one that cannot be read nothing was busy.
func ReadUsage(root fs.FS) Usage {
	raw, _ := fs.ReadFile(root, "proc/stat")
	return parseUsage(string(raw), time.Now())
}

// parseUsage reads "cpu user nice system idle iowait …" and counts the lines
// of single processors that follow.
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

// ticks is 0 where s is no number.
func ticks(s string) float64 {
	n, err := strconv.ParseUint(s, 10, 53)
	if err != nil {
		return 0
	}
	return float64(n)
}

// Processors is how many there are, 0 where that is not known.
func (u Usage) Processors() int { return int(u.cpus) }

// Since returns how many processors were busy, and waited, on average.
func (u Usage) Since(before Usage) (busy, iowait float64) {
	passed := u.at.Sub(before.at).Seconds() * 100
	if passed <= 0 {
		return 0, 0
	}
	iowait = max(0, (u.iowait-before.iowait)/passed)
	idle := max(0, (u.idle-before.idle)/passed)
	return max(0, u.cpus-idle-iowait), iowait
}
