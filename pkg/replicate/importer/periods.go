package importer

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/retention"
)

// intervalEvent returns the calendar event for an interval. It returns false if the interval divides
// neither an hour nor a day.
func intervalEvent(d time.Duration) (spec string, ok bool) {
	switch {
	case d == time.Hour:
		return "hourly", true
	case d == day:
		return "daily", true
	case d == 7*day:
		return "weekly", true
	case d < time.Minute && d%time.Second == 0 && time.Minute%d == 0:
		return fmt.Sprintf("*:*:0/%d", d/time.Second), true
	case d < time.Hour && d%time.Minute == 0 && time.Hour%d == 0:
		return fmt.Sprintf("*:0/%d", d/time.Minute), true
	case d < day && d%time.Hour == 0 && day%d == 0:
		return fmt.Sprintf("0/%d:00", d/time.Hour), true
	}
	return "", false
}

// cutSchedule cuts cron's fields off a line. ok is false if they have no equivalent calendar
// event. Without such fields, times is "" and ok is true.
func cutSchedule(line string) (times, spec, rest string, ok bool) {
	if m := regexp.MustCompile(`^(@\w+)\s+(.*)$`).FindStringSubmatch(line); m != nil {
		spec = map[string]string{"@hourly": "hourly", "@daily": "daily", "@midnight": "daily", "@weekly": "Sun *-*-* 00:00:00",
			"@monthly": "monthly", "@yearly": "yearly", "@annually": "yearly"}[m[1]]
		return m[1], spec, m[2], spec != ""
	}
	if m := regexp.MustCompile(`^([*0-9]\S*(?:\s+\S+){4})\s+(.*)$`).FindStringSubmatch(line); m != nil {
		spec, ok = cron(m[1])
		return m[1], spec, m[2], ok
	}
	return "", "", line, true
}

// cron converts cron's fields minute, hour, day of month, month and day of week to a calendar
// event. It returns false if a line has both kinds of days, because cron matches either. It also returns false
// for names of months and for steps of weekdays.
func cron(line string) (spec string, ok bool) {
	f := strings.Fields(line)
	if len(f) != 5 || f[2] != "*" && f[4] != "*" {
		return "", false
	}
	for i := range f[:4] {
		low := "0"
		if i >= 2 {
			low = "1" // days and months
		}
		f[i] = strings.ReplaceAll(strings.ReplaceAll(f[i], "*/", low+"/"), "-", "..")
	}
	week := ""
	if f[4] != "*" {
		days := []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}
		week = regexp.MustCompile(`[0-7]`).ReplaceAllStringFunc(f[4], func(digit string) string {
			n, _ := strconv.Atoi(digit) // always a digit
			return days[n]
		})
		week = strings.ReplaceAll(week, "-", "..") + " "
	}
	spec = fmt.Sprintf("%s*-%s-%s %s:%s:00", week, f[3], f[2], f[1], f[0])
	if _, err := calendar.Parse(spec); err != nil {
		return "", false
	}
	return spec, true
}

const day = 24 * time.Hour

// longest is the maximum span of imported retention.
const longest = 100 * 365 * day

// rule is one period of a retention grid.
type rule struct {
	shortest time.Duration // shortest length of a period
	count    func(*retention.Grid) *int
}

// ruleOf returns the rule that keeps one snapshot per span. It returns false for spans under an
// hour.
func ruleOf(span time.Duration) (rule, bool) {
	for _, r := range []rule{
		{365 * day, func(g *retention.Grid) *int { return &g.Yearly }},
		{28 * day, func(g *retention.Grid) *int { return &g.Monthly }},
		{7 * day, func(g *retention.Grid) *int { return &g.Weekly }},
		{day, func(g *retention.Grid) *int { return &g.Daily }},
		{time.Hour, func(g *retention.Grid) *int { return &g.Hourly }},
	} {
		if span >= r.shortest {
			return r, true
		}
	}
	return rule{}, false
}

// reach raises the count of the rule so that it always covers span. The oldest and the current
// period are incomplete, so they are added to those within span.
func (r rule) reach(g *retention.Grid, span time.Duration) {
	raise(r.count(g), int((span+r.shortest-1)/r.shortest)+2)
}

func raise(count *int, to int) { *count = min(max(*count, to), 100_000) }

// multiply returns n times span, at most longest.
func multiply(n int, span time.Duration) time.Duration {
	return min(time.Duration(n), longest/span) * span
}
