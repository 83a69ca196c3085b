package replicate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/size"
)

// Duration is a time span: "90s", "15m", "36h", "7d", or parts of these in a
// row, such as "1d12h".
type Duration time.Duration

// UnmarshalText reads a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	var days time.Duration
	if whole, rest, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(whole, 10, 16)
		if err != nil {
			return fmt.Errorf("%q is not a time span; write 90s, 15m, 36h or 7d", s)
		}
		days = time.Duration(n) * 24 * time.Hour
		if s = rest; s == "" {
			s = "0s"
		}
	}
	span, err := time.ParseDuration(s)
	if err != nil || span < 0 || span > math.MaxInt64-days {
		return fmt.Errorf("%q is not a time span; write 90s, 15m, 36h or 7d", string(text))
	}
	*d = Duration(days + span)
	return nil
}

// MarshalText writes a duration as UnmarshalText reads it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string {
	if days := time.Duration(d) / day; days >= 2 {
		rest := ""
		if d %= Duration(day); d != 0 {
			rest = d.String()
		}
		return strconv.FormatInt(int64(days), 10) + "d" + rest
	}
	s := time.Duration(d).String()
	// 1h0m0s is 1h.
	if t, ok := strings.CutSuffix(s, "m0s"); ok {
		s = t + "m"
		if t, ok := strings.CutSuffix(s, "h0m"); ok {
			s = t + "h"
		}
	}
	return s
}

// Size is a number of bytes, or of bytes per second: "64MiB", "1.5G".
type Size int64

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	n, err := size.Parse(strings.TrimSuffix(string(text), "/s"))
	if err != nil {
		return fmt.Errorf("%q is %w", text, err)
	}
	*s = Size(n)
	return nil
}

// MarshalText writes a size as UnmarshalText reads it.
func (s Size) MarshalText() ([]byte, error) {
	n, units := int64(s), []string{"", "KiB", "MiB", "GiB", "TiB"}
	for n != 0 && n%1024 == 0 && len(units) > 1 {
		n, units = n/1024, units[1:]
	}
	return fmt.Appendf(nil, "%d%s", n, units[0]), nil
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

// BandwidthAt is the limit that a stream begins with at a time, in bytes per
// second; 0 = none. The time's own zone counts.
func (t *Transfer) BandwidthAt(now time.Time) int64 {
	minute := TimeOfDay(now.Hour()*60 + now.Minute())
	for _, w := range t.Windows {
		inside := minute >= w.From && minute < w.To
		if w.To <= w.From {
			inside = minute >= w.From || minute < w.To
		}
		if inside {
			return int64(w.Bandwidth)
		}
	}
	return int64(t.Bandwidth)
}
