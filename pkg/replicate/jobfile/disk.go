package jobfile

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
)

// maxDisks limits the pools of a target.
const maxDisks = 100

// byDisk turns each target with disks into one target per pool, named NAME-LABEL. Each has its own
// state, holds and retention.
func byDisk(j *replicate.Job) {
	var all []replicate.Target
	for i := range j.Targets {
		t := j.Targets[i]
		if t.Disk == nil {
			all = append(all, t)
			continue
		}
		for _, label := range slices.Sorted(maps.Keys(t.Disk.Pools)) {
			one, disk := t, *t.Disk
			disk.Of, disk.Label = t.Name, label
			one.Name, one.Disk = t.Name+"-"+label, &disk
			all = append(all, one)
		}
	}
	j.Targets = all
}

// disk checks the disks of a target.
func (f *faults) disk(j *replicate.Job, t *replicate.Target) {
	d := t.Disk
	if d == nil {
		return
	}
	if e, err := endpoint.Parse(t.To); err == nil && !e.Local() {
		f.addf("disk", "disk: to %q is on another host; a disk must be on the host that runs the job", t.To)
	}
	if len(d.Pools) == 0 || len(d.Pools) > maxDisks {
		f.addf("disk.pools", `disk.pools: write labels and GUIDs of 1 to %d pools: { blue = "GUID" } (zpool get guid)`, maxDisks)
	}
	seen := map[uint64]string{}
	for _, label := range slices.Sorted(maps.Keys(d.Pools)) {
		names := &faults{}
		if names.checkName(t.Name + "-" + label); label == "" || len(names.errs) > 0 {
			f.addf("disk.pools", `disk.pools: label %q: write letters, digits, "-" and "_"; with the target's name at most 48`, label)
		}
		guid, err := strconv.ParseUint(d.Pools[label], 10, 64)
		if err != nil || guid == 0 {
			f.addf("disk.pools", "disk.pools: %s = %q is not a GUID in decimal (zpool get -Hp -o value guid POOL)", label, d.Pools[label])
			continue
		}
		if same, ok := seen[guid]; ok {
			f.addf("disk.pools", "disk.pools: %q and %q have the same GUID", same, label)
		}
		seen[guid] = label
	}
	f.diskActions(j, d)
}

// diskActions checks the keys about what zxfer may do with the pools.
func (f *faults) diskActions(j *replicate.Job, d *replicate.Disk) {
	if d.Export && !d.Import {
		f.addf("disk.export", "disk.export has no effect without disk.import = true: zxfer exports only pools that it imported")
	}
	if (d.Import || d.Scrub > 0) && cmp.Or(j.User, "root") != "root" {
		f.addf("disk.import", "disk.import and disk.scrub require root: omit user = %q of the job", j.User)
	}
	if d.Hold != nil && j.Bookmarks == "none" {
		f.addf("disk.hold", "disk.hold has no effect with bookmarks = \"none\": without a bookmark, the next send would be a full one")
	}
	for _, dir := range d.Directories {
		if err := CheckPath(dir); err != nil {
			f.addf("disk.directories", "disk.directories: %w", err)
		}
	}
	if d.Scrub != 0 && d.Scrub < calendar.Duration(24*time.Hour) {
		f.addf("disk.scrub", "disk.scrub = %q: write at least one day, such as 30d", d.Scrub)
	}
}

// disksFaults checks that no two targets have the same dataset of a disk, or the same name with a label.
func disksFaults(j *replicate.Job, f *faults) {
	names, disks, others := map[string]string{}, map[string]string{}, map[string]string{}
	for i := range j.Targets {
		t := &j.Targets[i]
		if t.Disk == nil {
			names[t.Name], others[t.To] = t.Name, t.Name
		}
	}
	for i := range j.Targets {
		t := &j.Targets[i]
		if t.Disk == nil {
			continue
		}
		if other, ok := others[t.To]; ok {
			f.addf("", "targets %q and %q are the same dataset, %s, but %q has no disk", other, t.Name, t.To, other)
		}
		for _, label := range slices.Sorted(maps.Keys(t.Disk.Pools)) {
			if other, ok := names[t.Name+"-"+label]; ok {
				f.addf("", "target %q: disk.pools: label %q gives the name %s-%s, which target %q has", t.Name, label, t.Name, label, other)
			}
			names[t.Name+"-"+label] = t.Name
			key := t.Disk.Pools[label] + " " + t.To
			if other, ok := disks[key]; ok && other != t.Name {
				f.addf("", "targets %q and %q are the same dataset on the same disk", other, t.Name)
			}
			disks[key] = t.Name
		}
	}
}
