package importer

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/replicate/calendar"
)

// every is the calendar event of an interval: of the interval itself where it
// divides an hour or a day, else of the next shorter one that does, and then
// false.
func every(d time.Duration) (spec string, exact bool) {
	week := 7 * 24 * time.Hour
	divisor := func(n, of int) int {
		for of%n != 0 {
			n--
		}
		return n
	}
	switch {
	case d < time.Second:
		return "*:*:*", false
	case d < time.Minute:
		n := divisor(int(d/time.Second), 60)
		return fmt.Sprintf("*:*:0/%d", n), time.Duration(n)*time.Second == d
	case d < time.Hour:
		n := divisor(int(d/time.Minute), 60)
		return fmt.Sprintf("*:0/%d", n), time.Duration(n)*time.Minute == d
	case d < 2*time.Hour:
		return "hourly", d == time.Hour
	case d < 24*time.Hour:
		n := divisor(int(d/time.Hour), 24)
		return fmt.Sprintf("0/%d:00", n), time.Duration(n)*time.Hour == d
	case d < week:
		return "daily", d == 24*time.Hour
	}
	return "weekly", d == week
}

// cronWords are the events that cron has words for.
func cronWords() map[string]string {
	return map[string]string{"@hourly": "hourly", "@daily": "daily", "@midnight": "daily", "@weekly": "Sun *-*-* 00:00:00",
		"@monthly": "monthly", "@yearly": "yearly", "@annually": "yearly"}
}

// cron is the calendar event of cron's five fields (minute, hour, day of the
// month, month, day of the week), or of six with the seconds first.
func cron(fields []string) (string, error) {
	second := "00"
	if len(fields) == 6 {
		s, err := cronField(fields[0], 0, nil)
		if err != nil {
			return "", err
		}
		second, fields = s, fields[1:]
	}
	if len(fields) != 5 {
		return "", fmt.Errorf("%q is no time of cron: five fields are wanted", strings.Join(fields, " "))
	}
	months := []string{"", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
	var parts [5]string
	for i, f := range fields {
		var names []string
		low := 0
		switch i {
		case 2:
			low = 1
		case 3:
			low, names = 1, months
		case 4:
			continue
		}
		p, err := cronField(f, low, names)
		if err != nil {
			return "", err
		}
		parts[i] = p
	}
	week, err := cronWeek(fields[4])
	if err != nil {
		return "", err
	}
	if week != "" && fields[2] != "*" && fields[2] != "?" {
		return "", fmt.Errorf("%q: cron runs on either day, of the month or of the week; a calendar event wants both", strings.Join(fields, " "))
	}
	spec := strings.TrimSpace(fmt.Sprintf("%s *-%s-%s %s:%s:%s", week, parts[3], parts[2], parts[1], parts[0], second))
	if _, err := calendar.Parse(spec); err != nil {
		return "", err
	}
	return spec, nil
}

// cronField takes over one field: "*", "a-b", "*/n", lists. low is the first
// value of its kind.
func cronField(f string, low int, names []string) (string, error) {
	f = strings.ReplaceAll(f, "?", "*")
	var out []string
	for part := range strings.SplitSeq(strings.ToLower(f), ",") {
		for n, name := range names {
			if name != "" {
				part = strings.ReplaceAll(part, name, strconv.Itoa(n))
			}
		}
		if !regexp.MustCompile(`^(\*|\d+(-\d+)?)(/\d+)?$`).MatchString(part) {
			return "", fmt.Errorf("%q is no field of cron that is known here", f)
		}
		if part == "*/1" {
			part = "*"
		}
		part = strings.ReplaceAll(part, "-", "..")
		if len(part) == 1 && part != "*" {
			part = "0" + part
		}
		if step, ok := strings.CutPrefix(part, "*/"); ok {
			part = fmt.Sprintf("%d/%s", low, step)
		}
		out = append(out, part)
	}
	return strings.Join(out, ","), nil
}

// cronWeek takes over the day of the week: 0 and 7 are Sunday.
func cronWeek(f string) (string, error) {
	if f == "*" || f == "?" {
		return "", nil
	}
	days := []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}
	day := func(s string) (int, error) {
		if n, err := strconv.Atoi(s); err == nil && n >= 0 && n < len(days) {
			return n, nil
		}
		for i, name := range days {
			if strings.EqualFold(s, name) {
				return i, nil
			}
		}
		return 0, fmt.Errorf("%q is no day of the week", s)
	}
	var out []string
	for part := range strings.SplitSeq(f, ",") {
		values, stepText, stepped := strings.Cut(part, "/")
		from, to := 0, 6
		if values != "*" {
			a, b, isRange := strings.Cut(values, "-")
			var err error
			if from, err = day(a); err != nil {
				return "", err
			}
			to = from
			if isRange {
				if to, err = day(b); err != nil {
					return "", err
				}
			}
		}
		step := 1
		if stepped {
			n, err := strconv.Atoi(stepText)
			if err != nil || n < 1 {
				return "", fmt.Errorf("%q is no step", stepText)
			}
			step = n
		}
		if to < from {
			return "", fmt.Errorf("%q runs backwards", part)
		}
		for d := from; d <= to; d += step {
			out = append(out, days[d])
		}
	}
	return strings.Join(out, ","), nil
}
