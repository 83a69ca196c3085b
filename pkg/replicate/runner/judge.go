package runner

import (
	"context"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// maxRoleAge is how old the role of the source may be before a run takes snapshots. Listing a large source takes
// long, and another host may make the source a copy during that time.
const maxRoleAge = 2 * time.Second

// roles are the roles of sides. They are read in the background.
type roles struct {
	sides []*session.Side
	read  []observedSide // complete after done
	done  chan struct{}
	stop  func() // cancels the queries and waits
}

// readRoles starts to read the roles of sides of a job.
func readRoles(ctx context.Context, s *session.Session, sides ...*session.Side) *roles {
	ctx, cancel := context.WithCancel(ctx)
	r := &roles{sides: sides, read: make([]observedSide, len(sides)), done: make(chan struct{})}
	r.stop = func() { cancel(); <-r.done }
	var all sync.WaitGroup
	for i, side := range sides {
		all.Go(func() { r.read[i] = observeRole(ctx, side, s.Root(side).Name) })
	}
	go func() { all.Wait(); close(r.done) }()
	return r
}

// of returns the role of a side, the zero value if it was not read. A nil r has read none.
func (r *roles) of(side *session.Side) observedSide {
	if r == nil {
		return observedSide{}
	}
	<-r.done
	for i, read := range r.sides {
		if read == side {
			return r.read[i]
		}
	}
	return observedSide{}
}

// judgeRoles refuses a run if a fail over changed the roles of the source or a copy. A host that could not be
// reached counts as a side without a role: the run reports the error. It waits for the roles of the targets.
func judgeRoles(s *session.Session, source observedSide, targets *roles) error {
	if source.err != nil {
		return source.err
	}
	if source.Role.Kind == zfs.RoleStandby && s.Scope.Naming() == nil && source.Role.Job != s.Job.Name {
		source.Role = zfs.Role{} // a relay: it sends on what arrives
	}
	where := s.Source.Host.Label() + ":" + s.Root(s.Source).Name
	if source.Role.Kind == zfs.RoleStandby {
		reverse := source.Role.Job
		if reverse == s.Job.Name {
			reverse = replicate.ReverseName(reverse)
		}
		return fault.Refusef("to switch back: "+s.Env.Command("switch "+reverse)+"\nif its source is lost: "+s.Env.Command("promote "+reverse),
			"%s became a copy %s: this job must not change it", where, source.Role.Describe())
	}
	for _, t := range s.Targets {
		copied := targets.of(t)
		if _, err := decide.NextRoles(decide.ObserveRoles(source.RoleSide, copied.RoleSide), decide.RunEvent); err != nil {
			return refuseRole(s, err, t.Name, t.Host.Label()+":"+s.Root(t).Name, where, copied, source)
		}
	}
	// The source alone, also of a job without targets.
	if _, err := decide.NextRoles(decide.ObserveRoles(source.RoleSide, decide.RoleSide{}), decide.RunEvent); err != nil {
		return refuseRole(s, err, "", where, where, observedSide{}, source)
	}
	return nil
}

// checkRoles reads and judges the roles of the source and of targets.
func checkRoles(ctx context.Context, s *session.Session, targets []*session.Side) error {
	defer s.Activity("reading the roles of source and copies")()
	r := readRoles(ctx, s, append([]*session.Side{s.Source}, targets...)...)
	defer r.stop()
	return judgeRoles(s, r.of(s.Source), r)
}
