package report

import (
	"fmt"
	"time"

	"zxfer/pkg/size"
	"zxfer/pkg/transport/connect"
)

// maxETA is the longest remaining time that is shown.
const maxETA = 99 * 24 * time.Hour

// gauge holds progress that can be trusted. Estimates of zfs are often wrong, sometimes by a lot
// (openzfs#16691). A gauge therefore never shows more than 99 % for a running stream, nor an ETA
// from an implausible rate.
type gauge struct {
	bytes uint64
	total uint64 // estimate, 0 = unknown
	rate  uint64 // bytes per second, 0 = unknown
}

func gaugeOf(p connect.Progress) gauge {
	g := gauge{bytes: p.Bytes, total: p.Total, rate: p.Rate}
	if g.rate > maxRate {
		g.rate = 0
	}
	return g
}

// facts returns the known values as text.
func (g gauge) facts() []string {
	parts := []string{g.amount(), rate(g.rate), g.etaText()}
	if p, ok := g.percent(); ok {
		parts[0] += fmt.Sprintf(" (%d %%)", p)
	}
	return nonEmpty(parts)
}

// etaText returns, for example, "ETA 12 s", or "" if it is unknown.
func (g gauge) etaText() string {
	d, ok := g.eta()
	switch {
	case !ok:
		return ""
	case d >= maxETA:
		return "ETA >99 d"
	}
	return "ETA " + whole(max(d, time.Second))
}

// eta returns the remaining time at the current rate, at most maxETA. ok is false if it is
// unknown.
func (g gauge) eta() (d time.Duration, ok bool) {
	if g.total == 0 || g.exceeded() || g.rate == 0 {
		return 0, false
	}
	s := float64(g.total-min(g.bytes, g.total)) / float64(g.rate)
	if s >= maxETA.Seconds() {
		return maxETA, true
	}
	return time.Duration(s * float64(time.Second)), true
}

// exceeded reports whether the estimate was too low by more than an eighth. Most estimates are
// slightly low.
func (g gauge) exceeded() bool {
	return g.total > 0 && g.bytes > g.total && g.bytes-g.total > g.total/8
}

// whole formats a duration that changes on screen, without tenths, which would flicker.
func whole(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d s", d.Round(time.Second)/time.Second)
	}
	return Seconds(d.Seconds())
}

// amount formats the bytes that arrived and the total.
func (g gauge) amount() string {
	switch {
	case g.total == 0:
		return size.Text(g.bytes)
	case g.exceeded():
		return size.Text(g.bytes) + " (estimate was " + size.Text(g.total) + ")"
	}
	return size.Text(g.bytes) + " of " + size.Text(max(g.total, g.bytes))
}

// percent returns 0 to 99. ok is false if there is no estimate or it was exceeded.
func (g gauge) percent() (p int, ok bool) {
	if g.total == 0 || g.exceeded() {
		return 0, false
	}
	return min(99, int(float64(g.bytes)/float64(g.total)*100)), true
}
