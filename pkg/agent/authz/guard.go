package authz

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// Guard judges the requests of one session. It may be used by several
// goroutines.
type Guard struct {
	policy *Policy
	site   hosts.Host
	audit  func(string)
	lines  sync.Mutex // those of one request

	mu    sync.Mutex
	rings int64 // bytes of the streams that run
}

// NewGuard returns the Guard of a policy. Some rules need to look: at s, and
// never through it change anything. audit is told in printable lines every
// refusal, except of what every job asks of every host (errHostFacts), all that an
// admitted request changes, and each admitted request that failed. It is called from
// several goroutines. The lines of one request follow each other.
func NewGuard(p *Policy, s hosts.Host, audit func(string)) *Guard {
	return &Guard{policy: p, site: s, audit: audit}
}

// Rule is what a policy says of one operation with the arguments A. The zero Rule
// refuses it.
type Rule[A any] struct {
	judge func(ctx context.Context, g *Guard, args *A) error
	// told is what the audit tells of admitted arguments; nil where they change
	// nothing.
	told func(args *A) Account
	// never is why the operation is for no policy, in words of who asks for it; "" = it
	// has no rule.
	never string
}

// Account is what a request changes, in words that are fit for a log.
type Account struct {
	of   string   // on every line
	each []string // all are told, however many they are
}

// Reads is the Rule of an operation that changes nothing.
func Reads[A any](judge func(context.Context, *Guard, *A) error) Rule[A] {
	return Rule[A]{judge: judge}
}

// Changes is the Rule of an operation that changes what told tells.
func Changes[A any](judge func(context.Context, *Guard, *A) error, told func(*A) Account) Rule[A] {
	return Rule[A]{judge: judge, told: told}
}

// Never is the Rule of an operation that is for no restricted key, and why.
func Never[A any](why string) Rule[A] { return Rule[A]{never: why} }

// Request is what an agent is asked.
type Request struct {
	Op     string
	Body   json.RawMessage // its arguments
	Secret bool            // no log shows them
}

// Admit returns the arguments that the operation is to be carried out with, or
// a refusal (fault.Refused) that says why. What they are carried out with is what
// was judged: nothing reads the request again.
func Admit[A any](ctx context.Context, g *Guard, q Request, rule Rule[A]) (args A, err error) {
	switch {
	case rule.never != "":
		return args, g.refuse(q, errors.New(rule.never))
	case rule.judge == nil:
		return args, g.Unknown(q)
	}
	if err := hosts.Decode(q.Body, &args); err != nil {
		return args, g.refuse(q, fmt.Errorf("malformed arguments, or some that no rule is for: %w", err))
	}
	if field := undecided(reflect.ValueOf(args)); field != "" {
		err = fmt.Errorf("no rule is for the field %s", field)
	} else {
		err = rule.judge(ctx, g, &args)
	}
	switch {
	case errors.Is(err, errHostFacts):
		return args, g.refusal(err)
	case err != nil && rule.told != nil:
		return args, g.refuseShown(q, err, clip(strings.Join(rule.told(&args).each, " "), maxRefused))
	case err != nil:
		return args, g.refuse(q, err)
	case rule.told != nil:
		g.tell(q.Op, rule.told(&args))
	}
	return args, nil
}

// Failed tells the audit that an admitted request failed: the log has it as admitted.
// A stream that is not what was planned is refused only when it arrives.
func Failed[A any](g *Guard, q Request, rule Rule[A], args A, err error) {
	if rule.told == nil {
		return
	}
	how := "failed " + q.Op + ": "
	if errors.Is(err, &zfs.Error{Kind: zfs.Unplanned}) {
		how = "refused " + q.Op + " after it was admitted: "
	}
	g.lines.Lock()
	defer g.lines.Unlock()
	g.audit(how + clean(err.Error()) + ": " + clip(strings.Join(rule.told(&args).each, " "), maxRefused))
}

// Unknown is the refusal of an operation that there is no rule for.
func (g *Guard) Unknown(q Request) error {
	return g.refuse(q, fmt.Errorf("no rule allows the operation %q", q.Op[:min(len(q.Op), 64)]))
}

// Bounds of what the audit shows, in bytes. System logs cut a line at a KiB,
// what they put before it included (RFC 3164, section 4.1).
const (
	maxLine    = 800
	maxTag     = 300 // quoted: it is on every line
	maxRefused = 300 // of a request that was refused, which changes nothing
)

// tell tells the audit all that a request changes, over as many lines as it
// takes: "destroy (2/5): …".
func (g *Guard) tell(op string, a Account) {
	head := "admitted " + op
	if a.of != "" {
		head += " " + a.of
	}
	room := maxLine - len(head) - len(" (9999/9999): ")
	var lines []string
	for _, text := range a.each {
		if n := len(lines) - 1; n >= 0 && len(lines[n])+1+len(text) <= room {
			lines[n] += " " + text
			continue
		}
		for len(text) > room {
			lines, text = append(lines, text[:room]), text[room:]
		}
		lines = append(lines, text)
	}
	g.lines.Lock()
	defer g.lines.Unlock()
	for i, line := range lines {
		part := ""
		if len(lines) > 1 {
			part = fmt.Sprintf(" (%d/%d)", i+1, len(lines))
		}
		g.audit(head + part + ": " + line)
	}
	if len(lines) == 0 {
		g.audit(head + ": nothing")
	}
}

// refuse refuses a request, which the log shows on one line, cut short.
func (g *Guard) refuse(q Request, err error) error {
	if q.Secret {
		return g.refuseShown(q, err, "(not shown)")
	}
	return g.refuseShown(q, err, clean(string(q.Body)))
}

func (g *Guard) refuseShown(q Request, err error, shown string) error {
	g.refused(q.Op, clean(err.Error())+": "+shown)
	return g.refusal(err)
}

// Unread tells the audit of a request that was refused without being read: it
// asked for too much at once.
func (g *Guard) Unread(op string, err error) { g.refused(op, clean(err.Error())) }

func (g *Guard) refused(op, why string) {
	g.lines.Lock()
	defer g.lines.Unlock()
	g.audit("refused " + strconv.QuoteToASCII(op[:min(len(op), 64)]) + ": " + why)
}

func (g *Guard) refusal(err error) error {
	return fault.Refusef("what the account of this key may do is in its authorized_keys: "+g.policy.String(),
		"%w: %w", hosts.ErrForbidden, err)
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// clean is the beginning of a text, fit for a log.
func clean(s string) string {
	quoted := quote(s[:min(len(s), maxRefused)])
	return clip(quoted[1:len(quoted)-1], maxRefused)
}

// quote makes a text printable and tells where it ends.
func quote(s string) string { return strconv.QuoteToASCII(s) }

func quoted(all []string) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = quote(s)
	}
	return out
}
