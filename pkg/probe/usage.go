package probe

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// usage is the first line of /proc/stat, in ticks of 1/100 s.
// https://man7.org/linux/man-pages/man5/proc_stat.5.html
type usage struct {
	busy, iowait float64
	at           time.Time
}

func readUsage() usage {
	u := usage{at: time.Now()}
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	// cpu user nice system idle iowait irq softirq steal …
	for i, f := range strings.Fields(first) {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			continue // "cpu"
		}
		switch i {
		case 1, 2, 3, 6, 7:
			u.busy += n
		case 5:
			u.iowait = n
		}
	}
	return u
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
	ticks := u.at.Sub(before.at).Seconds() * 100
	if ticks <= 0 {
		return 0, 0
	}
	return max(0, (u.busy-before.busy)/ticks), max(0, (u.iowait-before.iowait)/ticks)
}
