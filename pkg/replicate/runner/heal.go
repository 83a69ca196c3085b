package runner

import (
	"slices"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
)

// CopiesOf returns the copies that a job keeps, one for each target, for zxfer heal.
func CopiesOf(j *replicate.Job) (all []heal.Copy, err error) {
	source, err := endpoint.Parse(j.Source)
	if err != nil {
		return nil, err
	}
	for n := range j.Targets {
		target, err := endpoint.Parse(j.Targets[n].To)
		if err != nil {
			return nil, err
		}
		if target.Name, err = plan.TargetName(source.Name, target.Name); err != nil {
			return nil, err
		}
		same := func(c heal.Copy) bool { return j.Targets[n].Disk != nil && c.Target == target }
		if slices.ContainsFunc(all, same) { // two disks of one target, at most one of which is imported
			continue
		}
		all = append(all, heal.Copy{Source: source, Target: target, Recursive: j.Recursive, Job: j.Name, Settings: j.TransferTo(&j.Targets[n]).Settings})
	}
	return all, nil
}
