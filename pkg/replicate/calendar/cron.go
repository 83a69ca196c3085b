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
	case !e.sets[year].full():
		return "", errors.New("cron knows no years")
	case e.fromEnd:
		return "", errors.New("cron does not count days from the end of a month")
	case e.sets[second].values() != "0":
		return "", errors.New("cron knows no seconds")
	case !e.sets[day].full() && !e.sets[weekday].full():
		// crontab(5): if both are restricted, either match is enough.
		return "", errors.New("cron cannot ask for a day of the week and of the month at once")
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
