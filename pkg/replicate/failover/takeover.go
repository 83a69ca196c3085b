package failover

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
	set      map[string]string // nil = nothing to set
	canmount string            // "" = of a volume
	revert   []string
	at       string // directory to mount it on, "" = none
	recorded bool   // another host chose a part of at
	within   bool   // at is in the files of the parent, which is a copy
	settings zfs.Settings
}

// planTakeover appends the steps that make the copy writable and mount it as its source. origin
// returns the record of the source's properties, ok is false if there is none. The root's record is
// removed first: without it, only the other records remain to be removed.
func (f *failover) planTakeover(ctx context.Context, origin func(*zfs.Dataset) (o zfs.Origin, ok bool, err error)) error {
	if !f.willRecord && f.target.Role.Kind == zfs.RoleSource && !f.listed.Datasets[0].Properties[zfs.OriginProperty].Local() && f.options.Mountpoint == "" {
		for _, d := range f.copies() {
			f.plan.forget(f.t, d)
		}
		return nil
	}
	var all []*takenOver
	mountpoints := map[string]*takenOver{}
	for _, d := range f.copies() {
		o, known, err := origin(d)
		if err != nil {
			clear := zfs.CommandLine([]string{"zfs", "inherit", zfs.OriginProperty, d.Name}) + " && " + zfs.CommandLine([]string{"zfs", "inherit", zfs.SettingsProperty, d.Name})
			return fault.Refusef("clear the records: "+f.t.Host.At().Line(clear)+"\nand name the mountpoint: "+f.again("--mountpoint PATH"),
				"%s: %s: %w", f.t.Host.Label(), d.Name, err)
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
	f.takeoverSteps(ctx, all)
	return nil
}

// rootProperties plans the properties of the copy's root.
func (f *failover) rootProperties(c *takenOver, o zfs.Origin, known bool) error {
	c.set = map[string]string{"readonly": cmp.Or(o.Set["readonly"], "off")}
	if c.Type != zfs.Filesystem {
		return nil
	}
	mountpoint := cmp.Or(f.options.Mountpoint, o.Set["mountpoint"])
	if mountpoint == "" {
		why := "it has no record of its source"
		if known {
			why = "the record of its source has no mountpoint"
		}
		return fault.Refusef("name the mountpoint: "+f.again("--mountpoint PATH")+"\nor mount it later: "+f.again("--mountpoint none"), "%s: %s: %s", f.t.Host.Label(), c.Name, why)
	}
	if mountpoint == "none" || strings.HasPrefix(mountpoint, "/") || mountpoint == "legacy" {
		if err := zfs.CheckValue("mountpoint", mountpoint); err == nil {
			c.set["mountpoint"] = mountpoint
		}
	}
	if c.set["mountpoint"] == "" {
		return fault.Usagef("write an absolute path, or none", "%q is not a mountpoint", mountpoint)
	}
	c.recorded = f.options.Mountpoint == ""
	c.at = mountpoint
	c.canmount = cmp.Or(o.Set["canmount"], "on")
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
	if f.options.Mountpoint == "none" { // the user mounts the tree later
		c.canmount = "noauto"
		return
	}
	if err := f.checkRecorded(value); strings.HasPrefix(value, "/") && err != nil && f.options.Mountpoint != "" {
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
	c.within = above != nil && strings.HasPrefix(c.at, strings.TrimSuffix(above.at, "/")+"/")
	c.canmount = cmp.Or(o.Set["canmount"], "on")
}

// mounts reports whether the copy is to be mounted, now and at boot.
func (c *takenOver) mounts() bool { return c.canmount == "on" && strings.HasPrefix(c.at, "/") }

// isMounted reports whether the copy is mounted where it is to be mounted.
func (c *takenOver) isMounted() bool {
	return c.Get("mounted") == "yes" && c.Get("mountpoint") == c.at
}

// checkRecorded returns an error for a mountpoint that another host chose, unless it is below a directory that
// this host permits: those of mount_below, the mountpoint that the dataset has on this host, and a few
// directories for data.
func (f *failover) checkRecorded(at string) error {
	within := func(dir string) bool { return at == dir || strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/") }
	if path.Clean(at) != at {
		return fmt.Errorf("%q is not a clean path", at)
	}
	if slices.ContainsFunc(f.session.Job.MountBelow, within) {
		return nil
	}
	for _, d := range f.copies() {
		// No stream and no restricted key sets a local mountpoint.
		if p := d.Properties["mountpoint"]; p.Local() && strings.HasPrefix(p.Value, "/") && p.Value != "/" && within(p.Value) {
			return nil
		}
	}
	if slices.ContainsFunc(f.dataDirectories(), within) && !strings.Contains(at, "/.") {
		return nil
	}
	return fmt.Errorf("%s is outside of the directories that this host permits", at)
}

// dataDirectories returns directories at which a source may choose a mountpoint, or only below which if they end
// in "/". No program of the system reads new directories there.
func (f *failover) dataDirectories() []string {
	all := []string{"/srv/", "/mnt/", "/data", "/export", "/" + zfs.PoolOf(f.copyRoot)}
	if !f.options.SourceUnknown { // the job file names the pool
		all = append(all, "/"+zfs.PoolOf(f.root))
	}
	return slices.DeleteFunc(all, func(dir string) bool { return slices.Contains(systemDirectories(), dir) })
}

// systemDirectories are directories of the operating system, after which a pool could be named.
func systemDirectories() []string {
	return []string{"/bin", "/boot", "/dev", "/efi", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/opt", "/proc", "/root", "/run", "/sbin", "/sys",
		"/tmp", "/usr", "/var"}
}

// checkMountpoints refuses mountpoints that this host does not permit, those of other datasets, and directories
// that are not empty.
func (f *failover) checkMountpoints(ctx context.Context, all []*takenOver) error {
	var paths []string
	by := map[string]*takenOver{}
	other := "choose another mountpoint: " + f.again("--mountpoint PATH") + "\nor mount it later: " + f.again("--mountpoint none")
	for _, c := range all {
		// Also of a dataset that is not mounted now: a later zfs mount would use it.
		if err := f.checkRecorded(c.at); c.recorded && strings.HasPrefix(c.at, "/") && err != nil {
			if !f.options.SourceUnknown && !slices.ContainsFunc(systemDirectories(), func(dir string) bool { return c.at == dir || strings.HasPrefix(c.at, dir+"/") }) {
				other = fmt.Sprintf("permit it in the job file: mount_below = [%q]\n", c.at) + other
			}
			return fault.Refusef(other, "%s: %s: the recorded mountpoint is not used: %w", f.t.Host.Label(), c.Name, err)
		}
		if !c.mounts() {
			continue
		}
		if twice := by[c.at]; twice != nil {
			return fault.Refusef(other, "%s: %s and %s have the mountpoint %s", f.t.Host.Label(), twice.Name, c.Name, c.at)
		}
		by[c.at] = c
		if !c.isMounted() && !c.within { // the directory in a parent's files may have any contents
			paths = append(paths, c.at)
		}
	}
	if len(paths) == 0 || f.cannotMount(ctx) {
		return nil
	}
	mountpoints, err := hosts.Call(ctx, f.t, hosts.OpMountpoints, hosts.None{})
	if err != nil {
		return err
	}
	for _, m := range mountpoints {
		own := slices.ContainsFunc(all, func(c *takenOver) bool { return c.Name == m.Dataset }) || f.isLeft(ctx, m.Dataset)
		if c := by[m.At]; c != nil && !own {
			return fault.Refusef(other, "%s: %s cannot mount at %s: it is the mountpoint of %s, which is not mounted now", f.t.Host.Label(), c.Name, c.at, m.Dataset)
		}
	}
	return f.checkDirectories(ctx, paths, by, other)
}

// isLeft reports whether a dataset of the copy's computer belongs to the source, which is not mounted at the copy's
// mountpoint: a switch changes its canmount, or it belongs to another host, such as a container.
func (f *failover) isLeft(ctx context.Context, dataset string) bool {
	source := f.session.Source
	if f.sourceUnknown || f.source.Err != nil || dataset != f.root && !strings.HasPrefix(dataset, f.root+"/") {
		return false
	}
	a, errA := source.Host.Facts(ctx) // cached
	b, errB := f.t.Host.Facts(ctx)
	same, _ := hosts.SameKernel(a, b)
	return errA == nil && errB == nil && same && (f.verb == "switch" || source.At.Host != f.t.At.Host)
}

// cannotMount reports whether the copy's host has no zxfer, so that nothing checks a mount there.
func (f *failover) cannotMount(ctx context.Context) bool {
	return f.t.Host.Require(ctx, hosts.OpMount) != nil
}

// checkDirectories refuses directories whose contents a mount would hide.
func (f *failover) checkDirectories(ctx context.Context, paths []string, by map[string]*takenOver, hint string) error {
	found, err := hosts.Call(ctx, f.t, hosts.OpInUse, paths)
	if err != nil {
		return err
	}
	for _, at := range paths {
		if why := found[at]; why != "" && !f.freed[at] {
			return fault.Refusef(hint, "%s: %s cannot mount at %s, which %s", f.t.Host.Label(), by[at].Name, at, why)
		}
	}
	return nil
}

// takeoverSteps appends the steps for the copies: properties first, then mounts, ancestors first. Until a copy is
// mounted, it has canmount=noauto: ZFS mounts by name, and follows links in the files of the former source. zfs set
// mountpoint does that, too. The records of the source are removed last, so that the same command completes
// the steps.
func (f *failover) takeoverSteps(ctx context.Context, all []*takenOver) {
	for _, c := range all { // ancestors come first
		if c.Get("mounted") != "yes" || c.isMounted() {
			continue
		}
		f.plan.add(f.t, fmt.Sprintf("zfs unmount %s with its descendants", c.Name), func(ctx context.Context) error {
			return hosts.Run(ctx, f.t, hosts.OpUnmount, c.Name)
		})
		for _, d := range f.listed.Datasets {
			if d.Name == c.Name || strings.HasPrefix(d.Name, c.Name+"/") {
				d.Properties["mounted"] = zfs.Property{Value: "no", Source: "-"}
			}
		}
	}
	for _, c := range all {
		wait := c.canmount
		if wait == "on" {
			wait = "noauto"
		}
		if p := c.Properties["canmount"]; wait != "" && !(c.mounts() && c.isMounted()) && (!p.Local() || p.Value != wait) {
			f.plan.set(f.t, c.Name, map[string]string{"canmount": wait})
		}
	}
	for _, c := range all {
		set := changed(c.Dataset, c.set)
		if len(set)+len(c.revert) > 0 {
			f.plan.set(f.t, c.Name, set, c.revert...)
		}
	}
	waits, locked := false, map[string]bool{}
	for _, c := range all {
		if !f.planMount(ctx, c, locked) {
			waits = true
		}
	}
	waits = f.planMountExcluded(ctx, all) || waits
	if waits && f.cannotMount(ctx) {
		f.next = append(f.next, fmt.Sprintf("%s: install zxfer there, then mount %s: %s", f.t.Host.Label(), f.copyRoot,
			strings.Join(strings.Fields("zxfer replicate promote "+f.mountpointFlag()+" "+zfs.CommandLine([]string{f.session.Job.Name, f.copyRoot})), " ")))
		return
	} else if f.waits = waits; waits {
		f.next = append(f.next, "then mount it: "+f.again(f.mountpointFlag()))
		return
	}
	for _, c := range all {
		var will []string
		if f.willRecord && c.Name == f.copyRoot {
			will = append(will, zfs.OriginProperty)
		}
		f.plan.forget(f.t, c.Dataset, will...)
	}
}

// mountpointFlag returns the flag of the command for the mountpoint, or "".
func (f *failover) mountpointFlag() string {
	if f.options.Mountpoint == "" {
		return ""
	}
	return zfs.CommandLine([]string{"--mountpoint", f.options.Mountpoint})
}

// planMount plans to mount a copy. It returns false if that must wait: for the key of the copy or of an ancestor,
// or for zxfer on its host. It adds the copy to locked if a key is not loaded.
func (f *failover) planMount(ctx context.Context, c *takenOver, locked map[string]bool) (planned bool) {
	if c.canmount == "on" && c.at == "legacy" {
		f.next = append(f.next, f.t.Host.At().Line(zfs.CommandLine([]string{"zfs", "set", "mountpoint=/PATH", c.Name})+" && "+
			zfs.CommandLine([]string{"zxfer", "restore", "--mount", c.Name}))+"  # it has mountpoint=legacy")
	}
	if root := f.listed.RootOf(c.Dataset); c.Encrypted() && root != nil && !root.KeyLoaded() {
		if !locked[root.Name] {
			f.next = append(f.next, f.t.Host.At().Prompt("zfs", "load-key", root.Name))
		}
		locked[root.Name], locked[c.Name] = true, true
	} else if locked[zfs.ParentOf(c.Name)] {
		locked[c.Name] = true
	}
	switch p := c.Properties["canmount"]; {
	case !c.mounts() || c.isMounted() && p.Local() && p.Value == "on":
	case locked[c.Name] || f.cannotMount(ctx):
		return false
	default:
		f.plan.add(f.t, fmt.Sprintf("mount %s at %s, and set canmount=on", c.Name, c.at), func(ctx context.Context) error {
			return f.mountCopy(ctx, c)
		})
	}
	return true
}

// planMountExcluded plans to mount what an earlier switch unmounted although the job excludes it. It reports
// whether something is left unmounted.
func (f *failover) planMountExcluded(ctx context.Context, all []*takenOver) (waits bool) {
	for _, d := range f.listed.Datasets {
		copied := slices.ContainsFunc(all, func(c *takenOver) bool { return c.Name == d.Name })
		if copied || d.Type != zfs.Filesystem || d.Get("canmount") != "on" || d.Get("mounted") != "no" || !strings.HasPrefix(d.Get("mountpoint"), "/") {
			continue
		}
		if f.cannotMount(ctx) || d.Encrypted() && !d.KeyLoaded() {
			waits = true
			continue
		}
		if !slices.ContainsFunc(all, func(c *takenOver) bool { return c.mounts() && strings.HasPrefix(d.Get("mountpoint"), c.at+"/") }) {
			f.next = append(f.next, f.t.Host.At().Line(zfs.CommandLine([]string{"zxfer", "restore", "--mount", d.Name}))) // nobody judged its mountpoint
			continue
		}
		f.plan.add(f.t, "mount "+d.Name, func(ctx context.Context) error {
			_, err := hosts.Call(ctx, f.t, hosts.OpMount, zfs.MountRequest{Dataset: d.Name, Over: true, Trusted: true})
			return err
		})
	}
	return waits
}

// mountCopy mounts a copy. Its host refuses a directory that is not empty, unless the directory is in the files of
// a parent that is a copy, too.
func (f *failover) mountCopy(ctx context.Context, c *takenOver) error {
	loose, err := hosts.Call(ctx, f.t, hosts.OpMount, zfs.MountRequest{Dataset: c.Name, At: c.at, Over: c.within, Trusted: true, Boot: true})
	if loose != "" {
		f.note("%s is not mounted at boot: %s, and could redirect the mount", c.Name, loose)
	}
	return err
}

// restrict plans the properties for files of another host. A dataset that had a role before keeps its properties.
func (f *failover) restrict() {
	for _, d := range f.copies() {
		if d.Type != zfs.Filesystem || f.target.Role.Kind != "" {
			continue
		}
		if set := zfs.Distrust(d.Properties, d.Name != f.copyRoot); len(set) > 0 {
			f.plan.set(f.t, d.Name, set)
		}
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
