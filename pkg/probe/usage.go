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

// backgroundTime is how long a host is watched before a measurement, ten ticks.
const backgroundTime = 100 * time.Millisecond

// background tells how many processors are busy with something else.
func background(ctx context.Context) float64 {
	before := readUsage()
	select {
	case <-ctx.Done():
	case <-time.After(backgroundTime):
	}
	busy, _ := readUsage().since(before)
	return busy
}

// since returns how many processors were busy, and waited, on average.
func (u usage) since(before usage) (busy, iowait float64) {
	ticks := u.at.Sub(before.at).Seconds() * 100
	if ticks <= 0 {
		return 0, 0
	}
	return max(0, (u.busy-before.busy)/ticks), max(0, (u.iowait-before.iowait)/ticks)
}
