package replicate

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// DefaultTemplate names a job's own snapshots where nothing else is wanted.
const DefaultTemplate = "zxfer_{job}_%Y-%m-%d_%H:%M:%S"

// OnceTemplate names a snapshot that is taken without any job: none that uses
// DefaultTemplate thinks it its own, which retention would remove.
const OnceTemplate = "zxfer-%Y-%m-%dT%H:%M:%SZ"

// Naming makes the names of a job's own snapshots of the time in UTC, and
// tells the time of a snapshot from its name.
//
// A template has literal text, {job}, and %Y %m %d %H %M %S, the parts of the
// time as in strftime(3). Year to minute must all be there, each once, so
// that a name has one time.
type Naming struct {
	template string // {job} filled in
	match    *regexp.Regexp
	order    string // of the parts, such as "YmdHMS"
	glob     string
}

// timeParts are the letters of a template's parts of time, with how many
// digits each has.
const timeParts = "YmdHMS"

// NewNaming checks a template for a job of this name.
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
			return nil, fmt.Errorf("template %q: behind %% comes one of Y m d H M S", template)
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
			return nil, fmt.Errorf("template %q has no %%%c: two snapshots could get one name", template, part)
		}
	}
	if err := zfs.CheckComponent(n.At(time.Unix(0, 0))); err != nil {
		return nil, fmt.Errorf("template %q: %w", template, err)
	}
	n.match = regexp.MustCompile("^" + re.String() + "$") // only quoted text and groups
	n.glob = glob.String()
	return n, nil
}

// At is the name of the snapshot of a time.
func (n *Naming) At(t time.Time) string {
	t = t.UTC()
	return strings.NewReplacer(
		"%Y", fmt.Sprintf("%04d", t.Year()), "%m", fmt.Sprintf("%02d", int(t.Month())), "%d", fmt.Sprintf("%02d", t.Day()),
		"%H", fmt.Sprintf("%02d", t.Hour()), "%M", fmt.Sprintf("%02d", t.Minute()), "%S", fmt.Sprintf("%02d", t.Second()),
	).Replace(n.template)
}

// TimeOf is the time that a name was made of; false if it is of another form
// or has a time that does not exist.
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
	return t, n.At(t) == name // a 31st of February becomes another day
}

// Pattern is a shell pattern that every name of the template matches.
func (n *Naming) Pattern() string { return n.glob }

// Scope is which snapshots a job concerns: those that it made or adopted.
type Scope struct {
	naming *Naming // nil: the job takes none
	adopt  plan.Patterns
}

// Scope returns the job's. Its errors are those of NewNaming.
func (j *Job) Scope() (*Scope, error) {
	s := &Scope{adopt: plan.ParsePatterns(j.Snapshots.Adopt)}
	if j.Snapshots.Take == "" {
		if len(s.adopt) == 0 {
			return nil, errors.New(`[job.snapshots] has neither "take" nor "adopt": the job would concern no snapshot`)
		}
		return s, nil
	}
	var err error
	s.naming, err = NewNaming(j.Snapshots.Take, j.Name)
	return s, err
}

// Naming makes the job's own names; nil where it takes no snapshots.
func (s *Scope) Naming() *Naming { return s.naming }

// Own tells whether the job made a snapshot of that name, and when.
func (s *Scope) Own(name string) (time.Time, bool) {
	if s.naming == nil {
		return time.Time{}, false
	}
	return s.naming.TimeOf(name)
}

// Has tells whether a snapshot of that name is the job's concern.
func (s *Scope) Has(name string) bool {
	_, own := s.Own(name)
	return own || s.adopt.Match(name)
}

// Patterns are the patterns of the names that Has is true of. They
// match a little more: names of times that do not exist.
func (s *Scope) Patterns() []string {
	all := s.adopt.Strings()
	if s.naming != nil {
		all = append(all, s.naming.Pattern())
	}
	return all
}
