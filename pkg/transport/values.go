package transport

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/option"
	"zxfer/pkg/size"
)

// BandwidthWindow is a time of the day, in the host's time zone, with its bandwidth.
type BandwidthWindow struct {
	From      TimeOfDay `toml:"from"`
	To        TimeOfDay `toml:"to"` // before From: over midnight
	Bandwidth size.Size `toml:"bandwidth"`
}

// TimeOfDay is minutes after midnight: "22:30".
type TimeOfDay int

// UnmarshalText reads a time of day.
func (t *TimeOfDay) UnmarshalText(text []byte) error {
	at, err := time.Parse("15:04", string(text))
	if err != nil {
		return fmt.Errorf("%q is not a time of day; write 08:00 or 22:30", text)
	}
	*t = TimeOfDay(at.Hour()*60 + at.Minute())
	return nil
}

// MarshalText writes a time of day as UnmarshalText reads it.
func (t TimeOfDay) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%02d:%02d", int(t)/60, int(t)%60), nil
}

// Ports is a range of TCP ports, "LOW-HIGH", or one port; zero is any.
type Ports struct{ Low, High int }

// UnmarshalText reads a range of ports.
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

// MarshalText writes a range as UnmarshalText reads it.
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

// Levels of zstd(1) without --ultra.
const minZstd, maxZstd = 1, 19

// compression is auto, off, zstd or zstd:LEVEL.
func compression(p *string) option.Value {
	return option.Of("auto|zstd[:N]|off", func() string { return cmp.Or(*p, Auto) }, func(s string) error {
		level, isLevel := strings.CutPrefix(s, "zstd:")
		switch n, err := strconv.Atoi(level); {
		case isLevel && (err != nil || n < minZstd || n > maxZstd):
			return fmt.Errorf("the level must be a whole number from %d to %d", minZstd, maxZstd)
		case !isLevel && s != Auto && s != off && s != "zstd":
			return fmt.Errorf("write auto, off, zstd or zstd:N with N from %d to %d", minZstd, maxZstd)
		}
		*p = s
		return nil
	})
}

func isAddress(s string) error {
	if _, err := netip.ParseAddr(s); err != nil {
		return errors.New("must be an IP address of the host that listens")
	}
	return nil
}

func isCommand(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("must name a command")
	}
	return nil
}
