package authz

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// account describes what a request changes, in printable text for the audit.
type account struct {
	prefix string   // on every line
	items  []string // all are logged
}

// Limits of audit text in bytes. System logs cut lines at 1 KiB, including their own prefix
// (RFC 3164, section 4.1).
const (
	maxLine    = 800
	maxTag     = 300 // quoted; repeated on every line
	maxRefused = 300 // excerpt of a refused or failed request
)

// logAdmitted logs what admitted arguments change, if anything.
func (r rule[A]) logAdmitted(g *Guard, op string, args any) {
	if r.account != nil {
		admitted := args.(A)
		g.logAdmitted(op, r.account(&admitted))
	}
}

// logAdmitted logs everything that a request changes, on several lines if needed: "destroy
// (2/5): …".
func (g *Guard) logAdmitted(op string, a account) {
	head := "admitted " + op
	if a.prefix != "" {
		head += " " + a.prefix
	}
	room := maxLine - len(head) - len(" (9999/9999): ")
	var lines []string
	for _, text := range a.items {
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

// logFailed logs that an admitted request failed. A stream that is not the planned one is refused
// only on arrival.
func (r rule[A]) logFailed(g *Guard, q Request, args any, err error) {
	if r.account == nil {
		return
	}
	admitted, how := args.(A), "failed "+q.Op+": "
	switch {
	case errors.Is(err, errNotStarted):
		how = "not started " + q.Op + ": "
	case errors.Is(err, &zfs.Error{Kind: zfs.Unplanned}):
		how = "refused " + q.Op + " after admission: "
	}
	g.lines.Lock()
	defer g.lines.Unlock()
	g.audit(how + clean(err.Error()) + ": " + clip(strings.Join(r.account(&admitted).items, " "), maxRefused))
}

// LogRefusedUnread logs a request that was refused without decoding its arguments, because it
// exceeded a limit.
func (g *Guard) LogRefusedUnread(op string, err error) { g.logRefused(op, clean(err.Error())) }

func (g *Guard) logRefused(op, why string) {
	g.lines.Lock()
	defer g.lines.Unlock()
	g.audit("refused " + strconv.QuoteToASCII(op[:min(len(op), 64)]) + ": " + why)
}

// nameList returns the account of a list of names.
func nameList(names *[]string) account { return account{items: quoted(*names)} }

// singleName returns the account of one name.
func singleName(name *string) account { return account{items: []string{quote(*name)}} }

// mountedName returns the account of a mount.
func mountedName(m *zfs.MountRequest) account {
	name := clipName(m.Dataset)
	return singleName(&name)
}

// bookmarkNames returns the account of bookmarks and their snapshots.
func bookmarkNames(marks *map[string]string) (a account) {
	for _, b := range slices.Sorted(maps.Keys(*marks)) {
		a.items = append(a.items, quote(b)+" of "+quote((*marks)[b]))
	}
	return a
}

// holdNames returns the account of holds.
func holdNames(h *hosts.Tagged) account {
	return account{prefix: quote(h.Tag), items: quoted(h.Snapshots)}
}

// transferNames returns the account of a task, the receive first. It omits the ticket, which is
// secret.
func transferNames(t *hosts.Task) (a account) {
	add := func(words ...string) { a.items = append(a.items, strings.Join(words, " ")) }
	if t.Moves() == "nothing" {
		add("a connection without data")
	}
	if to, ok := t.To.(hosts.ReceiveStream); ok {
		r := to.Spec
		add("receive", quote(r.Target))
		if r.Corrective {
			add("corrective")
		}
		if r.Rollback {
			add("rollback")
		}
		if r.Origin != "" {
			add("origin", quote(r.Origin))
		}
		for _, name := range slices.Sorted(maps.Keys(r.Set)) {
			add("set", quote(name+"="+r.Set[name]))
		}
	}
	if from, ok := t.From.(hosts.SendFiles); ok {
		add("send files of", quote(from.Archive.Snapshot))
		for _, p := range from.Archive.Paths {
			add(quote(p))
		}
	}
	if from, ok := t.From.(hosts.SendStream); ok {
		s := from.Spec
		add("send", quote(s.Dataset))
		if s.From != "" {
			add("from", quote(s.From))
		}
		for _, through := range s.Through {
			add("through", quote(through))
		}
		add("to", quote(s.To))
		if s.Token != "" {
			add("the rest of an interrupted stream")
		}
		if s.Flags.Raw {
			add("raw")
		}
	}
	return a
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}

// clean returns the printable beginning of a text.
func clean(s string) string {
	quoted := quote(s[:min(len(s), maxRefused)])
	return clip(quoted[1:len(quoted)-1], maxRefused)
}

// quote returns a text in printable form with visible boundaries.
func quote(s string) string { return strconv.QuoteToASCII(s) }

func quoted(all []string) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = quote(s)
	}
	return out
}
