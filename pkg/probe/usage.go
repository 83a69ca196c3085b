package probe

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// usage is what /proc/stat tells of all processors together, in ticks of
// 1/100 s.
//
// What is busy is counted by looking at each tick, and so too often where the
// work is woken by that very tick, as a shaped network's is. Idle time is
// measured where the kernel stops the tick meanwhile (CONFIG_NO_HZ_IDLE), so
// that busy is here what was not idle, time stolen by a hypervisor included.
// https://man7.org/linux/man-pages/man5/proc_stat.5.html
type usage struct {
	cpus, idle, iowait float64
	at                 time.Time
}

// Busy begins to watch this host; what it returns tells how many processors
// were busy on average since.
func Busy() (since func() float64) {
	before := readUsage()
	return func() float64 {
		busy, _ := readUsage().since(before)
		return busy
	}
}

func readUsage() usage {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return usage{at: time.Now()}
	}
	return parseUsage(string(raw), time.Now())
}

// parseUsage reads "cpu user nice system idle iowait …" and counts the lines
// of single processors that follow.
func parseUsage(stat string, at time.Time) usage {
	u := usage{at: at}
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

// idle only waits: what is busy meanwhile is none of ours.
func idle(ctx context.Context, d time.Duration) (tally, error) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return tally{seconds: d.Seconds()}, nil
}

// since returns how many processors were busy, and waited, on average.
func (u usage) since(before usage) (busy, iowait float64) {
	passed := u.at.Sub(before.at).Seconds() * 100
	if passed <= 0 {
		return 0, 0
	}
	iowait = max(0, (u.iowait-before.iowait)/passed)
	idle := max(0, (u.idle-before.idle)/passed)
	return max(0, u.cpus-idle-iowait), iowait
}
