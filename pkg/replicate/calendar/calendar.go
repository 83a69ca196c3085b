// Package calendar understands the calendar events of systemd.time(7), as far
// as the question "when next" goes: status needs it to call a job late, and
// hosts without systemd to be given a line of cron. The scheduling itself is
// systemd's or cron's.
//
// Fractions of a second are not supported.
package calendar

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bounds of years, as systemd has them.
const (
	firstYear = 1970
	lastYear  = 2199
)

// Event is a calendar event: the times whose every part is in its set.
type Event struct {
	spec                 string
	weekday              set // 0 = Monday
	year, month, day     set
	fromEnd              bool // day counts from the end of the month
	hour, minute, second set
	zone                 *time.Location // nil: the zone of the time asked about
}

// set is which values of a part belong to the event, by value.
type set []bool

// weekdays are systemd's names; three letters are enough.
func weekdays() []string {
	return []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}
}

// shorthands are the words that stand for an event.
func shorthands() map[string]string {
	return map[string]string{
		"minutely": "*-*-* *:*:00", "hourly": "*-*-* *:00:00", "daily": "*-*-* 00:00:00",
		"weekly": "Mon *-*-* 00:00:00", "monthly": "*-*-01 00:00:00", "quarterly": "*-01,04,07,10-01 00:00:00",
		"semiannually": "*-01,07-01 00:00:00", "yearly": "*-01-01 00:00:00", "annually": "*-01-01 00:00:00",
	}
}

// Parse reads a calendar event.
//
// https://www.freedesktop.org/software/systemd/man/latest/systemd.time.html (Calendar Events)
func Parse(spec string) (*Event, error) {
	e := &Event{spec: spec}
	fail := func(why string) (*Event, error) {
		return nil, fmt.Errorf("%q is no calendar event: %s; write hourly, daily, *:0/15, Mon..Fri 06:30 or as systemd.time(7) says", spec, why)
	}
	// Units have it as it is written: on one line.
	if odd := strings.IndexFunc(spec, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }); odd >= 0 {
		return fail(fmt.Sprintf("%q is in no calendar event", spec[odd:]))
	}
	words := strings.Fields(spec)
	if len(words) > 1 {
		if zone, err := zoneOf(words[len(words)-1]); err == nil {
			e.zone, words = zone, words[:len(words)-1]
		}
	}
	if len(words) == 1 {
		if long, ok := shorthands()[strings.ToLower(words[0])]; ok {
			words = strings.Fields(long)
		}
	}
	if len(words) == 0 {
		return fail("it is empty")
	}
	date, clock, week := "*-*-*", "00:00:00", "Mon..Sun"
	if c := words[0][0] | 0x20; c >= 'a' && c <= 'z' {
		week, words = words[0], words[1:]
	}
	if len(words) > 0 && !strings.Contains(words[0], ":") {
		date, words = words[0], words[1:]
	}
	if len(words) > 0 {
		clock, words = words[0], words[1:]
	}
	if len(words) > 0 {
		return fail(fmt.Sprintf("%q is too much", words[0]))
	}
	for _, parse := range []func() error{
		func() error { return e.parseWeek(week) },
		func() error { return e.parseDate(date) },
		func() error { return e.parseClock(clock) },
	} {
		if err := parse(); err != nil {
			return fail(err.Error())
		}
	}
	return e, nil
}

func zoneOf(word string) (*time.Location, error) {
	if word == "UTC" {
		return time.UTC, nil
	}
	if !strings.Contains(word, "/") || strings.ContainsAny(word[:1], "*0123456789") {
		return nil, fmt.Errorf("%q is no time zone", word)
	}
	return time.LoadLocation(word)
}

func (e *Event) parseWeek(s string) error {
	e.weekday = make(set, 7)
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "..")
		a, err := weekday(from)
		if err != nil {
			return err
		}
		b := a
		if isRange {
			if b, err = weekday(to); err != nil {
				return err
			}
		}
		if b < a {
			return fmt.Errorf("%q runs backwards", part)
		}
		for d := a; d <= b; d++ {
			e.weekday[d] = true
		}
	}
	return nil
}

func weekday(s string) (int, error) {
	for i, name := range weekdays() {
		if l := strings.ToLower(s); l == name || l == name[:3] {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%q is no day of the week", s)
}

func (e *Event) parseDate(s string) (err error) {
	head, day, fromEnd := strings.Cut(s, "~")
	if !fromEnd {
		i := strings.LastIndexByte(s, '-')
		if i < 0 {
			return fmt.Errorf("%q is no date", s)
		}
		head, day = s[:i], s[i+1:]
	}
	year, month, hasYear := strings.Cut(head, "-")
	if !hasYear {
		year, month = "*", head
	}
	e.fromEnd = fromEnd
	if e.year, err = parseSet("year", year, firstYear, lastYear, false); err != nil {
		return err
	}
	if e.month, err = parseSet("month", month, 1, 12, false); err != nil {
		return err
	}
	e.day, err = parseSet("day", day, 1, 31, fromEnd)
	return err
}

func (e *Event) parseClock(s string) (err error) {
	parts := strings.Split(s, ":")
	if len(parts) == 2 {
		parts = append(parts, "00")
	}
	if len(parts) != 3 {
		return fmt.Errorf("%q is no time of day", s)
	}
	if e.hour, err = parseSet("hour", parts[0], 0, 23, false); err != nil {
		return err
	}
	if e.minute, err = parseSet("minute", parts[1], 0, 59, false); err != nil {
		return err
	}
	e.second, err = parseSet("second", parts[2], 0, 59, false)
	return err
}

// parseSet reads "*", "N", "A..B", each with "/STEP", or several with commas
// in between. down tells that a step counts towards low: days from the end.
func parseSet(what, s string, low, high int, down bool) (set, error) {
	out := make(set, high+1)
	for part := range strings.SplitSeq(s, ",") {
		values, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			n, err := strconv.Atoi(stepText)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("%s %q: %q is no step", what, part, stepText)
			}
			step = n
		}
		from, to := low, high
		if values != "*" {
			a, b, isRange := strings.Cut(values, "..")
			x, err := strconv.ParseUint(a, 10, 16)
			if err != nil || int(x) < low || int(x) > high {
				return nil, fmt.Errorf("%s %q is not within %d and %d", what, a, low, high)
			}
			from = int(x)
			switch {
			case isRange:
				y, err := strconv.ParseUint(b, 10, 16)
				if err != nil || int(y) < low || int(y) > high || int(y) < from {
					return nil, fmt.Errorf("%s %q is no range within %d and %d", what, values, low, high)
				}
				to = int(y)
			case !stepped:
				to = from
			case down:
				from, to = low+(from-low)%step, from
			}
		}
		for v := from; v <= to; v += step {
			out[v] = true
		}
	}
	return out, nil
}

func (e *Event) String() string { return e.spec }

// Next is the first time of the event after another; false where there is
// none.
func (e *Event) Next(after time.Time) (time.Time, bool) {
	zone := e.zone
	if zone == nil {
		zone = after.Location()
	}
	t := after.In(zone)
	day := time.Date(t.Year(), t.Month(), t.Day(), 12, 0, 0, 0, zone)
	for ; day.Year() <= lastYear; day = day.AddDate(0, 0, 1) {
		if !e.year.has(day.Year()) {
			day = time.Date(day.Year(), 12, 31, 12, 0, 0, 0, zone)
			continue
		}
		if !e.onDay(day) {
			continue
		}
		if at, ok := e.firstOn(day, after); ok {
			return at.In(after.Location()), true
		}
	}
	return time.Time{}, false
}

func (s set) has(v int) bool { return v >= 0 && v < len(s) && s[v] }

func (e *Event) onDay(day time.Time) bool {
	d := day.Day()
	if e.fromEnd {
		d = time.Date(day.Year(), day.Month()+1, 0, 12, 0, 0, 0, time.UTC).Day() - d + 1
	}
	return e.month.has(int(day.Month())) && e.day.has(d) && e.weekday.has((int(day.Weekday())+6)%7)
}

// firstOn is the first time of the event on a day that comes after another.
func (e *Event) firstOn(day, after time.Time) (time.Time, bool) {
	for h := range e.hour {
		// Whole hours that are over are passed by quickly.
		if !e.hour[h] || !time.Date(day.Year(), day.Month(), day.Day(), h, 59, 59, 0, day.Location()).After(after) {
			continue
		}
		for m := range e.minute {
			if !e.minute[m] {
				continue
			}
			for s := range e.second {
				t := time.Date(day.Year(), day.Month(), day.Day(), h, m, s, 0, day.Location())
				// An hour that summer time skips does not exist.
				if e.second[s] && t.After(after) && t.Hour() == h {
					return t, true
				}
			}
		}
	}
	return time.Time{}, false
}
