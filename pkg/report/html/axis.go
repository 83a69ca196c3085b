package html

import (
	"fmt"
	"math"
	"time"
)

// tick is a round value on an axis and its position.
type tick struct {
	Label string
	At    string // percent of a width, or pixels of a height
	End   bool   // too close to the right end to be centred below its line
	Odd   bool   // hidden on narrow screens
}

// rates is an axis of bytes per second with round steps.
type rates struct {
	top, step float64
	unit      int // power of 1024 for all labels
}

// ratesUpTo returns an axis that covers most.
func ratesUpTo(most float64) rates {
	r := rates{unit: 0}
	for most > 1000 && r.unit < 5 {
		most /= 1024
		r.unit++
	}
	r.step = 1000
	for _, step := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500} {
		if most <= 5*step {
			r.step = step
			break
		}
	}
	unit := math.Pow(1024, float64(r.unit))
	r.top = r.step * max(2, math.Ceil(most/r.step)) * unit
	r.step *= unit
	return r
}

// label formats a rate: "40 MiB/s".
func (r rates) label(rate float64) string {
	if rate == 0 {
		return "0"
	}
	unit := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}[r.unit]
	return fmt.Sprintf("%.4g %s/s", rate/math.Pow(1024, float64(r.unit)), unit)
}

// timeTicks returns about six round times within length.
func timeTicks(length time.Duration) []tick {
	steps := timeSteps()
	step := steps[len(steps)-1]
	for _, s := range steps {
		if length <= 7*s {
			step = s
			break
		}
	}
	var out []tick
	for at := time.Duration(0); at <= length && len(out) < 100; at += step {
		out = append(out, tick{Label: timeLabel(at), At: share(at, length), End: at > length*97/100, Odd: len(out)%2 == 1})
	}
	return out
}

// timeSteps returns the possible steps of a time axis.
func timeSteps() []time.Duration {
	const day = 24 * time.Hour
	return []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
		day, 2 * day, 5 * day, 10 * day, 50 * day, 100 * day, 1000 * day}
}

// timeLabel formats a round time: "1 min 30 s".
func timeLabel(d time.Duration) string {
	const day = 24 * time.Hour
	pair := func(big, small time.Duration, of, rest string) string {
		if d%big == 0 {
			return fmt.Sprintf("%d %s", d/big, of)
		}
		return fmt.Sprintf("%d %s %d %s", d/big, of, d%big/small, rest)
	}
	switch {
	case d == 0:
		return "0"
	case d < time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d < time.Hour:
		return pair(time.Minute, time.Second, "min", "s")
	case d < day:
		return pair(time.Hour, time.Minute, "h", "min")
	}
	return pair(day, time.Hour, "d", "h")
}

// share returns part as a percentage of of, for SVG.
func share(part, of time.Duration) string {
	if of <= 0 {
		return "0%"
	}
	return fmt.Sprintf("%.3f%%", 100*min(1, max(0, float64(part)/float64(of))))
}
