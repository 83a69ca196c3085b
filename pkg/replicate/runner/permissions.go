package runner

import (
	"context"
	"slices"
	"strings"

	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// Delegation is the command that lets an unprivileged user do a job's part on one host.
type Delegation struct {
	Host    string `json:"host"`
	User    string `json:"user"`
	Command string `json:"command"`
}

// delegations returns the zfs allow commands for the hosts where a job does not run as root. It
// includes permissions in force, because not every release lets the user read them.
func delegations(ctx context.Context, j *replicate.Job, source *side, targets []*side) []*Delegation {
	var out []*Delegation
	for _, s := range append([]*side{source}, targets...) {
		dataset := source.at.Name
		if s.target != nil {
			name := s.target.CopyOf(dataset, dataset)
			if dataset = zfs.ParentOf(name); dataset == "" { // creating a dataset needs permission on its parent
				dataset = name
			}
		}
		f, err := s.host.Facts(ctx)
		if err != nil || f.Root || f.User == "" || dataset == "" {
			continue // the preview reports the error
		}
		out = append(out, &Delegation{Host: s.at.Host, User: f.User,
			Command: zfs.CommandLine([]string{"zfs", "allow", "-u", f.User, strings.Join(permissions(j, s.target, f.ZFS), ","), dataset})})
	}
	return out
}

// permissions returns the permissions that a job needs at target t or, if t is nil, at its source.
func permissions(j *replicate.Job, t *replicate.Target, zfsVersion string) []string {
	var p []string
	others, retention := "source", j.Retention
	if t != nil {
		p = []string{preflight.ReceivePermission(zfsVersion, false), "create", "mount", "canmount", "readonly", "userprop", "compression", "recordsize", "checksum", "copies", "dnodesize", "volblocksize"}
		for name := range t.Properties.Set {
			if !zfs.UserProperty(name) {
				p = append(p, name)
			}
		}
		if retention = t.Retention; t.OnDivergence == "rotate" {
			p = append(p, "rename")
		}
		if t.Mirror != nil {
			p = append(p, "destroy")
		}
	} else {
		others = "target"
		if j.Snapshots.Take != "" {
			p = append(p, "snapshot", "mount") // taking a snapshot needs both
		}
		if len(j.Freeze) > 0 {
			p = append(p, "userprop") // freeze.Property
		}
		if len(j.Targets) > 0 {
			p = append(p, "send")
			if j.Bookmarks != "none" {
				p = append(p, "bookmark")
			}
		}
	}
	if len(j.Targets) > 0 && j.Holds != "none" && j.Holds != others {
		p = append(p, "hold", "release")
	}
	if retention != nil {
		p = append(p, "destroy", "mount") // targets already have mount
	}
	slices.Sort(p)
	return slices.Compact(p)
}
