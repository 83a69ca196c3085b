package importer

import (
	"regexp"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// keepRule is a rule of zrepl's pruning. What no rule keeps it removes.
//
// https://zrepl.github.io/configuration/prune.html
type keepRule struct {
	Type, Regex, Grid string
	Negate            bool
	Count             int
}

// bucket is one interval of a grid: repeat times a span, of which keep snapshots
// stay; keep 0 is all.
type bucket struct {
	repeat int
	span   time.Duration
	keep   int
}

// grid reads "1x1h(keep=all) | 24x1h | 14x1d".
func (z *zrepl) grid(line int, s string) ([]bucket, error) {
	var out []bucket
	for part := range strings.SplitSeq(s, "|") {
		m := regexp.MustCompile(`^\s*([0-9]{1,6})\s*x\s*([^()\s]+)\s*(?:\(\s*keep\s*=\s*(all|[0-9]{1,6})\s*\))?\s*$`).FindStringSubmatch(part)
		if m == nil || strings.Trim(m[1], "0") == "" || m[3] != "" && strings.Trim(m[3], "0") == "" {
			return nil, fault.Usagef("write it as zrepl does: 24x1h", "%s: grid: %q is not an interval", z.where(line), strings.TrimSpace(part))
		}
		span, err := z.span(line, m[2])
		if err != nil {
			return nil, err
		}
		b := bucket{span: span, keep: 1}
		b.repeat, _ = strconv.Atoi(m[1]) // digits
		if m[3] != "" {
			b.keep, _ = strconv.Atoi(m[3]) // or all, which is 0
		}
		out = append(out, b)
	}
	return out, nil
}

// names are the snapshots that an expression finds, where it is a text that they
// hold or begin with.
type names struct {
	anchored, known bool
	text            string
}

func namesOf(regex string) names {
	text, anchored := strings.CutPrefix(regex, "^")
	text = strings.TrimSuffix(strings.TrimSuffix(text, "$"), ".*")
	plain := regexp.QuoteMeta(text) == text && (!strings.HasSuffix(regex, "$") || strings.HasSuffix(regex, ".*$"))
	return names{anchored: anchored, known: plain, text: text}
}

// all tells that all names which begin with a prefix are among them, none that
// none is; neither may be known.
func (n names) all(prefix string) bool {
	return n.known && (n.anchored && strings.HasPrefix(prefix, n.text) || !n.anchored && strings.Contains(prefix, n.text))
}

func (n names) none(prefix string) bool {
	return n.known && n.anchored && !strings.HasPrefix(prefix, n.text) && !strings.HasPrefix(n.text, prefix)
}

// prefixOf is what the names of a job's snapshots begin with, by the rules that
// count them; "" where that is not known.
func prefixOf(j *zreplJob) string {
	for _, rules := range [][]lined[keepRule]{j.Pruning.Keep, j.Pruning.KeepSender, j.Pruning.KeepReceiver} {
		for _, r := range rules {
			if n := namesOf(r.is.Regex); r.is.Type != "regex" && n.known && n.anchored && n.text != "" {
				return n.text
			}
		}
	}
	return ""
}

// Reasons not to import retention.
const (
	tellsApart = "the rules tell the job's snapshots apart, and a grid concerns all of them: if it suits, write"
	waits      = "what was not sent yet does not wait here for a target that is away: if that suits, write"
)

// keep is the grid of rules for a job whose snapshots begin with a prefix: nil
// where everything stays, and where they cannot be carried over, which is left by
// hand. It keeps what the rules do, or more.
func (z *zrepl) keep(d *draft, table string, rules []lined[keepRule], prefix string) (*replicate.Grid, error) {
	g, before := &replicate.Grid{}, replicate.Also{Names: []string{"*"}, Before: z.options.Now.UTC().Truncate(time.Second)}
	why, everything := "", false
	for _, r := range rules {
		n := namesOf(r.is.Regex)
		switch r.is.Type {
		case "regex":
			all, none := n.all(prefix), n.none(prefix)
			if r.is.Negate {
				all, none = none, all
			}
			if everything = everything || all; !all && !none {
				why = tellsApart
			}
			continue
		case "not_replicated":
			why = waits
			continue
		case "last_n":
			raise(&g.Last, r.is.Count)
			before.Last = g.Last
		case "grid":
			buckets, err := z.grid(r.line, r.is.Grid)
			if err != nil {
				return nil, err
			}
			before.Age = max(before.Age, replicate.Duration(carry(g, buckets)))
		default:
			return nil, fault.Usagef("grid, last_n, not_replicated and regex are known", "%s: keep rule of type %q", z.where(r.line), r.is.Type)
		}
		if !n.all(prefix) {
			why = tellsApart
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
		z.left(d, z.where(rules[0].line), "pruning", "%s %s; until then everything stays", why, what)
		return nil, nil
	}
	// zrepl keeps the oldest of an interval, and a grid the newest: of what zrepl
	// took all stays for as long as any rule reaches.
	g.Also = append(g.Also, before)
	return g, nil
}

// carry makes a grid keep what buckets do, or more: zrepl lines its intervals up
// one behind the other, and here each rule counts from now. It returns how far
// they reach.
func carry(g *replicate.Grid, buckets []bucket) (end time.Duration) {
	for _, b := range buckets {
		end = min(end+times(b.repeat, b.span), longest)
		if r, ok := ruleOf(b.span); ok && b.keep == 1 {
			r.reach(g, end)
			continue
		}
		g.Also = append(g.Also, replicate.Also{Names: []string{"*"}, Age: replicate.Duration(end)})
	}
	return end
}
