package session

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/zfs"
)

// Role is the observed role of the root dataset on a side.
type Role struct {
	decide.RoleSide
	Name    string // "HOST:DATASET" for messages, "" = not observed
	Dataset string // the root dataset on the side
	At      string // the dataset that has the role: Dataset or an ancestor
	Err     error  // why the side could not be reached
}

// ReadRole reads the role of a side's root dataset. An ancestor's role also applies to it.
func (s *Session) ReadRole(ctx context.Context, side *Side) (o Role) {
	o.Dataset = s.Root(side).Name
	o.Name = side.Host.Label() + ":" + o.Dataset
	var names []string
	for name := o.Dataset; name != ""; name = zfs.ParentOf(name) {
		names = append(names, name)
	}
	found, err := side.Properties(ctx, names, "type", "readonly", zfs.FlagsProperty, zfs.OriginProperty, zfs.RoleProperty)
	if err != nil {
		o.Err = err
		return o
	}
	of := found[o.Dataset]
	o.Reached, o.Exists = true, of != nil
	o.Copy = of[zfs.FlagsProperty].Local() && of["readonly"].Value == "on" && s.received(side, of[zfs.OriginProperty])
	o.At, o.Role, o.Invalid = zfs.RoleOf(o.Dataset, func(name string) map[string]zfs.Property { return found[name] })
	return o
}

// received reports whether the record on a dataset of a side names this job and a place of the other side. The
// source of a relay is a copy of another job: without this check, its target could send back to it.
func (s *Session) received(side *Side, record zfs.Property) bool {
	origin, err := zfs.ParseOrigin(record.Value)
	if err != nil || !record.Local() || origin.Job != s.Job.Name {
		return false
	}
	if side != s.Source {
		return origin.Source == s.Source.At.String()
	}
	return slices.ContainsFunc(s.Targets, func(t *Side) bool { from := s.Root(t); return origin.Source == from.String() })
}

// Roles are the observed roles of sides.
type Roles map[*Side]Role

// ReadRoles reads the roles of sides concurrently.
func (s *Session) ReadRoles(ctx context.Context, sides ...*Side) Roles {
	read := make([]Role, len(sides))
	var all sync.WaitGroup
	for i, side := range sides {
		all.Go(func() { read[i] = s.ReadRole(ctx, side) })
	}
	all.Wait()
	r := Roles{}
	for i, side := range sides {
		r[side] = read[i]
	}
	return r
}

// place returns the target of the job file for a side, "" for the source of the job file.
func (s *Session) place(side *Side) string {
	switch {
	case side == s.Source:
		return s.State.Place
	case side.Name == replicate.FormerSource:
		return ""
	}
	return side.Name
}

// Direction is the direction of a job.
type Direction struct {
	Place string // the target of the job file whose copy is the source, "" = the source of the job file
	Lost  bool   // the source of the job file is missing
	Since time.Time
	// Promoted reports that a fail over made the source the source of all copies.
	Promoted bool
}

// Direct returns the direction of a run. It refuses a run if the roles of a pair do not permit it. A host
// that was not reached counts as a side without a role: the run reports the error.
func (s *Session) Direct(r Roles) (d Direction, err error) {
	source, copies := Role{}, map[string]Role{}
	for side, o := range r {
		if place := s.place(side); place == "" {
			source = o
		} else {
			copies[place] = o
		}
	}
	if source.Role.Kind == zfs.RoleStandby && s.Scope.Naming() == nil && source.Role.Job != s.Job.Name {
		source.Role = zfs.Role{} // a relay: it sends on what arrives
	}
	var from []string
	var refused error
	names, contradicted := []string{""}, false // "" is the source alone, also of a job without targets
	for _, t := range s.Written.Targets {
		names = append(names, t.Name)
	}
	for _, name := range names {
		if copied := copies[name]; source.Role.Kind == zfs.RoleStandby && copied.Lost() && (source.Role.Target != name || source.Role.Job != s.Job.Name) {
			continue
		}
		state, reversed := decide.ObserveRoles(source.RoleSide, copies[name].RoleSide)
		switch {
		case decide.PermitRoles(state, decide.RunEvent) != nil && (refused == nil || contradicted):
			refused, contradicted = s.RefuseRoles(state, decide.RunEvent, name, source, copies[name]), state == decide.Contradicted
		case decide.PermitRoles(state, decide.RunEvent) == nil && (reversed || state == decide.PromotedLost):
			from = append(from, name)
		}
	}
	switch {
	case len(from) > 1:
		return d, fault.Refusef("keep the role of one copy, and clear the other's: zfs inherit "+zfs.RoleProperty+" DATASET",
			"the copies on targets %s and %s are both recorded as the source", from[0], from[1])
	case len(from) == 1:
		d = Direction{Place: from[0], Since: copies[from[0]].Role.Since, Promoted: true, Lost: source.Reached && !source.Exists}
		if d.Since.IsZero() { // it was not reached, and the former source names it
			d.Since = source.Role.Since
		}
		return d, s.checkOthers(from[0], copies)
	case source.Role.Kind == zfs.RoleStandby:
		job := source.Role.Job
		return d, fault.Refusef("to switch back: "+s.Env.Command("switch "+job)+"\nif its source is lost: "+s.Env.Command("promote "+job),
			"%s became a copy %s: this job must not change it", source.Name, source.Role.Describe())
	case refused != nil:
		return d, refused
	}
	return Direction{Promoted: source.Role.Kind == zfs.RoleSource}, source.Err
}

// checkOthers refuses a run from the copy on a target if another copy claims the source.
func (s *Session) checkOthers(from string, copies map[string]Role) error {
	for _, t := range s.Written.Targets {
		state, reversed := decide.ObserveRoles(copies[from].RoleSide, copies[t.Name].RoleSide)
		if reversed {
			state = decide.TwoSources
		}
		if t.Name != from && decide.PermitRoles(state, decide.RunEvent) != nil {
			return s.RefuseRoles(state, decide.RunEvent, t.Name, copies[from], copies[t.Name])
		}
	}
	return nil
}

// Present returns the session in the direction of the roles of the source and of some targets.
func (s *Session) Present(ctx context.Context, targets []*Side) (*Session, error) {
	to, err := s.Direct(s.ReadRoles(ctx, append([]*Side{s.Source}, targets...)...))
	if err != nil || to.Place == s.State.Place {
		return s, err
	}
	return s.Turn(to.Place, to.Since)
}

// RefuseRoles returns the refusal of an event for a pair of places with the name of its target, "" = none. It names datasets, times
// and commands.
func (s *Session) RefuseRoles(state decide.Roles, event decide.RoleEvent, target string, source, copied Role) error {
	why := decide.PermitRoles(state, event)
	for i, side := range []Role{copied, source} {
		switch {
		case i == 1 && side.Name == copied.Name:
		case side.Err != nil:
			why = fmt.Errorf("%w: %w", why, side.Err)
		case side.Invalid != nil:
			why = fmt.Errorf("%w: %s: %w", why, side.Name, side.Invalid)
		case side.Role.Kind != "":
			why = fmt.Errorf("%w: %s is recorded as %s %s", why, side.Name, side.Role.Kind, side.Role.Describe())
		}
	}
	job := s.Job.Name
	if len(s.Written.Targets) < 2 {
		target = ""
	}
	for _, r := range []zfs.Role{copied.Role, source.Role} {
		if r.Kind == zfs.RoleHandover {
			job, target = r.Job, r.Target
		}
	}
	hint := decide.RoleHint(decide.RoleRemedies(state, event), job, s.Source.At.Name, target, s.Env.Flags)
	return fault.Refusef(hint, "%w", why)
}

// OnThisHost returns the job as this host sees it. On the host of a copy, the job file of the
// source's host names this host in the target, and its source is not here.
// It looks only at the named target, "" = the only one.
func OnThisHost(ctx context.Context, j *replicate.Job, target string) (_ *replicate.Job, sourceUnknown bool) {
	from, err := endpoint.Parse(j.Source)
	if err != nil || !from.Local() {
		return j, false
	}
	here := *j
	here.Targets = append([]replicate.Target{}, j.Targets...)
	for i := range here.Targets {
		t := &here.Targets[i]
		if target != "" && t.Name != target {
			continue
		}
		if at, err := endpoint.Parse(t.To); err == nil && !at.Local() && isThisHost(ctx, at.HostName()) {
			at.Host = ""
			t.To, sourceUnknown = at.String(), true
		}
	}
	return &here, sourceUnknown
}

// lookupTimeout limits the name lookup of a target's host.
const lookupTimeout = 5 * time.Second

// isThisHost reports whether a name or address of a job file means this computer.
func isThisHost(ctx context.Context, name string) bool {
	if own, err := os.Hostname(); err == nil && (strings.EqualFold(name, own) || strings.EqualFold(name, jobfile.ShortName(own))) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, name)
	if err != nil { // an alias of the ssh configuration
		return false
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addresses {
		for _, o := range own {
			if n, ok := o.(*net.IPNet); ok && n.IP.Equal(a.IP) {
				return true
			}
		}
	}
	return false
}

// RanHere reports whether this host ran the job as it is in the job file. A run that found no source does not count.
func (s *Session) RanHere(j *replicate.Job) bool {
	return s.State.Place != "" || s.State.LastRun != nil && s.State.LastRun.Source == j.Source && len(s.State.Datasets) > 0
}
