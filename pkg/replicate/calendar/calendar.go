package calendar

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Event is a calendar event: a set of times. A time is in the event if each of its parts is in the
// set of that part.
type Event struct {
	sets    [parts]set
	fromEnd bool           // days count from the end of the month
	zone    *time.Location // nil = the zone of Next's argument
}

// Parts of a time.
const (
	weekday = iota // 0 = Monday
	year
	month
	day
	hour
	minute
	second
	parts
)

// Years of events. lastYear is the limit of systemd.
const (
	firstYear = 1970
	lastYear  = 2199
)

// Parse parses a calendar event.
//
// https://www.freedesktop.org/software/systemd/man/latest/systemd.time.html (Calendar Events)
func Parse(spec string) (*Event, error) {
	e := &Event{}
	if err := e.parse(spec); err != nil {
		return nil, fmt.Errorf("%q is not a calendar event: %w; write hourly, daily, *:0/15, Mon..Fri 06:30 or another event of systemd.time(7)", spec, err)
	}
	return e, nil
}

func (e *Event) parse(spec string) error {
	// A unit has the event on one line.
	if odd := strings.IndexFunc(spec, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }); odd >= 0 {
		return fmt.Errorf("%q is not valid in a calendar event", spec[odd:])
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
		return errors.New("is empty")
	}
	text, err := [parts]string{"*", "*", "*", "*", "0", "0", "0"}, error(nil)
	if c := words[0][0] | 0x20; c >= 'a' && c <= 'z' {
		if text[weekday], err = weekdayNumbers(words[0]); err != nil {
			return err
		}
		words = words[1:]
	}
	if len(words) > 0 && !strings.Contains(words[0], ":") {
		i := strings.LastIndexAny(words[0], "-~")
		if i < 0 {
			return fmt.Errorf("%q is not a date", words[0])
		}
		text[month], text[day], e.fromEnd = words[0][:i], words[0][i+1:], words[0][i] == '~'
		if y, m, ok := strings.Cut(text[month], "-"); ok {
			text[year], text[month] = y, m
		}
		words = words[1:]
	}
	if len(words) > 0 {
		clock := strings.Split(words[0], ":")
		if len(clock) < 2 || len(clock) > 3 {
			return fmt.Errorf("%q is not a time of day", words[0])
		}
		copy(text[hour:], clock)
		words = words[1:]
	}
	if len(words) > 0 {
		return fmt.Errorf("%q has too many parts", words[0])
	}
	for i, of := range [parts]struct {
		name      string
		low, high int
	}{{"day of the week", 0, 6}, {"year", firstYear, lastYear}, {"month", 1, 12}, {"day", 1, 31}, {"hour", 0, 23}, {"minute", 0, 59}, {"second", 0, 59}} {
		if e.sets[i], err = parseSet(text[i], of.low, of.high, i == day && e.fromEnd); err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
	}
	return nil
}

// shorthands returns the words for common events.
func shorthands() map[string]string {
	return map[string]string{
		"minutely": "*-*-* *:*:00", "hourly": "*-*-* *:00:00", "daily": "*-*-* 00:00:00",
		"weekly": "Mon *-*-* 00:00:00", "monthly": "*-*-01 00:00:00", "quarterly": "*-01,04,07,10-01 00:00:00",
		"semiannually": "*-01,07-01 00:00:00", "yearly": "*-01-01 00:00:00", "annually": "*-01-01 00:00:00",
	}
}

func zoneOf(word string) (*time.Location, error) {
	if word == "UTC" {
		return time.UTC, nil
	}
	if !strings.Contains(word, "/") || strings.ContainsAny(word[:1], "*0123456789") {
		return nil, fmt.Errorf("%q is not a time zone", word)
	}
	return time.LoadLocation(word)
}

// weekdayNumbers replaces the names of weekdays, or their first three letters, with numbers.
func weekdayNumbers(week string) (out string, err error) {
	if strings.ContainsAny(week, "*/0123456789") {
		return "", fmt.Errorf("%q are not days of the week", week)
	}
	names := []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}
	out = regexp.MustCompile("[A-Za-z]+").ReplaceAllStringFunc(week, func(word string) string {
		i := slices.IndexFunc(names, func(name string) bool { l := strings.ToLower(word); return l == name || l == name[:3] })
		if i < 0 {
			err = fmt.Errorf("%q is not a day of the week", word)
		}
		return strconv.Itoa(i)
	})
	return out, err
}

// parseSet parses a comma-separated list of "*", "N" and "A..B", each optionally with "/STEP". If
// down is true, steps count down from N.
func parseSet(s string, low, high int, down bool) (set, error) {
	out := set{low, make([]bool, high-low+1)}
	number := func(text string) (int, error) {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || int(n) < low || int(n) > high {
			return 0, fmt.Errorf("%q is not within %d and %d", text, low, high)
		}
		return int(n), nil
	}
	for part := range strings.SplitSeq(s, ",") {
		values, stepText, stepped := strings.Cut(part, "/")
		step, err := 1, error(nil)
		if stepped {
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
				return out, fmt.Errorf("%q: %q is not a step", part, stepText)
			}
		}
		from, to := low, high
		if values != "*" {
			a, b, isRange := strings.Cut(values, "..")
			if from, err = number(a); err != nil {
				return out, err
			}
			switch {
			case isRange:
				if to, err = number(b); err != nil {
					return out, err
				}
				if to < from {
					return out, fmt.Errorf("%q is in the wrong order", values)
				}
			case !stepped:
				to = from
			case down:
				from, to = low+(from-low)%step, from
			}
		}
		for v := from; v <= to; v += step {
			out.members[v-low] = true
		}
	}
	return out, nil
}

// set is a set of values of a part; in[0] stands for low.
type set struct {
	low     int
	members []bool
}

func (s set) has(v int) bool { return v >= s.low && v < s.low+len(s.members) && s.members[v-s.low] }

// full reports whether the set has all values.
func (s set) full() bool { return !slices.Contains(s.members, false) }

// Next returns the first time of the event after the given time, or false if there is none.
func (e *Event) Next(after time.Time) (time.Time, bool) {
	zone := cmp.Or(e.zone, after.Location())
	date := firstDate(after.In(zone))
	for ; date.Year() <= lastYear; date = date.AddDate(0, 0, 1) {
		if !e.sets[year].has(date.Year()) {
			date = time.Date(date.Year(), 12, 31, 12, 0, 0, 0, zone)
			continue
		}
		if !e.onDay(date) {
			continue
		}
		if at, ok := e.firstOn(date, after); ok {
			return at.In(after.Location()), true
		}
	}
	return time.Time{}, false
}

// firstDate returns noon of the first date that may have an event after a time. The record of another user may have
// any time, and a search from year 1 would take long.
func firstDate(after time.Time) time.Time {
	if after.Year() < firstYear {
		return time.Date(firstYear, 1, 1, 12, 0, 0, 0, after.Location())
	}
	return time.Date(after.Year(), after.Month(), after.Day(), 12, 0, 0, 0, after.Location())
}

func (e *Event) onDay(date time.Time) bool {
	d := date.Day()
	if e.fromEnd {
		d = time.Date(date.Year(), date.Month()+1, 0, 12, 0, 0, 0, time.UTC).Day() - d + 1
	}
	return e.sets[month].has(int(date.Month())) && e.sets[day].has(d) && e.sets[weekday].has((int(date.Weekday())+6)%7)
}

// firstOn returns the first time of the event on a date, but after the given time.
func (e *Event) firstOn(date, after time.Time) (time.Time, bool) {
	at := func(h, m, s int) time.Time {
		return time.Date(date.Year(), date.Month(), date.Day(), h, m, s, 0, date.Location())
	}
	for h := range 24 {
		// Skip past hours quickly.
		if !e.sets[hour].has(h) || !at(h, 59, 59).After(after) {
			continue
		}
		for s := range 3600 {
			if !e.sets[minute].has(s/60) || !e.sets[second].has(s%60) {
				continue
			}
			// Daylight saving time may skip the hour.
			if t := at(h, s/60, s%60); t.After(after) && t.Hour() == h {
				return t, true
			}
		}
	}
	return time.Time{}, false
}

// Cron returns the five time fields of a crontab(5) line for the event. If cron cannot express the
// event, the error has the reason.
func (e *Event) Cron() (string, error) {
	switch {
	case e.zone != nil:
		return "", errors.New("cron has no time zones")
	case !e.sets[year].full():
		return "", errors.New("cron has no years")
	case e.fromEnd:
		return "", errors.New("cron cannot count days from the end of a month")
	case e.sets[second].values() != "0":
		return "", errors.New("cron has no seconds")
	case !e.sets[day].full() && !e.sets[weekday].full():
		// crontab(5): if both are restricted, either match is enough.
		return "", errors.New("cron cannot combine a day of the week with a day of the month")
	}
	week := e.sets[weekday].members
	sundayFirst := set{0, append([]bool{week[6]}, week[:6]...)}
	var fields []string
	for _, s := range []set{e.sets[minute], e.sets[hour], e.sets[day], e.sets[month], sundayFirst} {
		fields = append(fields, s.field())
	}
	return strings.Join(fields, " "), nil
}

// field returns the set as a crontab(5) field.
func (s set) field() string {
	if s.full() {
		return "*"
	}
	for step := 2; step <= len(s.members)/2; step++ {
		same := true
		for i, on := range s.members {
			same = same && on == (i%step == 0)
		}
		if same {
			return "*/" + strconv.Itoa(step)
		}
	}
	return s.values()
}

func (s set) values() string {
	var out []string
	for i, on := range s.members {
		if on {
			out = append(out, strconv.Itoa(s.low+i))
		}
	}
	return strings.Join(out, ",")
}
