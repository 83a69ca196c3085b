package send

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// expectedResults returns the initial results of a plan's datasets.
func expectedResults(p *plan.Plan) []*DatasetResult {
	out := make([]*DatasetResult, len(p.Datasets))
	for i, d := range p.Datasets {
		out[i] = resultOf(d)
	}
	return out
}

// reportedArrival returns the listing of the only dataset from the report of the target at the end of its last
// stream. It returns false if there is none.
func (t *Job) reportedArrival() (zfs.Listing, bool) {
	if !t.mover.reportsArrival || t.mover.arrived == nil {
		return zfs.Listing{}, false
	}
	d, a := t.Report.Plan.Datasets[0], t.mover.arrived
	if a.GUID != d.Final.GUID || arrivedName(d, t.State.Target.Find(d.Target)) != d.Target+"@"+d.Final.Name {
		return zfs.Listing{}, false
	}
	properties := map[string]zfs.Property{"canmount": {Value: a.CanMount}, "readonly": {Value: a.ReadOnly}}
	return zfs.Listing{Root: t.State.Target.Root, Datasets: []*zfs.Dataset{
		{Name: d.Target, Type: d.Type, Properties: properties, Versions: []zfs.Version{d.Final}, NewestOnly: true}}}, true
}

// listArrived lists the plan's datasets and snapshots on the target. If one is missing by name,
// for example because it was renamed, or contents are to be compared, it lists everything.
func listArrived(ctx context.Context, e *ends.Ends, req *Request, p *plan.Plan, before *plan.State) (zfs.Listing, error) {
	all := hosts.ListQuery{Dataset: before.Target.Root, Recursive: req.Plan.Recursive, Versions: true, NoAncestors: true}
	if req.Verify {
		return e.Target.Conn.List(ctx, all)
	}
	var names []string
	earlier := before.Target.ByName()
	for _, d := range p.Datasets {
		names = append(names, d.Target, arrivedName(d, earlier[d.Target]))
	}
	found, err := e.Target.Conn.Properties(ctx, names, append([]string{"guid", "canmount", "readonly"}, zfs.ListedAccess()...))
	if err != nil {
		return zfs.Listing{}, err
	}
	l := zfs.Listing{Root: all.Dataset}
	for _, d := range p.Datasets {
		name := arrivedName(d, earlier[d.Target])
		t, snapshot := found[d.Target], found[name]
		if t == nil || snapshot["guid"].Value != strconv.FormatUint(d.Final.GUID, 10) {
			return e.Target.Conn.List(ctx, all)
		}
		at := d.Final
		_, at.Name, _ = strings.Cut(name, "@")
		l.Datasets = append(l.Datasets, &zfs.Dataset{Name: d.Target, Type: d.Type, Properties: t, Versions: []zfs.Version{at}, NewestOnly: true})
	}
	return l, nil
}

// arrivedName returns the full name of the arriving snapshot on the target. It differs from the
// source's if the target already had it under another name.
func arrivedName(d *plan.Dataset, before *zfs.Dataset) string {
	if before != nil {
		if v, ok := before.SnapshotOf(d.Final.GUID); ok {
			return v.In(d.Target)
		}
	}
	return d.Target + "@" + d.Final.Name
}

// verify checks that the target dataset has the sent snapshot, by GUID, and returns its name.
func verify(at *hosts.Conn, d *plan.Dataset, copied *zfs.Dataset, log func(string)) (name string, err error) {
	host := at.Label()
	if copied == nil {
		return "", fault.Failf("", "%s: %s does not exist after the transfer", host, d.Target)
	}
	verifySafety(host, d, copied, log)
	v, ok := copied.SnapshotOf(d.Final.GUID)
	if !ok {
		return "", fault.Failf("compare both sides: "+at.Command("zfs", "list", "-t", "snapshot", "-o", "name,guid", d.Target),
			"%s: %s has no snapshot with the GUID %d of %s", host, d.Target, d.Final.GUID, d.Final.In(d.Source))
	}
	return v.Name, nil
}

// verifySafety logs if a new dataset lacks canmount or readonly as requested. Without permission,
// zfs receive prints a warning but succeeds.
func verifySafety(host string, d *plan.Dataset, t *zfs.Dataset, log func(string)) {
	if len(d.Steps) == 0 {
		return
	}
	for _, name := range []string{"canmount", "readonly"} {
		if want, set := d.Steps[0].Receive.Set[name]; set && t.Get(name) != want {
			log(fmt.Sprintf("%s: %s has %s=%s, not %s: the user lacks the permission to set it", host, d.Target, name, t.Get(name), want))
		}
	}
}

// unsetAccess returns an error if a dataset lacks values of zfs.Dataset.Access that the plan sets. copied may be
// nil, or lack properties. Without permission, zfs receive prints a warning but succeeds.
func (m *mover) unsetAccess(d *plan.Dataset, copied *zfs.Dataset) error {
	if failed, _ := m.unset.Load(d.Source); failed != nil {
		return failed.(error)
	}
	if len(d.Steps) == 0 || copied == nil {
		return nil
	}
	lacks := map[string]string{}
	for name, want := range d.Steps[0].Receive.Set {
		if have, known := copied.Properties[name]; known && have.Value != want && slices.Contains(zfs.ListedAccess(), name) {
			lacks[name] = want
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	set := zfs.CommandLine([]string{"zfs", "set"})
	for _, name := range slices.Sorted(maps.Keys(lacks)) {
		set += " " + zfs.CommandLine([]string{name + "=" + lacks[name]})
	}
	hint := "as root: " + set + " " + zfs.CommandLine([]string{d.Target})
	if user := m.ends.Target.Facts.User; user != "" && !m.ends.Target.Facts.Root {
		hint = "as root once: " + zfs.CommandLine([]string{"zfs", "allow", "-u", user, strings.Join(slices.Sorted(maps.Keys(lacks)), ","), d.Target})
	}
	return fault.Failf(hint, "%s lacks %s of its source: zfs receive could not set it", d.Target, zfs.JoinValues(lacks))
}

// checkUnexpected returns an error if new datasets exist below the target that the plan did not
// send. zfs.Gate checks streams; this checks the result.
func checkUnexpected(ctx context.Context, e *ends.Ends, req *Request, p *plan.Plan, before *zfs.Listing) error {
	if p.Steps() == 0 || !req.Plan.Recursive && before.Find(before.Root) != nil {
		return nil // or the earlier descendants are unknown
	}
	after, err := e.Target.Conn.List(ctx, hosts.ListQuery{Dataset: before.Root, Recursive: true, NoAncestors: true, Changed: true})
	if err != nil {
		return err
	}
	unknown := newDatasets(p, before, &after)
	if len(unknown) == 0 {
		return nil
	}
	if after, err = e.Target.Conn.List(ctx, hosts.ListQuery{Dataset: before.Root, Only: unknown, NoAncestors: true, Newest: true}); err != nil {
		return err
	}
	return unplannedError(e.Target.Conn, p, before, &after)
}

func unplannedError(at *hosts.Conn, p *plan.Plan, before, after *zfs.Listing) error {
	names := unexpectedDatasets(p, before, after)
	if len(names) == 0 {
		return nil
	}
	return fault.Failf("inspect it before you mount anything there: "+at.Command(append([]string{"zfs", "get", "all"}, names...)...),
		"%s: below %s there are new datasets that were not planned: %s",
		at.Label(), before.Root, strings.Join(names, ", "))
}

// unexpectedDatasets returns the new datasets below the target that were received without being
// planned. One without a snapshot was created locally.
func unexpectedDatasets(p *plan.Plan, before, after *zfs.Listing) (names []string) {
	byName := after.ByName()
	for _, name := range newDatasets(p, before, after) {
		if d := byName[name]; len(d.Versions) > 0 || d.Inconsistent() {
			names = append(names, name)
		}
	}
	return names
}

// newDatasets returns the datasets that were neither planned nor present before.
func newDatasets(p *plan.Plan, before, after *zfs.Listing) (names []string) {
	known := map[string]bool{}
	for _, d := range before.Datasets {
		known[d.Name] = true
	}
	for _, d := range p.Datasets {
		for name := d.Target; name != "" && !known[name]; name = zfs.ParentOf(name) {
			known[name] = true // and its created parents
		}
	}
	for _, d := range after.Datasets {
		if _, aside := divergedCopyOf(p, d.Name); !known[d.Name] && !aside {
			names = append(names, d.Name)
		}
	}
	return names
}

// divergedCopyOf returns the dataset whose diverged copy has this name, or an ancestor of it,
// after the move.
func divergedCopyOf(p *plan.Plan, name string) (of *plan.Dataset, ok bool) {
	for _, d := range p.Datasets {
		if d.Rename != nil && strings.HasPrefix(name+"/", d.Rename.As+"/") {
			return d, true
		}
	}
	return nil, false
}
