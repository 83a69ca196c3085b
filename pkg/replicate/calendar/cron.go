package calendar

import (
	"errors"
	"strconv"
	"strings"
)

// Cron returns the five time fields of a crontab(5) line for the event. If cron cannot express the
// event, the error has the reason.
func (e *Event) Cron() (string, error) {
	switch {
	case e.zone != nil:
		return "", errors.New("cron knows no time zones")
	case !e.in[year].full():
		return "", errors.New("cron knows no years")
	case e.fromEnd:
		return "", errors.New("cron does not count days from the end of a month")
	case e.in[second].values() != "0":
		return "", errors.New("cron knows no seconds")
	case !e.in[day].full() && !e.in[weekday].full():
		// crontab(5): if both are restricted, either match is enough.
		return "", errors.New("cron cannot ask for a day of the week and of the month at once")
	}
	week := e.in[weekday].in
	sundayFirst := set{0, append([]bool{week[6]}, week[:6]...)}
	var fields []string
	for _, s := range []set{e.in[minute], e.in[hour], e.in[day], e.in[month], sundayFirst} {
		fields = append(fields, s.field())
	}
	return strings.Join(fields, " "), nil
}

// field returns the set as a crontab(5) field.
func (s set) field() string {
	if s.full() {
		return "*"
	}
	for step := 2; step <= len(s.in)/2; step++ {
		same := true
		for i, on := range s.in {
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
	for i, on := range s.in {
		if on {
			out = append(out, strconv.Itoa(s.low+i))
		}
	}
	return strings.Join(out, ",")
}
