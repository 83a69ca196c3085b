package importer

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// bucket is one interval of a zrepl retention grid: repeat times a span, of
// which keep snapshots stay; keep 0 is all.
//
// https://zrepl.github.io/configuration/prune.html
type bucket struct {
	repeat int
	span   time.Duration
	keep   int
}

const day = 24 * time.Hour

// zreplDuration reads "10m", "1h", "30d", "2w".
func zreplDuration(s string) (time.Duration, error) {
	m := regexp.MustCompile(`^\s*([0-9]{1,9})\s*(s|m|h|d|w)\s*$`).FindStringSubmatch(s)
	if m != nil {
		n, err := strconv.Atoi(m[1])
		unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": day, "w": 7 * day}[m[2]]
		if err == nil && n > 0 && time.Duration(n) <= 100*365*day/unit {
			return time.Duration(n) * unit, nil
		}
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%q is no time span; 10m, 1h, 14d or 2w is", s)
}

// parseGrid reads "1x1h(keep=all) | 24x1h | 14x1d".
func parseGrid(s string) ([]bucket, error) {
	var out []bucket
	for part := range strings.SplitSeq(s, "|") {
		m := regexp.MustCompile(`^\s*([0-9]{1,6})\s*x\s*([^()\s]+)\s*(?:\(\s*keep\s*=\s*(all|[0-9]{1,6})\s*\))?\s*$`).FindStringSubmatch(part)
		if m == nil {
			return nil, fmt.Errorf("%q is no interval of a grid; 24x1h is", strings.TrimSpace(part))
		}
		span, err := zreplDuration(m[2])
		if err != nil {
			return nil, err
		}
		b := bucket{span: span, keep: 1}
		if b.repeat, err = strconv.Atoi(m[1]); err != nil || b.repeat == 0 {
			return nil, fmt.Errorf("%q repeats nothing", strings.TrimSpace(part))
		}
		switch m[3] {
		case "":
		case "all":
			b.keep = 0
		default:
			if b.keep, err = strconv.Atoi(m[3]); err != nil || b.keep == 0 {
				return nil, fmt.Errorf("%q keeps nothing", strings.TrimSpace(part))
			}
		}
		out = append(out, b)
	}
	return out, nil
}

// gridOf is the grid that keeps as many snapshots as the buckets, and reaches as
// far back. zrepl lines its intervals up one behind the other, and zxfer counts
// each rule from now, in periods of the calendar: a rule's count reaches to the
// end of its interval, and there is one more for the period that has begun.
// interval is how often snapshots are taken, 0 if that is not known. notes say
// where more is kept.
func gridOf(buckets []bucket, interval time.Duration) (g replicate.Grid, notes []string) {
	var end time.Duration
	for _, b := range buckets {
		if b.span > 100*365*day/time.Duration(b.repeat) {
			b.repeat = int(100 * 365 * day / b.span)
		}
		end = min(end+b.span*time.Duration(b.repeat), 100*365*day)
		if b.keep != 1 || b.span < time.Hour {
			if interval > 0 {
				raise(&g.Last, upwards(end, interval))
				continue
			}
			raise(&g.Hourly, upwards(end, time.Hour)+1)
			notes = append(notes, fmt.Sprintf("%dx%s of several snapshots an hour is kept as one an hour: how often they are taken is not known", b.repeat, replicate.Duration(b.span)))
			continue
		}
		rule, period := &g.Hourly, time.Hour
		switch {
		case b.span >= 365*day:
			rule, period = &g.Yearly, 365*day
		case b.span >= 28*day:
			rule, period = &g.Monthly, min(b.span, 30*day)
		case b.span >= 7*day:
			rule, period = &g.Weekly, 7*day
		case b.span >= day:
			rule, period = &g.Daily, day
		}
		raise(rule, upwards(end, period)+1)
		if b.span >= 2*period {
			notes = append(notes, fmt.Sprintf("%dx%s has no rule of its own: more is kept", b.repeat, replicate.Duration(b.span)))
		}
	}
	return g, notes
}

func raise(rule *int, to int) { *rule = min(max(*rule, to), 100_000) }

func upwards(span, period time.Duration) int {
	return int((span + period - 1) / period)
}

// keeping is what a list of zrepl's keep rules comes to.
type keeping struct {
	grid *replicate.Grid // nil: everything stays
	// names are patterns of the snapshots that grids and counts concern; none
	// where they concern all.
	names []string
	// expressions are those that the names come from, each once.
	expressions []string
	opaque      bool         // an expression has no patterns
	others      []expression // of rules that keep whatever they match
	notes       []keepNote
	newest      int           // that last_n rules keep
	end         time.Duration // of the longest grid
}

// old keeps what zrepl took before a time as long as any of its rules would: it
// keeps the oldest of an interval, the grid the newest of another.
func (k *keeping) old(before time.Time) *replicate.Grid {
	if k.grid == nil {
		return nil
	}
	g := *k.grid
	g.Also = []replicate.Also{{Names: []string{"*"}, Last: k.newest, Age: replicate.Duration(k.end), Before: before.UTC().Truncate(time.Second)}}
	return &g
}

// expression is a keep rule of type regex.
type expression struct {
	*regexp.Regexp
	negated bool
}

func (e expression) keeps(name string) bool { return e.MatchString(name) != e.negated }

type keepNote struct {
	where, what string
	class       Class
	why         string
}

// keepRules maps a list of keep rules. prefix begins the names of the job's
// snapshots; interval is as in gridOf.
func keepRules(v value, prefix string, interval time.Duration) (*keeping, error) {
	k := &keeping{}
	rules, err := v.list()
	if err != nil {
		return nil, err
	}
	g := &replicate.Grid{}
	note := func(at value, what string, class Class, why string) {
		k.notes = append(k.notes, keepNote{at.where(), what, class, why})
	}
	named := func(re string) {
		if re == "" || slices.Contains(k.expressions, re) {
			return
		}
		k.expressions = append(k.expressions, re)
		patterns, ok := globs(re)
		k.names, k.opaque = append(k.names, patterns...), k.opaque || !ok
	}
	for _, r := range rules {
		kind, err := r.textOf("type")
		if err != nil {
			return nil, err
		}
		re, err := r.textOf("regex")
		if err != nil {
			return nil, err
		}
		switch kind {
		case "not_replicated":
			note(r, kind, Changed, "never removed is what the next increment to a target begins with; what lies between may go before it was sent, as the grid says")
		case "last_n":
			count, err := r.get("count")
			if err != nil {
				return nil, err
			}
			n, err := count.number()
			if err != nil {
				return nil, err
			}
			raise(&g.Last, n)
			raise(&k.newest, n)
			named(re)
		case "grid":
			spec, err := r.get("grid")
			if err != nil {
				return nil, err
			}
			text, err := spec.text()
			if err != nil {
				return nil, err
			}
			buckets, err := parseGrid(text)
			if err != nil {
				return nil, fault.Usagef("", "%s: grid: %w", spec.where(), err)
			}
			of, notes := gridOf(buckets, interval)
			end := time.Duration(0)
			for _, b := range buckets {
				end = min(end+b.span*time.Duration(min(b.repeat, int(100*365*day/b.span)+1)), 100*365*day)
			}
			k.end = max(k.end, end)
			raise(&g.Last, of.Last)
			raise(&g.Hourly, of.Hourly)
			raise(&g.Daily, of.Daily)
			raise(&g.Weekly, of.Weekly)
			raise(&g.Monthly, of.Monthly)
			raise(&g.Yearly, of.Yearly)
			for _, n := range notes {
				note(spec, text, Changed, n)
			}
			named(re)
		case "regex":
			e, err := keepExpression(r, re)
			if err != nil {
				return nil, err
			}
			k.others = append(k.others, e)
		default:
			return nil, fault.Usagef("grid, last_n, not_replicated and regex are known", "%s: keep rule of type %q", r.where(), kind)
		}
	}
	// One of the job's snapshots, to see whether a rule keeps all of them.
	sample := prefix + "20060102_150405_000"
	if prefix == "" && len(k.names) > 0 {
		sample = strings.ReplaceAll(k.names[0], "*", "x")
	}
	all := slices.ContainsFunc(k.others, func(e expression) bool { return e.keeps(sample) })
	if !all && !g.Empty() {
		k.grid = g
	}
	slices.Sort(k.names)
	k.names = slices.Compact(k.names)
	return k, nil
}

func keepExpression(r value, re string) (e expression, err error) {
	at, err := r.get("negate")
	if err != nil {
		return e, err
	}
	if e.negated, err = at.boolean(); err != nil {
		return e, err
	}
	if e.Regexp, err = regexp.Compile(re); err != nil {
		return e, fault.Usagef("", "%s: regex: %w", r.where(), err)
	}
	return e, nil
}

// removable tells whether the grid may stand for the rules where snapshots of
// these patterns are adopted: whether no other rule keeps any of them, and
// there is one set of names that is counted.
func (k *keeping) removable(adopt []string) bool {
	if len(adopt) == 0 {
		return true // own snapshots are all of one form, which was looked at
	}
	if k.opaque || len(k.expressions) > 1 {
		return false
	}
	for _, e := range k.others {
		found, ok := globs(e.String())
		for _, a := range adopt {
			apart, covered := true, false
			for _, f := range found {
				apart = apart && disjoint(a, f)
				covered = covered || covers(f, a)
			}
			if !ok || e.negated && !covered || !e.negated && !apart {
				return false
			}
		}
	}
	return true
}

// disjoint tells whether two patterns certainly have no name in common: what
// they begin with differs.
func disjoint(a, b string) bool {
	x, y := stem(a), stem(b)
	return !strings.HasPrefix(x, y) && !strings.HasPrefix(y, x)
}

// covers tells whether a pattern certainly matches all that another does.
func covers(wide, narrow string) bool {
	if wide == narrow {
		return true
	}
	head, open := strings.CutSuffix(wide, "*")
	return open && stem(wide) == head && strings.HasPrefix(stem(narrow), head)
}

// stem is what every name that a pattern matches begins with.
func stem(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}
