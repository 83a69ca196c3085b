package calendar

import (
	"errors"
	"strconv"
	"strings"
)

// Cron returns the five fields of a crontab(5) line that run at the times of
// the event; an error says why there is none.
func (e *Event) Cron() (string, error) {
	anyDay := full(e.day, 1)
	switch {
	case e.zone != nil:
		return "", errors.New("cron knows no time zones")
	case !full(e.year, firstYear):
		return "", errors.New("cron knows no years")
	case e.fromEnd:
		return "", errors.New("cron does not count days from the end of a month")
	case count(e.second) != 1 || !e.second[0]:
		return "", errors.New("cron knows no seconds")
	case !anyDay && !full(e.weekday, 0):
		// crontab(5): where both are given, either is enough.
		return "", errors.New("cron cannot ask for a day of the week and of the month at once")
	}
	week := "*"
	if !full(e.weekday, 0) {
		sundayFirst := make(set, 7)
		for i, on := range e.weekday {
			sundayFirst[(i+1)%7] = on
		}
		week = field(sundayFirst, 0)
	}
	return strings.Join([]string{field(e.minute, 0), field(e.hour, 0), field(e.day, 1), field(e.month, 1), week}, " "), nil
}

func count(s set) int {
	n := 0
	for _, on := range s {
		if on {
			n++
		}
	}
	return n
}

func full(s set, low int) bool { return count(s) == len(s)-low }

// field writes a set as a field of crontab(5).
func field(s set, low int) string {
	if full(s, low) {
		return "*"
	}
	for step := 2; step <= len(s)/2; step++ {
		same := true
		for v := low; v < len(s); v++ {
			same = same && s[v] == ((v-low)%step == 0)
		}
		if same {
			return "*/" + strconv.Itoa(step)
		}
	}
	var out []string
	for v, on := range s {
		if on {
			out = append(out, strconv.Itoa(v))
		}
	}
	return strings.Join(out, ",")
}
