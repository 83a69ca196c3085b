package report

import (
	"fmt"
	"time"

	"zxfer/pkg/size"
	"zxfer/pkg/transport/connect"
)

// maxETA bounds the time that is foretold; beyond it only "more" is said.
const maxETA = 99 * 24 * time.Hour

// gauge is what can honestly be said of how far a stream is. Estimates of
// zfs are often off, at times by a lot (openzfs#16691), so nothing here ever
// shows more than 99 % of a stream that still runs, or a time to go that was
// not computed from a plausible rate.
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

// exceeded tells that the estimate has proved too low, by more than an eighth: most
// are a little.
func (g gauge) exceeded() bool {
	return g.total > 0 && g.bytes > g.total && g.bytes-g.total > g.total/8
}

// percent is 0 to 99; ok is false where there is no estimate or it was exceeded.
func (g gauge) percent() (p int, ok bool) {
	if g.total == 0 || g.exceeded() {
		return 0, false
	}
	return min(99, int(float64(g.bytes)/float64(g.total)*100)), true
}

// eta is the time to go at the present rate, at most maxETA; ok is false
// where it cannot be told.
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

// amount says how much has arrived, of how much.
func (g gauge) amount() string {
	switch {
	case g.total == 0:
		return size.Text(g.bytes)
	case g.exceeded():
		return size.Text(g.bytes) + " (estimate was " + size.Text(g.total) + ")"
	}
	return size.Text(g.bytes) + " of " + size.Text(max(g.total, g.bytes))
}

// etaText is "ETA 12 s", "" where it cannot be told.
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

// whole is a duration that changes while it is shown: tenths would only flicker.
func whole(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%d s", d.Round(time.Second)/time.Second)
	}
	return Seconds(d.Seconds())
}

// facts are what it tells, without what is unknown.
func (g gauge) facts() []string {
	parts := []string{g.amount(), rate(g.rate), g.etaText()}
	if p, ok := g.percent(); ok {
		parts[0] += fmt.Sprintf(" (%d %%)", p)
	}
	return present(parts)
}
