package status

import (
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// maxDiskState is the length of the longest state of a disk, and more.
const maxDiskState = 64

// keepKnown removes from the records of a job what no metric may name: datasets that are not below the
// job's source, and targets that the job does not have. The job's user may own the records.
func keepKnown(j *replicate.Job, st *statedir.State) {
	root := ""
	if at, err := endpoint.Parse(j.Source); err == nil {
		root = at.Name
	}
	isSource := func(name string) bool {
		_, err := zfs.ParseDataset(name)
		return err == nil && (name == root || strings.HasPrefix(name, root+"/"))
	}
	isTarget := func(name string) bool {
		return slices.ContainsFunc(j.Targets, func(t replicate.Target) bool { return t.Name == name })
	}
	isPool := func(name string) bool {
		_, err := zfs.ParseDataset(name)
		return err == nil
	}
	maps.DeleteFunc(st.Datasets, func(source string, d *replicate.DatasetState) bool {
		maps.DeleteFunc(d.Targets, func(to string, _ *replicate.CopyState) bool { return !isTarget(to) })
		return !isSource(source)
	})
	maps.DeleteFunc(st.Drills.Copies, func(source string, of map[string]*statedir.DrilledCopy) bool {
		maps.DeleteFunc(of, func(to string, _ *statedir.DrilledCopy) bool { return !isTarget(to) })
		return !isSource(source)
	})
	maps.DeleteFunc(st.Pools, func(to string, p *statedir.Pool) bool { return to != "" && !isTarget(to) || !isPool(p.Name) })
	maps.DeleteFunc(st.Disks, func(to string, d *replicate.DiskState) bool {
		return !isTarget(to) || d.Pool != "" && !isPool(d.Pool) || len(d.State) > maxDiskState
	})
	if r := st.LastRun; r != nil {
		r.Damaged = slices.DeleteFunc(r.Damaged, func(d *statedir.Damage) bool {
			return d.Target != "" && !isTarget(d.Target) || !isPool(d.Pool)
		})
	}
	st.Diverged = slices.DeleteFunc(st.Diverged, func(c replicate.DivergedCopy) bool { return !isTarget(c.Target) })
	st.Orphans = slices.DeleteFunc(st.Orphans, func(o *replicate.Orphan) bool { return o == nil || !isTarget(o.Target) })
}
