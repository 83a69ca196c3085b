package importer

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/replicate"
)

// grace is how long after it was due a snapshot of the most frequent kind may
// be missing, by the age at which sanoid warns of it; 0 where no such age is
// set, or where it is no longer than the period. at is the setting.
//
// A number without a unit counts what sanoid calls the smaller period.
//
// https://github.com/jimsalterjrs/sanoid/blob/v2.2.0/sanoid (monitor_snapshots)
func (p *policy) grace() (grace replicate.Duration, at setting) {
	for _, k := range []struct {
		kind            string
		period, smaller time.Duration
	}{
		{"frequently", 0, time.Second},
		{"hourly", time.Hour, time.Minute},
		{"daily", day, time.Hour},
		{"weekly", 7 * day, day},
		{"monthly", 31 * day, 7 * day},
		{"yearly", 366 * day, 31 * day},
	} {
		if n, err := p.number(k.kind); err != nil || n == 0 {
			continue
		}
		if k.kind == "frequently" {
			n, err := p.number("frequent_period")
			if err != nil {
				return 0, at
			}
			k.period = time.Duration(n) * time.Minute
		}
		for _, level := range []string{"_warn", "_crit"} {
			v, set := p.values[k.kind+level]
			if age := sanoidAge(v.value, k.smaller); set && age > k.period {
				return replicate.Duration(age - k.period), v
			}
		}
		return 0, at
	}
	return 0, at
}

// sanoidAge reads "90", "28h", "32d"; 0 is none.
func sanoidAge(s string, unit time.Duration) time.Duration {
	m := regexp.MustCompile(`^([0-9]{1,7})([smhdw]?)$`).FindStringSubmatch(strings.ToLower(s))
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return 0
	}
	if m[2] != "" {
		unit = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": day, "w": 7 * day}[m[2]]
	}
	if time.Duration(n) > 100*365*day/unit {
		return 0
	}
	return time.Duration(n) * unit
}
