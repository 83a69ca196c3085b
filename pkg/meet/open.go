package meet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/site"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
)

// Open makes sure that a link passes: one connection is made, both ends prove
// themselves, and it is closed; it is none of those that data takes. Where it does
// not pass the next way takes its place, of which log is told; see Search for how it
// went. Nothing is tried within one host, by nc, and through ssh where that was
// asked for. The error is of a host, not of a closed way; Open of the link that comes
// with it continues there.
func (l Link) Open(ctx context.Context, log func(string)) (Link, error) {
	for {
		if l.Wire == Local || l.Wire == way.NC || l.Wire == way.SSH && len(l.before) == 0 {
			return l, nil
		}
		began := time.Now()
		err := l.try(ctx)
		switch {
		case ctx.Err() != nil:
			return l, context.Cause(ctx)
		case site.Unheard(err): // an earlier build cannot say
			log(l.others() + " has an earlier zxfer: whether data passes was not tried")
			return l, nil
		case err == nil:
			if i := l.earlier(); i >= 0 { // and so is no other way than it was
				l.before = l.before[:i]
			}
			l.met.Store(true)
			l.tried = true
			return l, nil
		case !l.closes(err):
			return l, err
		}
		if time.Since(began) >= tryDeadline && !l.tried {
			l.onceMore()
		}
		l.tried = true
		shut := []string{l.shut(err)}
		if len(l.after) == 0 {
			return l.none()
		}
		next, err := l.next()
		switch {
		case errors.As(err, new(*astray)):
			return next.none()
		case err != nil:
			return l, err
		}
		shut = append(shut, next.before[len(l.before):]...)
		log(fmt.Sprintf("no data passes %s; trying %s", strings.Join(shut, "; "), next.trying()))
		l = next
	}
}

// closes tells an error by which a way is closed from one of a host, to which another
// way makes no difference: its ports are taken, say.
func (l *Link) closes(err error) bool {
	if fault.ClassOf(err) == fault.Refused {
		return l.Wire == way.SSH || errors.Is(err, site.ErrForbidden)
	}
	for _, of := range []error{wire.ErrDial, wire.ErrNobody, wire.ErrCut, wire.ErrTampered, context.DeadlineExceeded} {
		if errors.Is(err, of) && !errors.Is(err, site.ErrLost) {
			return true
		}
	}
	return false
}

// onceMore has the way tried again before ssh takes all, or none is left: no answer
// may have been a moment's.
func (l *Link) onceMore() {
	last := len(l.after)
	if last > 0 && l.after[last-1].Wire == way.SSH {
		last--
	}
	l.after = slices.Insert(slices.Clone(l.after), last, l.Way)
}

// earlier is where this way is among those before, -1 where it was not tried.
func (l *Link) earlier() int {
	return slices.IndexFunc(l.before, func(s string) bool { return strings.HasPrefix(s, l.path()+": ") })
}

// none is the link that was chosen first, of which it is known that no way passes.
func (l Link) none() (Link, error) {
	first, err := Choose(l.asked, l.source, l.target)
	first.before, first.astray, first.tried, first.closed = l.before, l.astray, true, true
	return first, err
}

// trying names the link for people who wait for it.
func (l *Link) trying() string {
	switch {
	case l.Wire == way.SSH:
		return l.path() + without(l.asked.Idle(way.OverSSH)) + ", " + l.why
	case l.earlier() >= 0:
		return l.path() + " once more"
	}
	return l.path()
}

// without says which options go.
func without(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	for i, id := range ids {
		ids[i] = option.Name(id, "")
	}
	return " without " + strings.Join(ids, " and ")
}

// others names the hosts that are not this one.
func (l *Link) others() string {
	var names []string
	for _, s := range []Side{l.source, l.target} {
		if !s.Local() {
			names = append(names, s.Label())
		}
	}
	return strings.Join(names, " or ")
}

// try makes one connection. What is no word on the way gets a second chance: another
// transfer may have had the ports.
func (l Link) try(ctx context.Context) error {
	l = l.As(false)
	l.Streams = 1
	if l.Wire != way.SSH { // which has to log in
		l.deadline = tryDeadline
	}
	m := &meeting{link: l, from: From{l.source.Host, site.Nothing{}}, to: To{l.target.Host, site.Nothing{}},
		view: &view{limit: func(limit string) string { return limit }}}
	err := l.crossing.run(ctx, m)
	if err == nil || l.closes(err) || errors.Is(err, site.ErrLost) || site.Unheard(err) || fault.ClassOf(err) == fault.Refused {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(tryPause):
	}
	return l.crossing.run(ctx, m)
}

// shut notes why a link does not pass, each way once.
func (l *Link) shut(err error) string {
	why := l.path() + ": " + err.Error()
	if len(l.before) == 0 {
		l.astray = errors.As(err, new(*astray))
	}
	if l.earlier() < 0 {
		l.before = append(slices.Clip(l.before), why)
	}
	return why
}

// path names a link by who connects to whom.
func (l *Link) path() string {
	if l.Wire == way.SSH {
		return "through ssh"
	}
	return "from " + l.dialer.Label() + " to " + l.listener.Label()
}

// Search tells how it went.
func (l Link) Search() way.Search {
	if !l.tried {
		return way.Search{}
	}
	first := Link{Way: l.asked}
	listener, _ := first.direct(l.source, l.target)
	s := way.Search{Path: l.path(), Shut: l.before, Astray: l.astray, Closed: l.closed, Shell: l.Wire == way.SSH,
		Listen: listener.Label(), Option: option.Name("dial", l.dial)}
	if s.Shell {
		s.Option = throughSSH(l.asked)
	}
	if !l.closed {
		return s
	}
	asked := ways(l.asked, l.source, l.target)
	switch {
	case l.DataAddress != "": // of one host: no other listens there
		s.Untried = []string{"the same command" + without([]string{"data-address"})}
		return s
	case len(asked) == 1:
		other := map[string]string{"source": "target", "target": "source"}[l.dial]
		s.Untried = append(s.Untried, option.Name("dial", other))
	}
	if (l.source.Local() || l.target.Local()) && !slices.ContainsFunc(asked, func(w way.Way) bool { return w.Wire == way.SSH }) {
		s.Untried = append(s.Untried, throughSSH(l.asked))
	}
	return s
}

// throughSSH is what has all go through ssh at once.
func throughSSH(w way.Way) string {
	idle := w.Idle(way.OverSSH)
	if w.TrustedLink {
		idle = append(idle, "trusted-link")
	}
	return option.Name("wire", way.SSH) + without(idle)
}
