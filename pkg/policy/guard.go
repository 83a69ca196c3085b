package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"zxfer/pkg/fault"
	"zxfer/pkg/site"
)

// Guard judges the requests of one session. It may be used by several
// goroutines.
type Guard struct {
	policy *Policy
	site   site.Site
	audit  func(string)
	lines  sync.Mutex // those of one request
}

// NewGuard returns the Guard of a policy. Some rules need to look: at s, and
// never through it change anything. audit is told in printable lines every
// refusal, but of what every job asks of every host (errHostFacts), and all
// that an admitted request changes; it is called from several goroutines, and
// the lines of one request follow each other.
func NewGuard(p *Policy, s site.Site, audit func(string)) *Guard {
	return &Guard{policy: p, site: s, audit: audit}
}

// rule judges the arguments of one operation and returns them, to be encoded
// anew.
type rule struct {
	judge func(ctx context.Context, g *Guard, body []byte) (any, error)
	// told is what the audit tells of admitted arguments; nil where they change
	// nothing.
	told func(args any) account
}

// account is what a request changes, in words that are fit for a log.
type account struct {
	of   string   // on every line
	each []string // all are told, however many they are
}

// judging makes a rule of functions with typed arguments. told is nil where
// nothing is changed.
func judging[A any](told func(*A) account, f func(g *Guard, ctx context.Context, a *A) error) rule {
	r := rule{judge: func(ctx context.Context, g *Guard, body []byte) (any, error) {
		var a A
		if err := decode(body, &a); err != nil {
			return nil, fmt.Errorf("malformed arguments, or some that no rule is for: %w", err)
		}
		return &a, f(g, ctx, &a)
	}}
	if told != nil {
		r.told = func(args any) account { return told(args.(*A)) }
	}
	return r
}

// Admit returns the arguments that the operation is to be carried out with, or
// a refusal (fault.Refused) that says why.
func (g *Guard) Admit(ctx context.Context, op string, body json.RawMessage) (json.RawMessage, error) {
	r, ok := rules()[op]
	if !ok {
		return nil, g.refuse(op, body, fmt.Errorf("no rule allows the operation %q", op[:min(len(op), 64)]))
	}
	args, err := r.judge(ctx, g, body)
	if errors.Is(err, errHostFacts) {
		return nil, g.refusal(err)
	}
	if err != nil {
		return nil, g.refuse(op, body, err)
	}
	judged, err := json.Marshal(args)
	if err != nil {
		return nil, g.refuse(op, body, err)
	}
	if r.told != nil {
		g.tell(op, r.told(args))
	}
	return judged, nil
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
func (g *Guard) tell(op string, a account) {
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

func (g *Guard) refuse(op string, body []byte, err error) error {
	line := "refused " + strconv.QuoteToASCII(op[:min(len(op), 64)]) + ": " + clean(err.Error()) + ": " + shown(body, op)
	g.lines.Lock()
	defer g.lines.Unlock()
	g.audit(line)
	return g.refusal(err)
}

func (g *Guard) refusal(err error) error {
	return fault.Refusef("what the account of this key may do is in its authorized_keys: "+g.policy.String(),
		"the agent's policy forbids it: %w", err)
}

// shown is a refused request for the log: on one line, cut short. Tasks and
// offers may have secrets in them.
func shown(body []byte, op string) string {
	var t task
	switch {
	case op == opOffer, op == opTransfer && decode(body, &t) != nil:
		return "(not shown)"
	case op == opTransfer:
		a := t.told()
		return clip(strings.Join(a.each, " "), maxRefused)
	}
	return clean(string(body))
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
