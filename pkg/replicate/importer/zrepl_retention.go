package importer

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/retention"
)

// keepRule is a pruning rule of zrepl, which destroys what no rule keeps.
//
// https://zrepl.github.io/configuration/prune.html
type keepRule struct {
	Type, Regex, Grid string
	Negate            bool
	Count             int
}

// bucket is one interval of zrepl's grid: repeat spans with keep snapshots each. keep 0 means all.
type bucket struct {
	repeat int
	span   time.Duration
	keep   int
}

// grid parses "1x1h(keep=all) | 24x1h | 14x1d".
func (z *zrepl) grid(line int, s string) ([]bucket, error) {
	var out []bucket
	for part := range strings.SplitSeq(s, "|") {
		m := regexp.MustCompile(`^\s*([0-9]{1,6})\s*x\s*([^()\s]+)\s*(?:\(\s*keep\s*=\s*(all|[0-9]{1,6})\s*\))?\s*$`).FindStringSubmatch(part)
		if m == nil || strings.Trim(m[1], "0") == "" || m[3] != "" && strings.Trim(m[3], "0") == "" {
			return nil, fault.Usagef("use the syntax of zrepl: 24x1h", "%s: grid: %q is not an interval", z.where(line), strings.TrimSpace(part))
		}
		span, err := z.span(line, m[2])
		if err != nil {
			return nil, err
		}
		b := bucket{span: span, keep: 1}
		b.repeat, _ = strconv.Atoi(m[1]) // only digits
		if m[3] != "" {
			b.keep, _ = strconv.Atoi(m[3]) // "all" becomes 0
		}
		out = append(out, b)
	}
	return out, nil
}

// names describes the snapshots that a regular expression matches. If known, it is a text that the
// names contain or, if anchored, start with.
type names struct {
	anchored, known bool
	text            string
}

// countedPrefix returns the name prefix of a job's snapshots, as its counting rules state it, or "" if
// unknown.
func countedPrefix(j *zreplJob) string {
	for _, rules := range [][]positioned[keepRule]{j.Pruning.Keep, j.Pruning.KeepSender, j.Pruning.KeepReceiver} {
		for _, r := range rules {
			if n := namesOf(r.value.Regex); r.value.Type != "regex" && n.known && n.anchored && n.text != "" {
				return n.text
			}
		}
	}
	return ""
}

func namesOf(regex string) names {
	text, anchored := strings.CutPrefix(regex, "^")
	text = strings.TrimSuffix(strings.TrimSuffix(text, "$"), ".*")
	plain := regexp.QuoteMeta(text) == text && (!strings.HasSuffix(regex, "$") || strings.HasSuffix(regex, ".*$"))
	return names{anchored: anchored, known: plain, text: text}
}

// Reasons to omit retention.
const (
	reasonNames  = "the rules select snapshots by name, but a retention policy covers all snapshots of the job: if it fits, write"
	reasonUnsent = "zxfer does not keep unsent snapshots for an absent target: if that is acceptable, write"
)

// retention converts pruning rules to a grid for snapshots whose names start with prefix. The grid
// keeps at least what the rules keep. keep returns nil if everything is kept, or if the rules
// cannot be converted, which adds an entry.
func (z *zrepl) retention(d *draft, table string, rules []positioned[keepRule], prefix string) (*retention.Grid, error) {
	g, before := &retention.Grid{}, retention.Also{Names: []string{"*"}, Before: z.options.Now.UTC().Truncate(time.Second)}
	why, everything := "", false
	for _, r := range rules {
		n := namesOf(r.value.Regex)
		switch r.value.Type {
		case "regex":
			all, none := n.all(prefix), n.none(prefix)
			if r.value.Negate {
				all, none = none, all
			}
			if everything = everything || all; !all && !none {
				why = reasonNames
			}
			continue
		case "not_replicated":
			why = reasonUnsent
			continue
		case "last_n":
			raise(&g.Last, r.value.Count)
			before.Last = g.Last
		case "grid":
			buckets, err := z.grid(r.line, r.value.Grid)
			if err != nil {
				return nil, err
			}
			before.Age = max(before.Age, calendar.Duration(addBuckets(g, buckets)))
		default:
			return nil, fault.Usagef("use grid, last_n, not_replicated or regex", "%s: keep rule of type %q", z.where(r.line), r.value.Type)
		}
		if !n.all(prefix) {
			why = reasonNames
		}
	}
	if everything || g.Empty() && why == "" {
		return nil, nil
	}
	if why != "" {
		what := "[job." + table + "]"
		if !g.Empty() {
			what += " with " + strings.ReplaceAll(strings.TrimSpace(fields(g)), "\n", ", ")
		}
		z.addEntry(d, z.where(rules[0].line), "pruning", "%s %s; until then, zxfer keeps all snapshots", why, what)
		return nil, nil
	}
	// zrepl keeps the oldest snapshot of an interval, a grid the newest. So snapshots that zrepl
	// took are kept as long as any rule covers.
	g.Also = append(g.Also, before)
	return g, nil
}

func (n names) none(prefix string) bool {
	return n.known && n.anchored && !strings.HasPrefix(prefix, n.text) && !strings.HasPrefix(n.text, prefix)
}

// all reports that the expression matches every name with the prefix, none that it matches none of
// them. Both may be false.
func (n names) all(prefix string) bool {
	return n.known && (n.anchored && strings.HasPrefix(prefix, n.text) || !n.anchored && strings.Contains(prefix, n.text))
}

// addBuckets makes g keep at least what buckets keep, and returns the time they cover. zrepl's
// intervals follow each other, while the rules of a grid all count from now.
func addBuckets(g *retention.Grid, buckets []bucket) (end time.Duration) {
	for _, b := range buckets {
		end = min(end+multiply(b.repeat, b.span), longest)
		if r, ok := ruleOf(b.span); ok && b.keep == 1 {
			r.reach(g, end)
			continue
		}
		g.Also = append(g.Also, retention.Also{Names: []string{"*"}, Age: calendar.Duration(end)})
	}
	return end
}
