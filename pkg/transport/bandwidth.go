package transport

import (
	"fmt"
	"time"

	"zxfer/pkg/size"
)

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
