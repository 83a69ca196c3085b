package decide

import (
	"fmt"

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
	HandoverLost Roles = "handover, source lost" //
	Switching    Roles = "switching"             // the copy is the source, the former source is not a copy yet
	Promoted     Roles = "promoted"              // the copy is the source, the former source does not know it
	PromotedLost Roles = "promoted, source lost" //
	Switched     Roles = "switched"              // the copy is the source, the source is the copy
	TwoSources   Roles = "two sources"           // both claim the role
	Contradicted Roles = "contradictory roles"   // the records do not belong together
)

// RoleEvent is a command, or a change that a command observes.
type RoleEvent string

// The events of Roles.
const (
	RunEvent      RoleEvent = "run"
	PromoteEvent  RoleEvent = "promote"
	PromoteAnyway RoleEvent = "promote --source-alive"
	SwitchEvent   RoleEvent = "switch"
	AbortEvent    RoleEvent = "switch --abort"
	Arrived       RoleEvent = "last increment arrived"
	Demoted       RoleEvent = "source demoted"
	LoseEvent     RoleEvent = "source is lost"
	ReturnEvent   RoleEvent = "source returns"
	ClaimEvent    RoleEvent = "source claims its role"
	ForeignEvent  RoleEvent = "another fail over"
)

// RoleSide is an observed side of a pair.
type RoleSide struct {
	Reached bool
	// Exists reports whether the dataset exists.
	Exists bool
	Role   zfs.Role
	// Invalid is the error of a role that zxfer did not write, or nil.
	Invalid error
}

// ObserveRoles returns the state of a pair. An unreachable copy, and a pair without a copy, count as
// a copy without a role.
func ObserveRoles(source, target RoleSide) Roles {
	s, t := source.Role, target.Role
	lost := !source.Reached || !source.Exists
	switch {
	case source.Invalid != nil || target.Invalid != nil:
		return Contradicted
	case t.Kind == zfs.RoleHandover: // another fail over replaces this copy
		return Contradicted
	case t.Kind == zfs.RoleSource && lost:
		return PromotedLost
	case t.Kind == zfs.RoleSource:
		switch s.Kind {
		case zfs.RoleSource:
			if t.Before != s.ID {
				return TwoSources
			}
		case zfs.RoleStandby:
			if s.ID != t.ID {
				return Contradicted
			}
			return Switched
		case zfs.RoleHandover:
			if s.ID == t.ID {
				return Switching
			}
		}
		return Promoted
	case lost:
		return SourceLost
	case s.Kind == zfs.RoleHandover:
		return Handover
	case s.Kind == zfs.RoleStandby:
		return Contradicted // its source is not this copy
	case s.Kind == zfs.RoleSource && t.Kind == zfs.RoleStandby && s.ID != t.ID:
		return Contradicted
	}
	return Normal
}

// roleRules lists the transitions. An event that a state does not list is refused. The same state
// means that the event changes no role: the command completes or repeats its other steps.
func roleRules() map[Roles]map[RoleEvent]Roles {
	return map[Roles]map[RoleEvent]Roles{
		Normal: {RunEvent: Normal, PromoteAnyway: Promoted, SwitchEvent: Handover, Arrived: Normal, Demoted: Normal,
			LoseEvent: SourceLost, ReturnEvent: Normal, ClaimEvent: Normal, ForeignEvent: Contradicted},
		// The run reports that it cannot reach the source.
		SourceLost: {RunEvent: SourceLost, PromoteEvent: PromotedLost, PromoteAnyway: PromotedLost, Arrived: SourceLost, Demoted: SourceLost,
			LoseEvent: SourceLost, ReturnEvent: Normal, ClaimEvent: SourceLost, ForeignEvent: Contradicted},
		Handover: {SwitchEvent: Handover, AbortEvent: Normal, Arrived: Switching, Demoted: Handover,
			LoseEvent: HandoverLost, ReturnEvent: Handover, ClaimEvent: Normal, ForeignEvent: Contradicted},
		HandoverLost: {PromoteEvent: PromotedLost, PromoteAnyway: PromotedLost, Arrived: HandoverLost, Demoted: HandoverLost,
			LoseEvent: HandoverLost, ReturnEvent: Handover, ClaimEvent: HandoverLost, ForeignEvent: Contradicted},
		Switching: {PromoteEvent: Switching, PromoteAnyway: Switching, SwitchEvent: Switching, Arrived: Switching, Demoted: Switched,
			LoseEvent: PromotedLost, ReturnEvent: Switching, ClaimEvent: TwoSources, ForeignEvent: Contradicted},
		Promoted: {PromoteEvent: Promoted, PromoteAnyway: Promoted, SwitchEvent: Promoted, Arrived: Promoted, Demoted: Switched,
			LoseEvent: PromotedLost, ReturnEvent: Promoted, ClaimEvent: TwoSources, ForeignEvent: Contradicted},
		PromotedLost: {PromoteEvent: PromotedLost, PromoteAnyway: PromotedLost, Arrived: PromotedLost, Demoted: PromotedLost,
			LoseEvent: PromotedLost, ReturnEvent: Promoted, ClaimEvent: PromotedLost, ForeignEvent: Contradicted},
		Switched: {PromoteEvent: Switched, PromoteAnyway: Switched, SwitchEvent: Switched, Arrived: Switched, Demoted: Switched,
			LoseEvent: PromotedLost, ReturnEvent: Switched, ClaimEvent: TwoSources, ForeignEvent: Contradicted},
		TwoSources:   observed(TwoSources),
		Contradicted: observed(Contradicted),
	}
}

// observed returns the rules of a state that no command leaves: only the user can.
func observed(state Roles) map[RoleEvent]Roles {
	out := map[RoleEvent]Roles{}
	for _, e := range []RoleEvent{Arrived, Demoted, LoseEvent, ReturnEvent, ClaimEvent, ForeignEvent} {
		out[e] = state
	}
	return out
}

// NextRoles returns the state after an event, or a refusal (fault.Refused) that changes nothing.
func NextRoles(state Roles, event RoleEvent) (Roles, error) {
	if next, ok := roleRules()[state][event]; ok {
		return next, nil
	}
	why, hint := refusedRole(state, event)
	return state, fault.Refusef(hint, "%s", why)
}

// refusedRole returns the reason of a refusal, and the remedy. JOB stands for the job.
func refusedRole(state Roles, event RoleEvent) (why, hint string) {
	const toSwitch, clear = "zxfer replicate switch JOB", "keep the role of one side, and clear the other's: zfs inherit " + zfs.RoleProperty + " DATASET"
	switch state {
	case Normal:
		if event == AbortEvent {
			return "no switch is in progress", toSwitch
		}
		return "the source can be reached and is writable: two sides would be writable", "change the roles without loss: " + toSwitch
	case SourceLost, HandoverLost:
		if event == RunEvent {
			return "a switch to the copy is in progress", toSwitch
		}
		return "the source cannot be reached", "if it is lost: zxfer replicate promote JOB"
	case Handover:
		return "a switch to the copy is in progress", "to complete it: " + toSwitch + "\nto end it: " + toSwitch + " --abort"
	case Switching, Promoted:
		if event == AbortEvent {
			return "the copy is the source already", "to make the former source a copy: " + toSwitch
		}
		return "the copy became the source", "to make the former source a copy: " + toSwitch
	case PromotedLost:
		return "the copy became the source, and the former source is missing or cannot be reached",
			"if a switch has renamed it: zxfer replicate run JOB-reverse\nwhen it returns: " + toSwitch
	case Switched:
		return "the copy became the source, and this source is its copy", "to switch back, name the reverse job: " + toSwitch + "-reverse"
	case TwoSources:
		return "both sides are recorded as the source", clear
	}
	return fmt.Sprintf("the roles of source and copy do not belong together: %s is refused", event), clear
}

// rolesMachine is the machine of Roles for tests and documentation.
func rolesMachine() Machine {
	m := Machine{Name: "Roles of source and copy", Next: func(state, event string) (string, error) {
		next, err := NextRoles(Roles(state), RoleEvent(event))
		return string(next), err
	}}
	for _, s := range []Roles{Normal, SourceLost, Handover, HandoverLost, Switching, Promoted, PromotedLost, Switched, TwoSources, Contradicted} {
		m.States = append(m.States, string(s))
	}
	for _, e := range []RoleEvent{RunEvent, PromoteEvent, PromoteAnyway, SwitchEvent, AbortEvent, Arrived, Demoted, LoseEvent, ReturnEvent, ClaimEvent, ForeignEvent} {
		m.Events = append(m.Events, string(e))
	}
	return m
}
