package decide

import (
	"fmt"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// Roles is the state of the roles of a job's source and one of its copies.
type Roles string

// The states of Roles. "lost" means that the source cannot be reached.
const (
	Normal       Roles = "normal"
	SourceLost   Roles = "source lost"
	Handover     Roles = "handover"              // the source is read-only, the copy is not the source yet
	Switching    Roles = "switching"             // the copy is the source, the former source is not a copy yet
	Promoted     Roles = "promoted"              // the copy is the source, the former source does not know it
	PromotedLost Roles = "promoted, source lost" // runs go from the copy
	TwoSources   Roles = "two sources"           // both claim the role
	Contradicted Roles = "contradictory roles"   // the records do not belong together
)

// RoleEvent is a command.
type RoleEvent string

// The events of Roles.
const (
	RunEvent      RoleEvent = "run"
	PromoteEvent  RoleEvent = "promote"
	PromoteAnyway RoleEvent = "promote --source-alive"
	SwitchEvent   RoleEvent = "switch"
	AbortEvent    RoleEvent = "switch --abort"
)

// RoleSide is an observed side of a pair.
type RoleSide struct {
	Reached bool
	// Exists reports whether the dataset exists.
	Exists bool
	// Copy reports whether the job received the dataset from the other side, and it is read-only.
	Copy bool
	Role zfs.Role
	// Invalid is the error of a role that zxfer did not write, or nil.
	Invalid error
}

// Lost reports whether the side cannot be reached, or its dataset is missing.
func (s *RoleSide) Lost() bool { return !s.Reached || !s.Exists }

// ObserveRoles returns the state of a pair. reversed reports that the sides changed their roles: then the state
// is that of the pair whose source is target. An unreachable copy, and a pair without a copy, count as a copy without
// a role.
func ObserveRoles(source, target RoleSide) (state Roles, reversed bool) {
	if reversed = isReversed(source, target); reversed {
		source, target = target, source
	}
	return observeRoles(source, target), reversed
}

// isReversed reports whether target is the source, or is being replaced by a switch back. A lost source does not reverse
// a pair, because it may return writable.
func isReversed(source, target RoleSide) bool {
	s, t := source.Role, target.Role
	switch {
	case source.Invalid != nil || target.Invalid != nil:
		return false
	case t.Kind == zfs.RoleHandover:
		return s.Kind == zfs.RoleStandby || s.Kind == zfs.RoleSource || s.Kind == "" && (source.Copy || source.Lost())
	case t.Kind != zfs.RoleSource:
		return s.Kind == zfs.RoleStandby && target.Lost()
	case s.Kind == zfs.RoleStandby:
		return s.ID == t.ID
	case s.Kind == zfs.RoleSource: // promoted after target was lost
		return s.Before == t.ID
	}
	return s.Kind == "" && source.Exists && source.Copy // sent in full after switch --rotate
}

func observeRoles(source, target RoleSide) Roles {
	s, t := source.Role, target.Role
	switch {
	case source.Invalid != nil || target.Invalid != nil:
		return Contradicted
	case t.Kind == zfs.RoleHandover: // another fail over replaces this copy
		return Contradicted
	case t.Kind == zfs.RoleSource && source.Lost():
		return PromotedLost
	case t.Kind == zfs.RoleSource:
		switch s.Kind {
		case zfs.RoleSource:
			if t.Before != s.ID {
				return TwoSources
			}
		case zfs.RoleStandby:
			return Contradicted
		case zfs.RoleHandover:
			if s.ID == t.ID {
				return Switching
			}
		}
		return Promoted
	case source.Lost():
		return SourceLost
	case s.Kind == zfs.RoleHandover:
		return Handover
	case s.Kind == zfs.RoleStandby:
		return Contradicted // its source is not this copy
	case s.Kind == zfs.RoleSource && t.Kind == zfs.RoleStandby && s.ID != t.ID && s.Target == t.Target:
		return Contradicted // otherwise they changed their roles with other places
	}
	return Normal
}

// permits reports whether an event is permitted. A command that finds its change made completes its other steps. A run
// whose source is lost reports that.
func (state Roles) permits(event RoleEvent) bool {
	switch event {
	case RunEvent:
		return state == Normal || state == SourceLost || state == PromotedLost
	case PromoteEvent:
		return state == SourceLost || state == Switching || state == Promoted || state == PromotedLost
	case PromoteAnyway:
		return state == Normal || state.permits(PromoteEvent)
	case SwitchEvent:
		return state == Normal || state == Handover || state == Switching || state == Promoted
	}
	return event == AbortEvent && state == Handover
}

// PermitRoles returns a refusal (fault.Refused) of an event that a state does not permit, or nil.
func PermitRoles(state Roles, event RoleEvent) error {
	if state.permits(event) {
		return nil
	}
	why, remedies := refusedRole(state, event)
	return fault.Refusef(RoleHint(remedies, "JOB", "DATASET", "", ""), "%s", why)
}

// RoleRemedy is a command that ends a refusal of NextRoles.
type RoleRemedy struct {
	When string // "" = always
	Verb string // of zxfer replicate, such as "switch"; "" = clear the role of a dataset
	Flag string
}

// RoleRemedies returns the remedies for a refused event.
func RoleRemedies(state Roles, event RoleEvent) []RoleRemedy {
	_, remedies := refusedRole(state, event)
	return remedies
}

// RoleHint returns remedies as a hint for a job, and its target if it is not "". flags is appended to commands.
func RoleHint(remedies []RoleRemedy, job, dataset, target, flags string) string {
	var lines []string
	for _, r := range remedies {
		command := "zfs inherit " + zfs.RoleProperty + " " + dataset
		if r.Verb != "" {
			command = strings.Join(strings.Fields(strings.Join([]string{"zxfer replicate", r.Verb, job, target, r.Flag}, " ")), " ") + flags
		}
		if r.When != "" {
			command = r.When + ": " + command
		}
		lines = append(lines, command)
	}
	return strings.Join(lines, "\n")
}

// refusedRole returns the reason of a refusal, and the remedies.
func refusedRole(state Roles, event RoleEvent) (why string, remedies []RoleRemedy) {
	one := func(when, verb, flag string) []RoleRemedy { return []RoleRemedy{{when, verb, flag}} }
	clear := one("keep the role of one side, and clear the other's", "", "")
	switch state {
	case Normal:
		if event == AbortEvent {
			return "no switch is in progress", one("", "switch", "")
		}
		return "the source can be reached and is writable: two sides would be writable", one("change the roles without loss", "switch", "")
	case SourceLost:
		return "the source cannot be reached", one("if it is lost", "promote", "")
	case Handover:
		return "a switch to the copy is in progress", []RoleRemedy{{"to complete it", "switch", ""}, {"to end it", "switch", "--abort"}}
	case Switching, Promoted:
		if event == AbortEvent {
			return "the copy is the source already", one("to make the former source a copy", "switch", "")
		}
		return "the copy became the source", one("to make the former source a copy", "switch", "")
	case PromotedLost:
		return "the copy became the source, and the former source is missing or cannot be reached",
			[]RoleRemedy{{"to send it in full if it is missing", "run", ""}, {"when it returns", "switch", ""}}
	case TwoSources:
		return "both sides are recorded as the source", clear
	}
	return fmt.Sprintf("the roles of source and copy do not belong together: %s is refused", event), clear
}
