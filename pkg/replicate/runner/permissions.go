package runner

import (
	"context"
	"slices"
	"strings"

	"zxfer/pkg/preflight"
	"zxfer/pkg/way"
	"zxfer/pkg/zfs"
)

// Delegation is the command that lets a user who is not root do a job's part
// on one host.
type Delegation struct {
	Host    string `json:"host"`
	User    string `json:"user"`
	Command string `json:"command"`
}

// delegations are the zfs allow lines of the hosts where a job does not run as
// root. A line that is in force already is listed all the same: who may read
// the permissions differs by release.
func (w *work) delegations(ctx context.Context) []*Delegation {
	var out []*Delegation
	add := func(host string, over *way.Way, dataset string, permissions func(zfsVersion string) []string) {
		f, err := w.hosts.At(host, over).Facts(ctx)
		if err != nil || f.Root || f.User == "" {
			return // of what failed the preview tells
		}
		out = append(out, &Delegation{Host: host, User: f.User,
			Command: zfs.CommandLine([]string{"zfs", "allow", "-u", f.User, strings.Join(permissions(f.ZFS), ","), dataset})})
	}
	add(w.source.Host, &w.job.Transfer.Way, w.source.Name, func(string) []string { return w.sourcePermissions() })
	for _, t := range w.targets {
		name := t.CopyOf(w.source.Name, w.source.Name)
		if name == "" {
			continue // its plan is refused for it
		}
		if parent := zfs.ParentOf(name); parent != "" {
			name = parent // what creates the dataset is asked of the one above
		}
		add(t.to.Host, &t.transfer.Way, name, func(zfsVersion string) []string { return w.targetPermissions(t, zfsVersion) })
	}
	return out
}

func (w *work) sourcePermissions() []string {
	var p []string
	if w.scope.Naming() != nil {
		p = append(p, "snapshot", "mount") // a new snapshot's dataset is asked for both
	}
	if len(w.targets) > 0 {
		p = append(p, "send")
		if w.job.Holds != "none" && w.job.Holds != "target" {
			p = append(p, "hold", "release")
		}
		if w.job.Bookmarks != "none" {
			p = append(p, "bookmark")
		}
	}
	if w.job.Retention != nil {
		p = append(p, "destroy", "mount")
	}
	slices.Sort(p)
	return slices.Compact(p)
}

func (w *work) targetPermissions(t *targetWork, zfsVersion string) []string {
	p := []string{preflight.ReceivePermission(zfsVersion, false), "create", "mount", "canmount", "readonly", "userprop", "compression", "recordsize", "checksum", "copies", "dnodesize", "volblocksize"}
	if w.job.Holds != "none" && w.job.Holds != "source" {
		p = append(p, "hold", "release")
	}
	if t.Retention != nil {
		p = append(p, "destroy")
	}
	for name := range t.Properties.Set {
		if !zfs.UserProperty(name) {
			p = append(p, name)
		}
	}
	slices.Sort(p)
	return slices.Compact(p)
}
