package replicate

import (
	"time"

	"zxfer/pkg/fault"
)

// ParseTime parses the time of an event in the future, in now's time zone unless it names one:
// "2026-11-27 06:00", "06:00" (the next one after now), or RFC 3339.
func ParseTime(text string, now time.Time) (time.Time, error) {
	if clock, err := time.Parse("15:04", text); err == nil {
		for days := range 3 { // daylight saving time may skip the time on a day
			at := time.Date(now.Year(), now.Month(), now.Day()+days, clock.Hour(), clock.Minute(), 0, 0, now.Location())
			if at.After(now) && at.Hour() == clock.Hour() {
				return at, nil
			}
		}
	}
	at, err := time.Parse(time.RFC3339, text)
	for _, form := range []string{"2006-01-02 15:04", time.DateTime} {
		if local, bad := time.ParseInLocation(form, text, now.Location()); bad == nil {
			at, err = local, nil
		}
	}
	switch {
	case err == nil && at.Year() < 1970: // the zero time would mean "until resume"
		return at, fault.Usagef("name a later time", "%q is in the past", text)
	case err != nil:
		return at, fault.Usagef(`write "2026-11-27 06:00", 06:00 (the next one) or 2026-11-27T06:00:00Z`, "%q is not a time", text)
	}
	return at, nil
}
