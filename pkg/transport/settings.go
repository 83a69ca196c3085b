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

	"zxfer/pkg/size"
)

// Settings describe how data moves between two hosts. The zero value leaves everything to
// zxfer. The TOML tags are keys of a job file's [job.transfer].
type Settings struct {
	Wire        string `toml:"wire,omitempty"`         // auto, signed, tls, plain, ssh, nc; "" = auto
	TrustedLink bool   `toml:"trusted_link,omitempty"` // consent to plain and nc
	Streams     int    `toml:"streams,omitempty"`      // TCP connections, 0 = chosen
	Dial        string `toml:"dial,omitempty"`         // auto, source, target; "" = auto
	DataAddress string `toml:"data_address,omitempty"` // of the listening host
	Ports       Ports  `toml:"ports,omitempty"`        // of the listening host
	Socket

	Compress        string    `toml:"compress,omitempty"` // auto, zstd[:N], off; "" = auto
	CompressThreads int       `toml:"compress_threads,omitempty"`
	Buffer          size.Size `toml:"buffer,omitempty"` // bytes on each side, 0 = chosen

	RSH         string `toml:"rsh,omitempty"`          // remote shell command, "" = ssh
	NoBootstrap bool   `toml:"no_bootstrap,omitempty"` // do not copy zxfer to a host that lacks it

	// Bandwidth limits all connections of a stream together, in bytes per second; 0 = no limit.
	Bandwidth size.Size `toml:"bandwidth,omitempty"`
	// BandwidthWindows override Bandwidth at times of the day. The first matching window
	// applies. A stream keeps the limit that it started with.
	BandwidthWindows []BandwidthWindow `toml:"bandwidth_window,omitempty"`
}

// Retries is the default number of retries of an interrupted transfer, MaxRetries the largest.
const (
	Retries    = 5
	MaxRetries = 1_000_000
	// MaxParallel bounds the datasets that move at the same time.
	MaxParallel = 64
)

// Words of Wire. The modes "signed" and "tls" of package tcp are also valid.
const (
	Auto  = "auto"  // signed for raw streams of encrypted data, tls otherwise
	Plain = "plain" // only connections are authenticated
	SSH   = "ssh"   // through the ssh connection
	NC    = "nc"    // with nc on a host without zxfer

	off = "off" // of Compress
)

// Socket holds the options of every data socket at both ends. Offers and tickets carry it.
type Socket struct {
	// Window is SO_RCVBUF and SO_SNDBUF in bytes; 0 = the kernel's autotuning.
	Window size.Size `json:"window,omitempty" toml:"window,omitempty"`
	// Congestion is TCP_CONGESTION; "" = the kernel's default.
	Congestion string `json:"congestion,omitempty" toml:"congestion,omitempty"`
}

// BandwidthWindow is a bandwidth limit for a time of day in the host's time zone.
type BandwidthWindow struct {
	From      TimeOfDay `toml:"from"`
	To        TimeOfDay `toml:"to"` // may be before From: past midnight
	Bandwidth size.Size `toml:"bandwidth"`
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
// time zone; 0 = none.
func (w *Settings) BandwidthAt(now time.Time) int64 {
	minute := TimeOfDay(now.Hour()*60 + now.Minute())
	for _, h := range w.BandwidthWindows {
		inside := minute >= h.From && minute < h.To
		if h.To <= h.From {
			inside = minute >= h.From || minute < h.To
		}
		if inside {
			return int64(h.Bandwidth)
		}
	}
	return int64(w.Bandwidth)
}

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
		return errors.New("the first port is above the last")
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
