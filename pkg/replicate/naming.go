package replicate

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"zxfer/pkg/zfs"
)

// DefaultTemplate is the default name template of a job's own snapshots.
const DefaultTemplate = "zxfer_{job}_%Y-%m-%d_%H:%M:%S"

// OnceTemplate is the name template of snapshots without a job. It never matches DefaultTemplate,
// so that retention spares these snapshots.
const OnceTemplate = "zxfer-%Y-%m-%dT%H:%M:%SZ"

// Naming converts between times, in UTC, and the names of a job's own snapshots.
//
// A template contains literal text, {job}, and the parts %Y %m %d %H %M %S of strftime(3). Each
// part occurs at most once; only %S may be missing. A name thus has one time.
type Naming struct {
	template string // with {job} filled in
	match    *regexp.Regexp
	order    string // of the parts, such as "YmdHMS"
	glob     string
}

// timeParts are the letters of the parts. %Y has four digits, the others two.
const timeParts = "YmdHMS"

// NewNaming returns the naming for a template and a job, or an error if the template is invalid.
func NewNaming(template, job string) (*Naming, error) {
	n := &Naming{template: strings.ReplaceAll(template, "{job}", job)}
	var re, glob strings.Builder
	rest := n.template
	for rest != "" {
		literal, after, found := strings.Cut(rest, "%")
		re.WriteString(regexp.QuoteMeta(literal))
		glob.WriteString(literal)
		if rest = after; !found {
			break
		}
		if rest == "" || !strings.Contains(timeParts, rest[:1]) {
			return nil, fmt.Errorf("template %q: after %% write one of Y m d H M S", template)
		}
		if strings.Contains(n.order, rest[:1]) {
			return nil, fmt.Errorf("template %q has %%%s twice", template, rest[:1])
		}
		digits := 2
		if rest[0] == 'Y' {
			digits = 4
		}
		fmt.Fprintf(&re, "([0-9]{%d})", digits)
		glob.WriteString(strings.Repeat("[0-9]", digits))
		n.order += rest[:1]
		rest = rest[1:]
	}
	for _, part := range timeParts[:5] {
		if !strings.ContainsRune(n.order, part) {
			return nil, fmt.Errorf("template %q has no %%%c: two snapshots could get the same name", template, part)
		}
	}
	if err := zfs.CheckComponent(n.At(time.Unix(0, 0))); err != nil {
		return nil, fmt.Errorf("template %q: %w", template, err)
	}
	n.match = regexp.MustCompile("^" + re.String() + "$") // cannot fail: only quoted text and groups
	n.glob = glob.String()
	return n, nil
}

// At returns the name of a snapshot taken at t.
func (n *Naming) At(t time.Time) string {
	t = t.UTC()
	return strings.NewReplacer(
		"%Y", fmt.Sprintf("%04d", t.Year()), "%m", fmt.Sprintf("%02d", int(t.Month())), "%d", fmt.Sprintf("%02d", t.Day()),
		"%H", fmt.Sprintf("%02d", t.Hour()), "%M", fmt.Sprintf("%02d", t.Minute()), "%S", fmt.Sprintf("%02d", t.Second()),
	).Replace(n.template)
}

// TimeOf returns the time in a name, or false if the name does not match or its date does not
// exist.
func (n *Naming) TimeOf(name string) (time.Time, bool) {
	groups := n.match.FindStringSubmatch(name)
	if groups == nil {
		return time.Time{}, false
	}
	var v [len(timeParts)]int
	for i, text := range groups[1:] {
		var x int
		for _, digit := range text {
			x = x*10 + int(digit-'0')
		}
		v[strings.IndexByte(timeParts, n.order[i])] = x
	}
	t := time.Date(v[0], time.Month(v[1]), v[2], v[3], v[4], v[5], 0, time.UTC)
	// February 31 would become a day in March.
	exists := t.Year() == v[0] && int(t.Month()) == v[1] && t.Day() == v[2] && t.Hour() == v[3] && t.Minute() == v[4] && t.Second() == v[5]
	return t, exists
}

// Pattern returns a shell pattern that every name of the template matches.
func (n *Naming) Pattern() string { return n.glob }
