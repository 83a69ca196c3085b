package job

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// expectedResults are the results of a plan's datasets, before anything is moved.
func expectedResults(p *plan.Plan) []*DatasetResult {
	out := make([]*DatasetResult, len(p.Datasets))
	for i, d := range p.Datasets {
		out[i] = &DatasetResult{Source: d.Source, Target: d.Target, Arrive: d.Arrive, Steps: len(d.Steps)}
		if d.Aside != nil {
			out[i].Aside = d.Aside.As
		}
		if len(d.Steps) > 0 && d.Steps[0].Kind == plan.Full {
			out[i].Full = 1
		}
	}
	return out
}

// listArrived looks at the target once more: at the datasets and snapshots of the
// plan, or at all that it has where it lacks one of these by name, as when
// somebody renamed it, and where contents are to be compared.
func listArrived(ctx context.Context, e *ends, req *Send, p *plan.Plan, before *plan.State) (zfs.Listing, error) {
	all := hosts.ListQuery{Dataset: before.Target.Root, Recursive: req.Plan.Recursive, Versions: true, Alone: true}
	if req.Verify {
		return e.target.List(ctx, all)
	}
	var names []string
	was := before.Target.ByName()
	for _, d := range p.Datasets {
		names = append(names, d.Target, arrivedName(d, was[d.Target]))
	}
	found, err := e.target.Properties(ctx, names, []string{"guid", "canmount", "readonly"})
	if err != nil {
		return zfs.Listing{}, err
	}
	l := zfs.Listing{Root: all.Dataset}
	for _, d := range p.Datasets {
		name := arrivedName(d, was[d.Target])
		t, snapshot := found[d.Target], found[name]
		if t == nil || snapshot["guid"].Value != strconv.FormatUint(d.Arrive.GUID, 10) {
			return e.target.List(ctx, all)
		}
		at := d.Arrive
		_, at.Name, _ = strings.Cut(name, "@")
		l.Datasets = append(l.Datasets, &zfs.Dataset{Name: d.Target, Type: d.Type, Properties: t, Versions: []zfs.Version{at}, NewestOnly: true})
	}
	return l, nil
}

// arrivedName is the full name on the target of the snapshot that a dataset
// arrives at: another than on the source where it was there before already, renamed.
func arrivedName(d *plan.Dataset, before *zfs.Dataset) string {
	if before != nil {
		if v, ok := before.SnapshotOf(d.Arrive.GUID); ok {
			return v.In(d.Target)
		}
	}
	return d.Target + "@" + d.Arrive.Name
}

// verify checks that a dataset of the plan, as it is on the target now, holds the
// very snapshot that was sent, and returns its name there.
func verify(host string, d *plan.Dataset, there *zfs.Dataset, log func(string)) (name string, err error) {
	if there == nil {
		return "", fault.Failf("", "%s: %s is not there after the transfer", host, d.Target)
	}
	verifySafety(host, d, there, log)
	v, ok := there.SnapshotOf(d.Arrive.GUID)
	if !ok {
		return "", fault.Failf("look at both sides: "+zfs.CommandLine([]string{"zfs", "list", "-t", "snapshot", "-o", "name,guid", d.Target}),
			"%s: %s has no snapshot with the GUID %d of %s", host, d.Target, d.Arrive.GUID, d.Arrive.In(d.Source))
	}
	return v.Name, nil
}

// verifySafety says when a new dataset lacks what keeps it from being mounted
// or changed: to a user without the permission for it, zfs receive only prints
// that it could not set a property, and succeeds.
func verifySafety(host string, d *plan.Dataset, t *zfs.Dataset, log func(string)) {
	if len(d.Steps) == 0 {
		return
	}
	for _, name := range []string{"canmount", "readonly"} {
		if want, set := d.Steps[0].Receive.Set[name]; set && t.Get(name) != want {
			log(fmt.Sprintf("%s: %s has %s=%s, not %s: the user there may not set it", host, d.Target, name, t.Get(name), want))
		}
	}
}

// checkUnexpected looks whether anything is below the target that the plan did
// not bring and that was not there before. What streams may bring zfs.Gate
// judges; this is what remains to be seen of it.
func checkUnexpected(ctx context.Context, e *ends, req *Send, p *plan.Plan, before *zfs.Listing) error {
	if p.Steps() == 0 || !req.Plan.Recursive && before.Find(before.Root) != nil {
		return nil // or what was below it before is not known
	}
	after, err := e.target.List(ctx, hosts.ListQuery{Dataset: before.Root, Recursive: true, Alone: true, Changed: true})
	if err != nil {
		return err
	}
	unknown := unknown(p, before, &after)
	if len(unknown) == 0 {
		return nil
	}
	if after, err = e.target.List(ctx, hosts.ListQuery{Dataset: before.Root, Only: unknown, Alone: true, Newest: true}); err != nil {
		return err
	}
	return unplanned(e.target.Label(), p, before, &after)
}

func unplanned(host string, p *plan.Plan, before, after *zfs.Listing) error {
	names := unexpectedDatasets(p, before, after)
	if len(names) == 0 {
		return nil
	}
	return fault.Failf("before anything there is mounted, look at it: zfs get all "+zfs.CommandLine(names),
		"%s: below %s there are datasets now that were neither there before nor planned: %s",
		host, before.Root, strings.Join(names, ", "))
}

// unexpectedDatasets are the datasets below a target that came without being planned. One
// without a snapshot was received by nobody: it was created there.
func unexpectedDatasets(p *plan.Plan, before, after *zfs.Listing) (names []string) {
	there := after.ByName()
	for _, name := range unknown(p, before, after) {
		if d := there[name]; len(d.Versions) > 0 || d.Inconsistent() {
			names = append(names, name)
		}
	}
	return names
}

// setAside is the dataset whose copy, with all below, has the name since the plan was
// carried out.
func setAside(p *plan.Plan, name string) (of *plan.Dataset, ok bool) {
	for _, d := range p.Datasets {
		if d.Aside != nil && strings.HasPrefix(name+"/", d.Aside.As+"/") {
			return d, true
		}
	}
	return nil, false
}

// unknown are those that were neither planned nor there before.
func unknown(p *plan.Plan, before, after *zfs.Listing) (names []string) {
	known := map[string]bool{}
	for _, d := range before.Datasets {
		known[d.Name] = true
	}
	for _, d := range p.Datasets {
		for name := d.Target; name != "" && !known[name]; name = zfs.ParentOf(name) {
			known[name] = true // with the parents that were created
		}
	}
	for _, d := range after.Datasets {
		if _, aside := setAside(p, d.Name); !known[d.Name] && !aside {
			names = append(names, d.Name)
		}
	}
	return names
}
