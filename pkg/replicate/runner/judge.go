package runner

import (
	"context"
	"maps"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// maxRoleAge is how old the role of the source may be before a run takes snapshots. Listing a large source takes
// long, and another host may make the source a copy during that time.
const maxRoleAge = 2 * time.Second

// roles are the roles of sides. They are read in the background.
type roles struct {
	read session.Roles // complete after done
	done chan struct{}
	stop func() // cancels the queries and waits
}

// readRoles starts to read the roles of sides of a job.
func readRoles(ctx context.Context, s *session.Session, sides ...*session.Side) *roles {
	ctx, cancel := context.WithCancel(ctx)
	r := &roles{done: make(chan struct{})}
	r.stop = func() { cancel(); <-r.done }
	go func() {
		defer close(r.done)
		r.read = s.ReadRoles(ctx, sides...)
	}()
	return r
}

// wait returns the roles. A nil r has read none.
func (r *roles) wait() session.Roles {
	if r == nil {
		return nil
	}
	<-r.done
	return r.read
}

// turnError means that the roles on the datasets demand another direction than the records of this host.
type turnError struct{ to session.Direction }

func (e *turnError) Error() string { return "the roles of the job changed: run the same command again" }

// judgeRoles refuses a run if the roles do not permit it. It returns a turnError if the run must go in another
// direction. It waits for the roles of the targets.
func judgeRoles(ctx context.Context, s *session.Session, source session.Role, targets *roles) error {
	all := session.Roles{s.Source: source}
	maps.Copy(all, targets.wait())
	to, err := s.Direct(all)
	lost := to.Lost && !s.RanHere(s.Written)
	for _, t := range s.Targets { // the source may be the promoted copy itself, with the name that it has on the other host
		if err != nil && s.Root(t).Name == s.Source.At.Name && all[t].Role == source.Role && source.Role.Kind == zfs.RoleSource {
			to.Place, lost = t.Name, true
		}
	}
	if lost {
		if _, elsewhere := session.OnThisHost(ctx, s.Written, to.Place); elsewhere {
			return fault.Refusef("write the former source's host into the job file: source = \"HOST:"+s.Source.At.Name+"\"",
				"target %q is this host, so that the job file is that of another host, whose source is not %s here", to.Place, s.Source.At)
		}
	}
	if err != nil || to.Place == s.State.Place {
		return err
	}
	return &turnError{to}
}

// suspect reports whether the role of the source alone does not show that it is the source.
func suspect(s *session.Session, source session.Role) bool {
	return source.Role.Kind == "" && (source.Copy || s.State.Place != "" || !source.Exists) || source.Role.Kind == zfs.RoleStandby && s.State.Place != ""
}

// checkRoles reads and judges the roles of the source and of targets. It returns the session in their direction, and
// whether a fail over made its source the source.
func checkRoles(ctx context.Context, s *session.Session, targets []*session.Side) (_ *session.Session, promoted bool, err error) {
	defer s.Activity("reading the roles of source and copies")()
	r := readRoles(ctx, s, append([]*session.Side{s.Source}, targets...)...)
	defer r.stop()
	source := r.wait()[s.Source]
	err = judgeRoles(ctx, s, source, r)
	if turned, is := err.(*turnError); is {
		now, err := s.Turn(turned.to.Place, turned.to.Since)
		if err != nil {
			return s, false, err
		}
		return now, turned.to.Promoted, nil
	}
	return s, source.Role.Kind == zfs.RoleSource, err
}
