package restore

import (
	"context"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// RunMount runs `zxfer restore --mount DATASET`, which mounts the target of the request. With Plan.Recursive, it also
// mounts the descendants that ZFS would mount, and filesystems that a restore left unmounted. It mounts as a restore does.
// Errors are classified as in send.Run.
func RunMount(ctx context.Context, req Request, at *hosts.Set, rep send.Reporter) (*send.Report, error) {
	req.Send.Source = req.Send.Target // the job has one host
	t := &restoreJob{send: send.New(req.Send, at, rep), mount: true, remount: map[string]bool{}}
	t.send.Report.Schema, t.send.Report.Source, t.send.Report.Plan = "zxfer.restore/v1", "", &plan.Plan{}
	return t.send.Finish(outcome.Settle(ctx, t.mountTree(ctx)))
}

func (t *restoreJob) mountTree(ctx context.Context) error {
	if err := t.send.Ends.Reach(ctx); err != nil {
		return err
	}
	if err := t.send.Ends.Target.Conn.Require(ctx, hosts.OpMount); err != nil {
		return ends.Unchanged(err)
	}
	root := t.send.Request.Target.Name
	listing, err := t.send.Ends.Target.Conn.List(ctx, hosts.ListQuery{Dataset: root, Recursive: t.send.Request.Plan.Recursive})
	if err != nil {
		return ends.Unchanged(err)
	}
	switch d := listing.Find(root); {
	case d == nil:
		return fault.Refusef("list them: "+t.send.Ends.Target.Conn.Command("zfs", "list"), "%s: %s: no such dataset", t.send.Ends.Target.Conn.Label(), root)
	case t.send.Request.Plan.Recursive:
	case d.Type != zfs.Filesystem:
		return fault.Refusef("", "%s: %s is a volume, which has no mountpoint", t.send.Ends.Target.Conn.Label(), root)
	case d.Get("canmount") == "off" || !strings.HasPrefix(d.Get("mountpoint"), "/"):
		return fault.Refusef(t.send.Ends.Target.Conn.Command("zfs", "set", "canmount=noauto", "mountpoint=/PATH", root)+"\nthen run the same command again",
			"%s: %s cannot be mounted: it has canmount=%s and mountpoint=%s", t.send.Ends.Target.Conn.Label(), root, d.Get("canmount"), d.Get("mountpoint"))
	}
	others, err := t.otherMountpoints(ctx)
	if err != nil {
		return ends.Unchanged(err)
	}
	h := newHandover(t, &listing)
	var all []zfs.MountRequest
	for _, d := range listing.Datasets {
		pending, own := d.Properties[zfs.CanMountProperty].Local(), d.Get("canmount") == "on"
		wanted := pending || own || d.Name == root && d.Get("canmount") == "noauto"
		if d.Type != zfs.Filesystem || d.Name != root && !strings.HasPrefix(d.Name, root+"/") || !wanted || d.Get("mounted") == "yes" && !pending {
			continue
		}
		if d.Inconsistent() || d.Properties[zfs.RestoreProperty].Local() {
			return fault.Refusef("repeat the restore", "%s: the restore of %s is not complete", t.send.Ends.Target.Conn.Label(), d.Name)
		}
		for _, name := range others[d.Get("mountpoint")] {
			if name != d.Name {
				return fault.Refusef("choose another mountpoint: "+t.send.Ends.Target.Conn.Command("zfs", "set", "mountpoint=/PATH", d.Name),
					"%s: %s cannot mount at %s: it is the mountpoint of %s, which is not mounted now", t.send.Ends.Target.Conn.Label(), d.Name, d.Get("mountpoint"), name)
			}
		}
		all = append(all, zfs.MountRequest{Dataset: d.Name, Over: own && !pending, Trusted: own && !pending, Boot: pending})
	}
	for _, m := range all {
		at := listing.Find(m.Dataset)
		if err := h.noteKey(ctx, nil, at); err != nil {
			return err
		}
		if err := h.mountOne(ctx, at, m); err != nil {
			return ends.Changed(err)
		}
	}
	if len(h.left) == 0 {
		return nil
	}
	hint := ""
	for _, command := range h.keys {
		hint += t.send.Ends.Target.Conn.At().PromptLine(command) + "\n"
	}
	for _, command := range h.places {
		hint += t.send.Ends.Target.Conn.At().Line(command) + "\n"
	}
	return fault.Failf(hint+"then run the same command again", "%s: not mounted: %s", t.send.Ends.Target.Conn.Label(), finding.JoinFirst(h.left, 3))
}
