package runner

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// observedSide is a side of a pair with the error of its observation.
type observedSide struct {
	decide.RoleSide
	at  string // the dataset that has the role
	err error  // why the side could not be reached
}

// observeRole reads the role of a dataset. An ancestor's role also applies to it.
func observeRole(ctx context.Context, s *session.Side, dataset string) (o observedSide) {
	var names []string
	for name := dataset; name != ""; name = zfs.ParentOf(name) {
		names = append(names, name)
	}
	found, err := s.Properties(ctx, names, "type", zfs.RoleProperty)
	if err != nil {
		o.err = err
		return o
	}
	o.Reached, o.Exists = true, found[dataset] != nil
	o.at, o.Role, o.Invalid = zfs.RoleOf(dataset, func(name string) map[string]zfs.Property { return found[name] })
	return o
}

// standby refuses to run a job that a fail over made a standby job.
func (r *Runner) standby(j *replicate.Job) error {
	if !j.Standby {
		return nil
	}
	reverse := replicate.ReverseName(j.Name)
	return fault.Refusef("run the job in the other direction: "+r.Env.Command("run "+reverse)+"\nswitch back to this one: "+r.Env.Command("switch "+reverse),
		"job %q: it is standby, because its source became a copy", j.Name)
}

// refuseRole completes a refusal of decide.NextRoles with the datasets, the time, the job and the name of
// the target, "" = none.
func refuseRole(s *session.Session, err error, name, copied, source string, target, from observedSide) error {
	why := err
	for _, side := range []struct {
		name string
		observedSide
	}{{copied, target}, {source, from}} {
		switch {
		case side.Invalid != nil:
			why = fmt.Errorf("%w: %s: %w", why, side.name, side.Invalid)
		case side.Role.Kind != "":
			why = fmt.Errorf("%w: %s is recorded as %s %s", why, side.name, side.Role.Kind, side.Role.Describe())
		}
	}
	job, reverse := s.Job.Name, replicate.ReverseName(s.Job.Name)
	if r := from.Role; r.Kind == zfs.RoleHandover {
		job = r.Job + " " + r.Target
	} else if len(s.Targets) > 1 && name != "" {
		job += " " + name
	}
	lines := strings.Split(fault.HintOf(err), "\n")
	for i, line := range lines {
		text, command, found := strings.Cut(line, "zxfer replicate ")
		if !found {
			lines[i] = strings.ReplaceAll(line, "DATASET", s.Source.At.Name)
			continue
		}
		words := strings.Fields(command)
		for k, word := range words {
			words[k] = map[string]string{"JOB": job, "JOB" + replicate.ReverseName(""): reverse}[word]
			words[k] = cmp.Or(words[k], word)
		}
		lines[i] = text + s.Env.Command(strings.Join(words, " "))
	}
	return fault.Refusef(strings.Join(lines, "\n"), "job %q: %w", s.Job.Name, why)
}

// recordChange returns the change of the records on a copy, or nil if they are up to date. origin and settings are
// the values to record, "" = none. A value that cannot be recorded is not changed.
func recordChange(copied *zfs.Dataset, origin, settings string) *zfs.PropertyChange {
	c := zfs.PropertyChange{Dataset: copied.Name, Set: map[string]string{}}
	for _, r := range []struct {
		name, want string
		check      func(string) error
	}{
		{zfs.OriginProperty, origin, func(s string) error { _, err := zfs.ParseOrigin(s); return err }},
		{zfs.SettingsProperty, settings, func(s string) error { _, err := zfs.ParseSettings(s); return err }},
	} {
		was := ""
		if p := copied.Properties[r.name]; p.Local() {
			was = p.Value
		}
		switch {
		case was == r.want:
		case r.want == "":
			c.Revert = append(c.Revert, r.name)
		case r.check(r.want) == nil:
			c.Set[r.name] = r.want
		}
	}
	if len(c.Set)+len(c.Revert) == 0 {
		return nil
	}
	return &c
}
