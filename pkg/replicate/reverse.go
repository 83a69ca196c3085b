package replicate

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/replicate/retention"
)

// FormerSource is the name of the job's own source as a target, while the copy on another target is the source.
const FormerSource = "former-source"

// Target returns the target with that name, or nil.
func (j *Job) Target(name string) *Target {
	for i := range j.Targets {
		if j.Targets[i].Name == name {
			return &j.Targets[i]
		}
	}
	return nil
}

// Pair returns the name that a target has in hold tags and roles. A pair of places has one name in both
// directions: that of the target in the job file.
func (t *Target) Pair() string { return cmp.Or(t.PairName, t.Name) }

// Tag returns the tag of the job's holds for a target.
func (j *Job) Tag(target string) string {
	if t := j.Target(target); t != nil {
		target = t.Pair()
	}
	return Tag(j.Name, target)
}

// Turn changes the state to the direction in which the copy on target place is the source, "" = as in the job file.
// since is when the roles changed. The bases and holds of a pair are the same in both directions, so that the next run
// moves them.
func (s *State) Turn(place string, since time.Time) {
	if place == s.Place {
		return
	}
	if s.Place != "" {
		s.turn(FormerSource, s.Place)
	}
	if place != "" {
		s.turn(place, FormerSource)
	}
	if s.Place, s.PlaceSince = place, since; place == "" {
		s.PlaceSince = time.Time{}
	}
}

// turn makes the copies on target to the datasets of the source. The former source becomes the target as.
func (s *State) turn(to, as string) {
	turned, names := map[string]*DatasetState{}, map[string]string{}
	for source, known := range s.Datasets {
		if a := known.Targets[to]; a != nil && a.Target != "" {
			turned[a.Target], names[source] = known.turned(source, to, as), a.Target
		}
	}
	s.Datasets, s.Root = turned, 0
	s.Orphans = slices.DeleteFunc(s.Orphans, func(g *Orphan) bool {
		// A copy without an original belongs to the new source now. The other targets keep theirs.
		g.Source = parentName(g.Source, names)
		return g.Target == to || g.Source == ""
	})
}

// parentName returns the new name of a dataset whose parent was renamed, or "" if no parent is in names.
func parentName(dataset string, names map[string]string) string {
	for at := dataset; at != ""; at = at[:max(0, strings.LastIndexByte(at, '/'))] {
		if now := names[at]; now != "" {
			return now + strings.TrimPrefix(dataset, at)
		}
	}
	return ""
}

// turned returns the state of the copy of source on target to, as a dataset of the source.
func (k *DatasetState) turned(source, to, as string) *DatasetState {
	now := &DatasetState{Consistent: k.Consistent, Targets: map[string]*CopyState{}, Histories: map[string]*retention.History{}}
	for side, h := range k.Histories {
		switch side {
		case to:
			now.Histories[SourceSide] = h
		case SourceSide:
			now.Histories[as] = h
		default:
			now.Histories[side] = h
		}
	}
	for name, was := range k.Targets {
		a := *was
		a.EncryptionRoot, a.OriginalGUID, a.Sending, a.Moving, a.Held = "", 0, 0, true, nil
		if name == to {
			name, a.Target, a.Base, a.BaseOnTarget = as, source, was.BaseOnTarget, was.Base
			for _, h := range was.Held {
				a.Held = append(a.Held, Held{Source: h.Target, Target: h.Source})
			}
		} else {
			for _, h := range was.Held {
				if h.Target != "" {
					a.Held = append(a.Held, Held{Target: h.Target})
				}
			}
		}
		now.Targets[name] = &a
	}
	return now
}

// TurnedName returns the name that a side of records has after a change of the direction from one place to another. The
// source is "".
func TurnedName(side, from, to string) string {
	if from != "" {
		switch side {
		case "":
			side = from
		case FormerSource:
			side = ""
		}
	}
	if to != "" {
		switch side {
		case "":
			side = FormerSource
		case to:
			side = ""
		}
	}
	return side
}
