package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"zxfer/pkg/fault"
	"zxfer/pkg/site"
)

// Guard judges the requests of one session. It may be used by several
// goroutines.
type Guard struct {
	policy *Policy
	site   site.Site
	audit  func(string)
}

// NewGuard returns the Guard of a policy. Some rules need to look: at s, and
// never through it change anything. audit is told in one printable line every
// refusal, but of what every job asks of every host (errHostFacts), and every admitted request that changes something; it is
// called from several goroutines.
func NewGuard(p *Policy, s site.Site, audit func(string)) *Guard {
	return &Guard{policy: p, site: s, audit: audit}
}

// maxAudited bounds how much of a request the audit shows, in bytes.
const maxAudited = 300

// rule judges the arguments of one operation and returns them, to be encoded
// anew.
type rule struct {
	judge   func(ctx context.Context, g *Guard, body []byte) (any, error)
	changes bool // admitted requests are audited too
}

// judging makes a rule of a function with typed arguments.
func judging[A any](changes bool, f func(g *Guard, ctx context.Context, a *A) error) rule {
	return rule{changes: changes, judge: func(ctx context.Context, g *Guard, body []byte) (any, error) {
		var a A
		if err := decode(body, &a); err != nil {
			return nil, fmt.Errorf("malformed arguments, or some that no rule is for: %w", err)
		}
		return &a, f(g, ctx, &a)
	}}
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
	if r.changes {
		g.audit("admitted " + op + " " + shown(judged, op))
	}
	return judged, nil
}

func (g *Guard) refuse(op string, body []byte, err error) error {
	g.audit("refused " + strconv.QuoteToASCII(op[:min(len(op), 64)]) + ": " + clean(err.Error()) + ": " + shown(body, op))
	return g.refusal(err)
}

func (g *Guard) refusal(err error) error {
	return fault.Refusef("what the account of this key may do is in its authorized_keys: "+g.policy.String(),
		"the agent's policy forbids it: %w", err)
}

// shown is a request for the log: on one line, cut short. A task has secrets
// in its ticket, so that of it only what is sent and received is shown.
func shown(body []byte, op string) string {
	if op == opTransfer || op == opOffer {
		var t task
		if decode(body, &t) != nil {
			return "(not shown)"
		}
		body, _ = json.Marshal(struct {
			Send    *sendSpec    `json:"send,omitempty"`
			Receive *receiveSpec `json:"receive,omitempty"`
		}{t.Send, t.Receive}) // strings and flags
	}
	return clean(string(body))
}

func clean(s string) string {
	if len(s) > maxAudited {
		s = s[:maxAudited] + "…"
	}
	quoted := strconv.QuoteToASCII(s)
	return quoted[1 : len(quoted)-1]
}
