package report

import (
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/option"
	"zxfer/pkg/printable"
	"zxfer/pkg/size"
)

// maxRate is the highest rate that is believed, in bytes per second: no link
// or memory of today moves more, so a larger figure comes from a clock or a
// counter that jumped.
const maxRate = 1 << 44

// rate is bytes per second, "" where it is unknown.
func rate(n uint64) string {
	if n == 0 || n > maxRate {
		return ""
	}
	return size.Rate(n)
}

// Seconds is a duration in its two largest units: "1.2 s", "3 min 4 s".
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

// clean keeps the terminal safe from text of elsewhere, such as a dataset's name or
// another host's stderr.
func clean(s string) string { return printable.Text(s) }

// Line makes a text of anywhere, such as another host's log, fit for a
// terminal: clean, on a single line, the options that it names as flags. Names are
// shown as they are.
func Line(s string) string { return oneLine(option.Flags(s)) }

// oneLine is clean text on a single line.
func oneLine(s string) string { return printable.Line(s) }

// list joins names and leaves out those beyond the first few.
func list(names []string, separator string, most int) string {
	if len(names) <= most {
		return strings.Join(names, separator)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], separator), len(names)-most)
}
