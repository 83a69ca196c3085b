// Package transport holds the settings for moving data between two hosts.
//
//   - Settings: the values that the user set. Commands and the job file share them.
//   - Option: one entry of the table, with its flag, job-file key, help and value.
//   - Place: where an option may be written. Condition: when an option has no effect.
//   - Wire: how data crosses: signed, tls, plain, ssh or nc.
//   - Socket: the options of a data socket. Ports: a range of TCP ports.
//   - PathSearch: the result of the search for a network path.
//
// The package opens no connection and chooses no default: package connect does that with
// package tcp.
package transport

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/size"
)

// Retries is the default number of retries of an interrupted transfer, MaxRetries the largest.
const (
	Retries    = 5
	MaxRetries = 1_000_000
	// MaxParallel bounds the datasets that move at the same time.
	MaxParallel = 64
)

// BandwidthWindow is a bandwidth limit for a time of day in the host's time zone.
type BandwidthWindow struct {
	From TimeOfDay `toml:"from"`
	To   TimeOfDay `toml:"to"` // may be before From: past midnight
	// Bandwidth is in bytes per second. 0 closes the window: scheduled jobs send nothing.
	// nil is invalid.
	Bandwidth *size.Size `toml:"bandwidth"`
}

// closed reports whether nothing may be sent in the window.
func (w *BandwidthWindow) closed() bool { return w != nil && w.Bandwidth != nil && *w.Bandwidth == 0 }

func (w *BandwidthWindow) contains(at TimeOfDay) bool {
	if w.To <= w.From {
		return at >= w.From || at < w.To
	}
	return at >= w.From && at < w.To
}

// TimeOfDay is a number of minutes after midnight, written "22:30".
type TimeOfDay int

// UnmarshalText parses a time of day.
func (t *TimeOfDay) UnmarshalText(text []byte) error {
	at, err := time.Parse("15:04", string(text))
	if err != nil {
		return fmt.Errorf("%q is not a time of day; write 08:00 or 22:30", text)
	}
	*t = TimeOfDay(at.Hour()*60 + at.Minute())
	return nil
}

// MarshalText formats a time of day for UnmarshalText.
func (t TimeOfDay) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%02d:%02d", int(t)/60, int(t)%60), nil
}

// BandwidthAt returns the limit in bytes per second for a stream that starts at now, in now's
// time zone; 0 = none. A closed window has no limit of its own.
func (w *Settings) BandwidthAt(now time.Time) int64 {
	if h := w.windowAt(timeOfDay(now)); h != nil && h.Bandwidth != nil && !h.closed() {
		return int64(*h.Bandwidth)
	}
	return int64(w.Bandwidth)
}

// windowAt returns the first window at a time of day, or nil.
func (w *Settings) windowAt(at TimeOfDay) *BandwidthWindow {
	for i := range w.BandwidthWindows {
		if w.BandwidthWindows[i].contains(at) {
			return &w.BandwidthWindows[i]
		}
	}
	return nil
}

// ClosedAt reports whether a window with a bandwidth of 0 applies at now, in now's time zone.
func (w *Settings) ClosedAt(now time.Time) bool {
	return w.windowAt(timeOfDay(now)).closed()
}

// NextChange returns the first minute after now in which the windows close or open, and false if
// there is none.
func (w *Settings) NextChange(now time.Time) (time.Time, bool) {
	closed := w.ClosedAt(now)
	for at, i := now.Truncate(time.Minute), 0; i < minutesPerDay+120 && len(w.BandwidthWindows) > 0; i++ { // a day may have 25 hours
		if at = at.Add(time.Minute); w.ClosedAt(at) != closed {
			return at, true
		}
	}
	return time.Time{}, false
}

// checkWindows returns an error if a window has no valid bandwidth, or if nothing may ever be sent.
func (w *Settings) checkWindows() error {
	for _, h := range w.BandwidthWindows {
		if h.Bandwidth == nil || *h.Bandwidth < 0 {
			return fault.Usagef(`write bandwidth = "10MiB", or bandwidth = 0 to send nothing`, "transfer.bandwidth_window: bandwidth is missing or negative")
		}
	}
	if w.AlwaysClosed() {
		return fault.Usagef("to stop transfers for a while: zxfer replicate pause --transfers-only JOB", "transfer.bandwidth_window: bandwidth = 0 applies at every time of the day, so that nothing is ever sent")
	}
	return nil
}

// AlwaysClosed reports whether the windows are closed at every time of the day.
func (w *Settings) AlwaysClosed() bool {
	for at := range TimeOfDay(minutesPerDay) {
		if !w.windowAt(at).closed() {
			return false
		}
	}
	return true
}

const minutesPerDay = 24 * 60

func timeOfDay(t time.Time) TimeOfDay { return TimeOfDay(t.Hour()*60 + t.Minute()) }

// Ports is a range of TCP ports, written "LOW-HIGH", or one port. Zero means any.
type Ports struct{ Low, High int }

// UnmarshalText parses a range of ports.
func (p *Ports) UnmarshalText(text []byte) error {
	from, to, isRange := strings.Cut(string(text), "-")
	if !isRange {
		to = from
	}
	low, errLow := strconv.ParseUint(from, 10, 16)
	high, errHigh := strconv.ParseUint(to, 10, 16)
	switch {
	case errLow != nil || errHigh != nil || low == 0:
		return errors.New("write LOW-HIGH, ports from 1 to 65535")
	case low > high:
		return errors.New("the first port is higher than the last")
	}
	*p = Ports{int(low), int(high)}
	return nil
}

// MarshalText formats a range for UnmarshalText.
func (p Ports) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p Ports) String() string {
	switch p.Low {
	case 0:
		return ""
	case p.High:
		return strconv.Itoa(p.Low)
	}
	return fmt.Sprintf("%d-%d", p.Low, p.High)
}

// PathSearch is the result of the search for a path between two hosts. It is zero if no search
// was necessary.
type PathSearch struct {
	Path       string   // the chosen path: "from alpha to beta", "through ssh"
	Rejected   []string // the paths that failed, with the reasons
	Unroutable bool     // the first rejected path has no usable address
	NoPath     bool     // all paths failed
	OverSSH    bool     // the path is the ssh connection
	Listen     string   // the listening host of the first path
	Option     string   // the option that selects this path directly
	Untried    []string // alternatives that the user's options excluded
}
