package report

import (
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/option"
	"zxfer/pkg/printable"
	"zxfer/pkg/size"
)

// maxRate is the highest plausible rate in bytes per second. No current link or memory is faster,
// so a larger value comes from a clock or counter that jumped.
const maxRate = 1 << 44

// rate formats bytes per second, or returns "" if the rate is unknown.
func rate(n uint64) string {
	if n == 0 || n > maxRate {
		return ""
	}
	return size.Rate(n)
}

// Seconds formats a duration in its two largest units: "1.2 s", "3 min 4 s".
func Seconds(s float64) string {
	if !(s >= 0) { // also NaN
		s = 0
	}
	if s > maxETA.Seconds() {
		return ">99 d"
	}
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// clean removes control characters from untrusted text, such as dataset names and the stderr of
// other hosts.
func clean(s string) string { return printable.Text(s) }

// Line formats untrusted text for a terminal: clean, on one line, with option names as flags. It
// does not change other names.
func Line(s string) string { return oneLine(option.Flags(s)) }

// oneLine returns clean text on one line.
func oneLine(s string) string { return printable.Line(s) }

// list joins the first most names and counts the others.
func list(names []string, separator string, most int) string {
	if len(names) <= most {
		return strings.Join(names, separator)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], separator), len(names)-most)
}
