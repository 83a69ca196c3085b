package runner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// takenOver is a copy that takes over the properties of its source.
type takenOver struct {
	*zfs.Dataset
	set, canmount map[string]string // nil = nothing to set
	revert        []string
	at            string // directory to mount it on, "" = none
	recorded      bool   // another host chose a part of at
	settings      zfs.Settings
}

// planTakeover appends the steps that make the copy writable and mount it as its source. origin
// returns the record of the source's properties, ok is false if there is none. The root's record is
// removed first: without it, only the other records remain to be removed.
func (f *failover) planTakeover(ctx context.Context, origin func(*zfs.Dataset) (o zfs.Origin, ok bool, err error)) error {
	if !f.willRecord && f.target.Role.Kind == zfs.RoleSource && !f.listed.Datasets[0].Properties[zfs.OriginProperty].Local() && f.Mountpoint == "" {
		for _, d := range f.copies() {
			f.forget(f.t, d)
		}
		return nil
	}
	var all []*takenOver
	mountpoints := map[string]*takenOver{}
	for _, d := range f.copies() {
		o, known, err := origin(d)
		if err != nil {
			return fault.Refusef("clear the records: "+zfs.CommandLine([]string{"zfs", "inherit", zfs.OriginProperty, d.Name})+
				" && "+zfs.CommandLine([]string{"zfs", "inherit", zfs.SettingsProperty, d.Name})+"\nand name the mountpoint: "+f.again("--mountpoint PATH"),
				"%s: %s: %w", f.t.host.Label(), d.Name, err)
		}
		c := &takenOver{Dataset: d, settings: o.Settings}
		if d.Name == f.copyRoot {
			err = f.rootProperties(c, o, known)
		} else {
			f.childProperties(c, o, mountpoints[zfs.ParentOf(d.Name)])
		}
		if err != nil {
			return err
		}
		mountpoints[d.Name] = c
		all = append(all, c)
	}
	if err := f.checkMountpoints(ctx, all); err != nil {
		return err
	}
	f.planSettings(all)
	f.takeoverSteps(all)
	return nil
}

// rootProperties plans the properties of the copy's root.
func (f *failover) rootProperties(c *takenOver, o zfs.Origin, known bool) error {
	c.set = map[string]string{"readonly": cmp.Or(o.Set["readonly"], "off")}
	if c.Type != zfs.Filesystem {
		return nil
	}
	mountpoint := cmp.Or(f.Mountpoint, o.Set["mountpoint"])
	if mountpoint == "" {
		why := "it has no record of its source"
		if known {
			why = "the record of its source has no mountpoint"
		}
		return fault.Refusef("name the mountpoint: "+f.again("--mountpoint PATH")+"\nor mount it later: "+f.again("--mountpoint none"), "%s: %s: %s", f.t.host.Label(), c.Name, why)
	}
	if mountpoint == "none" || strings.HasPrefix(mountpoint, "/") || mountpoint == "legacy" {
		if err := zfs.CheckValue("mountpoint", mountpoint); err == nil {
			c.set["mountpoint"] = mountpoint
		}
	}
	if c.set["mountpoint"] == "" {
		return fault.Usagef("write an absolute path, or none", "%q is not a mountpoint", mountpoint)
	}
	c.recorded = f.Mountpoint == ""
	c.at = mountpoint
	c.canmount = map[string]string{"canmount": cmp.Or(o.Set["canmount"], "on")}
	return nil
}

// childProperties plans the properties of a descendant, which inherits most of them.
func (f *failover) childProperties(c *takenOver, o zfs.Origin, above *takenOver) {
	c.set = map[string]string{}
	if value := o.Set["readonly"]; value != "" {
		c.set["readonly"] = value
	} else if c.Properties["readonly"].Local() {
		c.revert = append(c.revert, "readonly")
	}
	if c.Type != zfs.Filesystem {
		return
	}
	value := o.Set["mountpoint"]
	if f.Mountpoint == "none" { // the user mounts the tree later
		c.canmount = map[string]string{"canmount": "noauto"}
		return
	}
	if err := checkRecorded(value); value != "" && err != nil && f.Mountpoint != "" {
		f.note("%s: the recorded mountpoint is not used, the dataset inherits: %v", c.Name, err)
		value = ""
	}
	if value != "" {
		c.set["mountpoint"], c.at, c.recorded = value, value, true
	} else if p := c.Properties["mountpoint"]; p.Local() {
		c.at = p.Value
	} else if above != nil && strings.HasPrefix(above.at, "/") {
		c.at, c.recorded = strings.TrimSuffix(above.at, "/")+strings.TrimPrefix(c.Name, zfs.ParentOf(c.Name)), above.recorded
	}
	c.canmount = map[string]string{"canmount": cmp.Or(o.Set["canmount"], "on")}
}

// mounts reports whether the copy is to be mounted.
func (c *takenOver) mounts() bool {
	return c.Type == zfs.Filesystem && c.canmount["canmount"] == "on" && strings.HasPrefix(c.at, "/")
}

// systemDirectories are directories of the operating system. If an entry ends in "/", directories
// below it count, too.
func systemDirectories() []string {
	return []string{"/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/proc/", "/root/", "/run/", "/sbin/", "/sys/", "/usr/",
		"/var/spool/", "/var/run/", "/var/lib/zxfer/", "/", "/var", "/var/lib", "/var/log", "/var/cache", "/var/tmp", "/tmp", "/home", "/opt", "/srv", "/mnt", "/media"}
}

// checkRecorded returns an error for a mountpoint that another host must not choose.
func checkRecorded(at string) error {
	if path.Clean(at) != at {
		return fmt.Errorf("%q is not a clean path", at)
	}
	if strings.Contains(at, "/.") {
		return fmt.Errorf("%s is below a hidden directory", at)
	}
	for _, dir := range systemDirectories() {
		below, isTree := strings.CutSuffix(dir, "/")
		if at == dir || isTree && dir != "/" && (at == below || strings.HasPrefix(at, dir)) {
			return fmt.Errorf("%s is a directory of the system", at)
		}
	}
	return nil
}

// checkMountpoints refuses mountpoints of the system, of other datasets, and directories that are
// not empty.
func (f *failover) checkMountpoints(ctx context.Context, all []*takenOver) error {
	var paths []string
	by := map[string]*takenOver{}
	other := "choose another mountpoint: " + f.again("--mountpoint PATH") + "\nor mount it later: " + f.again("--mountpoint none")
	for _, c := range all {
		// Also of a dataset that is not mounted now: a later zfs mount would use it.
		if err := checkRecorded(c.at); c.recorded && strings.HasPrefix(c.at, "/") && err != nil {
			return fault.Refusef(other, "%s: %s: the recorded mountpoint is not used: %w", f.t.host.Label(), c.Name, err)
		}
		if !c.mounts() {
			continue
		}
		if twice := by[c.at]; twice != nil {
			return fault.Refusef(other, "%s: %s and %s have the mountpoint %s", f.t.host.Label(), twice.Name, c.Name, c.at)
		}
		by[c.at] = c
		if c.Get("mounted") != "yes" || c.Get("mountpoint") != c.at {
			paths = append(paths, c.at)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	pool, err := f.t.list(ctx, hosts.ListQuery{Dataset: zfs.PoolOf(f.copyRoot), Recursive: true})
	if err != nil {
		return err
	}
	mine := map[string]bool{}
	for _, c := range all {
		mine[c.Name] = true
	}
	for _, d := range pool.Datasets {
		c := by[d.Get("mountpoint")]
		if c == nil || mine[d.Name] || d.Get("canmount") != "on" && d.Get("mounted") != "yes" || f.freed[d.Get("mountpoint")] {
			continue
		}
		return fault.Refusef(other, "%s: %s cannot mount at %s: it is the mountpoint of %s", f.t.host.Label(), c.Name, c.at, d.Name)
	}
	return f.checkDirectories(ctx, paths, by, other)
}

// checkDirectories refuses directories whose contents a mount would hide.
func (f *failover) checkDirectories(ctx context.Context, paths []string, by map[string]*takenOver, hint string) error {
	if f.t.host.Require(ctx, hosts.OpInUse) != nil {
		f.note("%s: cannot check without zxfer whether %s is empty", f.t.host.Label(), strings.Join(paths, ", "))
		return nil
	}
	found, err := hosts.Call(ctx, f.t, hosts.OpInUse, paths)
	if err != nil {
		return err
	}
	for _, at := range paths {
		if why := found[at]; why != "" && !f.freed[at] {
			return fault.Refusef(hint, "%s: %s cannot mount at %s, which %s", f.t.host.Label(), by[at].Name, at, why)
		}
	}
	return nil
}

// takeoverSteps appends the steps for the copies: properties first, then mounts, ancestors first.
// The records of the source are removed last, so that an interrupted command can repeat the steps.
func (f *failover) takeoverSteps(all []*takenOver) {
	for _, c := range all {
		set := changed(c.Dataset, c.set)
		if len(set)+len(c.revert) > 0 {
			f.set(f.t, c.Name, set, c.revert...)
		}
	}
	locked := map[string]bool{}
	for _, c := range all {
		// canmount=on follows the mount, so that a mount that is refused does not happen at boot.
		canmount, before := changed(c.Dataset, c.canmount), c.Get("canmount") == "off" // zfs mount requires another value
		if before && len(canmount) > 0 {
			f.set(f.t, c.Name, canmount)
		}
		f.planMount(c, locked)
		if !before && len(canmount) > 0 {
			f.set(f.t, c.Name, canmount)
		}
	}
	f.noteUnmounted(all)
	for _, c := range all {
		var will []string
		if f.willRecord && c.Name == f.copyRoot {
			will = append(will, zfs.OriginProperty)
		}
		f.forget(f.t, c.Dataset, will...)
	}
}

// planMount plans to mount a copy, or leaves that to the user. It adds the copy to locked if its key, or that
// of an ancestor, is not loaded.
func (f *failover) planMount(c *takenOver, locked map[string]bool) {
	if c.Type == zfs.Filesystem && c.canmount["canmount"] == "on" && c.at == "legacy" {
		f.result.Next = append(f.result.Next, f.t.host.Label()+": mount -t zfs "+c.Name+" DIRECTORY")
	}
	if root := f.listed.RootOf(c.Dataset); c.Encrypted() && root != nil && !root.KeyLoaded() {
		if !locked[root.Name] {
			f.result.Next = append(f.result.Next, f.t.host.Label()+": "+zfs.CommandLine([]string{"zfs", "load-key", root.Name}))
		}
		locked[root.Name], locked[c.Name] = true, true
	} else if locked[zfs.ParentOf(c.Name)] {
		locked[c.Name] = true
	}
	switch {
	case !c.mounts() || c.Get("mounted") == "yes" && c.Get("mountpoint") == c.at:
	case locked[c.Name]:
		f.result.Next = append(f.result.Next, f.t.host.Label()+": "+zfs.CommandLine([]string{"zfs", "mount", c.Name}))
	default:
		f.add(f.t, fmt.Sprintf("zfs mount %s (at %s)", c.Name, c.at), func(ctx context.Context) error {
			return f.mountCopy(ctx, c)
		})
	}
}

// noteUnmounted leaves to the user what an earlier switch unmounted although the job excludes it.
func (f *failover) noteUnmounted(all []*takenOver) {
	for _, d := range f.listed.Datasets {
		excluded := !slices.ContainsFunc(all, func(c *takenOver) bool { return c.Name == d.Name })
		if excluded && d.Type == zfs.Filesystem && d.Get("canmount") == "on" && d.Get("mounted") == "no" && strings.HasPrefix(d.Get("mountpoint"), "/") {
			f.result.Next = append(f.result.Next, f.t.host.Label()+": "+zfs.CommandLine([]string{"zfs", "mount", d.Name}))
		}
	}
}

// mountCopy mounts a copy. It checks the directory again, because zfs mount would hide its files.
func (f *failover) mountCopy(ctx context.Context, c *takenOver) error {
	now, err := f.t.properties(ctx, []string{c.Name}, "mounted", "mountpoint")
	switch {
	case err != nil:
		return err
	case now[c.Name]["mountpoint"].Value != c.at:
		return fmt.Errorf("%s has the mountpoint %q, expected %s", c.Name, now[c.Name]["mountpoint"].Value, c.at)
	case now[c.Name]["mounted"].Value == "yes":
		return nil
	}
	above := strings.Contains(c.Name, "/") && zfs.ParentOf(c.Name) != zfs.ParentOf(f.copyRoot) // its parent is mounted, and may have files in the directory
	if f.t.host.Require(ctx, hosts.OpInUse) == nil && !above {
		found, err := hosts.Call(ctx, f.t, hosts.OpInUse, []string{c.at})
		if err != nil {
			return err
		}
		if why := found[c.at]; why != "" {
			return fault.Failf("empty it, then run the same command again", "%s cannot mount at %s, which %s", c.Name, c.at, why)
		}
	}
	return hosts.Run(ctx, f.t, hosts.OpMount, c.Name)
}

// forget appends a step that removes the records of the source from a dataset, if it has any. will names records
// that it will have by then.
func (f *failover) forget(s *side, d *zfs.Dataset, will ...string) {
	var names []string
	for _, name := range []string{zfs.OriginProperty, zfs.SettingsProperty} {
		if d.Properties[name].Local() || slices.Contains(will, name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		f.set(s, d.Name, nil, names...)
	}
}

// changed returns the values that the dataset does not have as local ones.
func changed(d *zfs.Dataset, want map[string]string) map[string]string {
	set := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if p := d.Properties[name]; !p.Local() || p.Value != want[name] {
			set[name] = want[name]
		}
	}
	return set
}

// recorded returns the records of the source on a copy. ok is false without a record of OriginProperty.
func recorded(d *zfs.Dataset) (o zfs.Origin, ok bool, err error) {
	if p := d.Properties[zfs.OriginProperty]; p.Local() {
		o, err = zfs.ParseOrigin(p.Value)
		ok = err == nil
	}
	if p := d.Properties[zfs.SettingsProperty]; p.Local() && err == nil {
		o.Settings, err = zfs.ParseSettings(p.Value)
	}
	return o, ok && err == nil, err
}
