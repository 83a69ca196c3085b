package heal

import (
	"context"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// damage lists the damage of the requested pool or dataset.
func (h *healJob) damage(ctx context.Context) (zfs.Damage, error) {
	defer h.rep.Activity("reading the error list of " + h.req.At.String())()
	d, err := damage(ctx, h.host, h.req.At.Name)
	return h.req.ofJob(d), err
}

// ofJob counts the errors of datasets that are not part of the requested job as elsewhere, if a
// job is requested.
func (r *Request) ofJob(d zfs.Damage) zfs.Damage {
	all := len(d.Objects)
	d.Objects = slices.DeleteFunc(slices.Clone(d.Objects), func(t zfs.DamagedObject) bool { return t.Dataset != "" && !r.inJob(t.Dataset) })
	d.Elsewhere += all - len(d.Objects)
	return d
}

// inJob reports whether a dataset of the damaged host belongs to the requested job, or no job is
// requested.
func (r *Request) inJob(dataset string) bool {
	return r.Job == "" || len(r.pairs(dataset)) > 0
}

// damage lists the damaged objects of a dataset and its descendants. Damage in heal snapshots is
// left out, because they are destroyed.
func damage(ctx context.Context, at *hosts.Conn, dataset string) (d zfs.Damage, err error) {
	d, err = hosts.Call(ctx, hosts.By(at.Retry), hosts.OpDamage, dataset)
	return withoutHealSnapshots(d), err
}

func withoutHealSnapshots(d zfs.Damage) zfs.Damage {
	d.Objects = slices.DeleteFunc(slices.Clone(d.Objects), func(t zfs.DamagedObject) bool { return isHealSnapshot(t.Snapshot) })
	return d
}

// lockedCandidates returns the datasets that may be damaged if ZFS does not list errors: the
// encrypted ones without a loaded key. A pool or a job is refused, because zxfer would send all of
// them on suspicion.
func (h *healJob) lockedCandidates(ctx context.Context, reason string) (names []string, err error) {
	pool := zfs.PoolOf(h.req.At.Name)
	if reason == zfs.DatasetDestroyed {
		return nil, fault.Refusef(h.req.poolCommands("zpool scrub -w")+"\nthen run the same command again",
			"%s: ZFS does not list the errors, because some belong to a destroyed dataset", h.req.At)
	}
	if reason != "" && reason != zfs.KeyNotLoaded {
		return nil, fault.Refusef("run as root: "+h.req.poolCommands("zpool status -v"), "%s: ZFS does not list the errors: %s", h.req.At, reason)
	}
	l, err := h.host.List(ctx, hosts.ListQuery{Dataset: h.req.At.Name, Recursive: true, NoAncestors: true})
	if err != nil {
		return nil, err
	}
	for _, d := range l.Datasets {
		if d.Encrypted() && d.Get("keystatus") == "unavailable" && h.req.inJob(d.Name) {
			names = append(names, d.Name)
		}
	}
	switch {
	case len(names) == 0:
		return nil, fault.Refusef(h.req.poolCommands("zpool scrub -w")+"\nthen run the same command again",
			"%s: ZFS does not list its errors; a scrub recreates the list", h.req.At)
	case h.req.At.Name == pool, h.req.Job != "":
		commands := ""
		for _, name := range names[:min(len(names), 10)] {
			commands += "\n" + h.req.command(name)
		}
		return nil, fault.Refusef("run zfs load-key -a there, then the same command; if one of these is damaged: "+commands,
			"%s: ZFS lists no errors while the key of a damaged dataset is not loaded; %s", h.req.At, english.Plural(len(names), "dataset lacks its key", "datasets lack their keys"))
	}
	return names, nil
}

// command returns the command that heals a single dataset.
func (r *Request) command(dataset string) string {
	args := append([]string{"zxfer", "heal"}, r.Flags...)
	args = append(args, endpoint.Endpoint{Host: r.At.Host, Name: dataset}.String())
	if r.Copy != nil {
		args = append(args, r.pairs(dataset)[0].good.String())
	}
	return zfs.CommandLine(args)
}

// poolCommands appends the damaged pool's name to commands and formats them.
func (r *Request) poolCommands(commands ...string) string {
	for i := range commands {
		commands[i] += " " + zfs.CommandLine([]string{zfs.PoolOf(r.At.Name)})
	}
	return r.shellCommands(commands...)
}

// shellCommands formats commands for a shell on the damaged host, one per line.
func (r *Request) shellCommands(commands ...string) string {
	if !r.At.Local() {
		for i := range commands {
			commands[i] = "on " + r.At.HostName() + ": " + commands[i]
		}
	}
	return strings.Join(commands, "\n")
}
