package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// keyDependents adds to a survey what takes its key from a copy whose key changes.
func keyDependents(ctx context.Context, e *ends, req plan.Request, state *plan.State) error {
	if req.Recursive || !plan.NeedInheritors(req, *state) {
		return nil
	}
	below, err := e.target.List(ctx, hosts.ListQuery{Dataset: state.Target.Root, Recursive: true, Alone: true})
	for _, d := range below.Datasets {
		if state.Target.Find(d.Name) == nil {
			state.Target.Datasets = append(state.Target.Datasets, d)
		}
	}
	return err
}

// partKeys has what takes its key from a copy open with the key that it has, whatever
// the next stream brings that copy. What gets the new key by a stream of its own may
// stay where the host cannot do it: it is locked only until then.
func (m *mover) partKeys(ctx context.Context, d *plan.Dataset, names []string) error {
	for _, name := range names {
		err := m.target.Retry(ctx, hosts.WithRole(func(o hosts.Restorer) error { return o.MakeEncryptionRoot(ctx, name) }))
		switch {
		case err == nil:
			m.parted.Store(name, true)
		case (transient(err) || d.StuckReason(name)) && name == d.Target:
			return m.noted(fmt.Errorf("%s has to become an encryption root, as on the source: %w", name, err), 0)
		case transient(err) || d.StuckReason(name):
			return m.noted(fmt.Errorf("%s takes its key from %s, which changes: %w", name, d.Target, err), 0)
		default:
			m.rep.Log(fmt.Sprintf("%s cannot be opened until all of the tree has arrived: %v", name, err))
		}
	}
	return nil
}

// keyed moves a step whose stream may bring another key than the copy has, of which ZFS
// shows nothing before: nothing is stored then. What takes its key from the copy parts
// from it first.
func (m *mover) keyed(ctx context.Context, planned, d *plan.Dataset, step *plan.Step, move func() (*StepResult, error)) (*StepResult, error) {
	if len(planned.Inherit()) == 0 && d.KeepsKey() == "" {
		return move()
	}
	_, rekeyed := m.rekeyed.Load(d.Target)
	step.Receive.KeepKey = !rekeyed
	r, err := move()
	switch {
	case err == nil || rekeyed || !zfs.IsOtherKey(err):
		return r, err
	case d.KeepsKey() != "":
		return r, fault.Failf("send all of its tree at once, from "+d.KeepsKey()+" ({{recursive}})",
			"%s takes its key from above, and that of %s is another by now: %w", d.Target, d.KeepsKey(), err)
	}
	m.rep.Log(fmt.Sprintf("%s: the source has another key by now", d.Target))
	if err := m.partKeys(ctx, planned, planned.Inherit()); err != nil {
		return r, err
	}
	m.rekeyed.Store(d.Target, true)
	step.Receive.KeepKey = false
	return move()
}

// joinKeys has what arrived take its key from above, as it does on the source, where
// that is proved to be one key. Where it cannot, it stays as it arrived.
func (t *sendJob) joinKeys(ctx context.Context, failed map[string]error) {
	joined, kept := map[string]int{}, map[string]int{}
	var cannot error // what three failed for, and none before them: the others would, too
	failures := 0
	for _, d := range t.report.Plan.ToJoin() {
		if failed[d.Source] != nil || ctx.Err() != nil || d.Joins == "" && !t.hasParted(d) {
			continue
		}
		root, told := cmp.Or(d.Joins, d.Takes()), d.Takes() != ""
		err := cannot
		if err == nil {
			err = t.target.Retry(ctx, hosts.WithRole(func(o hosts.Restorer) error {
				if told {
					return o.InheritKeyAsserted(ctx, zfs.AssertedKey{Dataset: d.Target, Root: root})
				}
				return o.InheritKey(ctx, d.Target)
			}))
		}
		if err != nil {
			if failures++; failures == 3 && len(joined) == 0 {
				cannot = err
			}
		}
		switch {
		case err == nil:
			joined[root]++
		case errors.Is(err, hosts.ErrLost): // what follows tells of that
			return
		case len(d.Steps) > 0 && d.Steps[0].BaseGUID == 0: // of others it was said
			kept[root+": "+whyNotJoined(err, root, told)]++
		}
	}
	for _, root := range slices.Sorted(maps.Keys(joined)) {
		t.rep.Log(fmt.Sprintf("%s: one zfs load-key of %s opens %s below it, too", t.target.Label(), root, english.Plural(joined[root], "more dataset", "")))
	}
	for _, why := range slices.Sorted(maps.Keys(kept)) {
		t.rep.Log(fmt.Sprintf("%s: %s, beside %s", t.target.Label(), english.Plural(kept[why], "dataset stays an encryption root", "datasets stay encryption roots"), why))
	}
}

// hasParted tells that a copy became an encryption root in the course of this.
func (t *sendJob) hasParted(d *plan.Dataset) bool {
	_, parted := t.parted.Load(d.Target)
	return parted
}

// whyNotJoined tells why a dataset stays an encryption root of its own; told says that
// its key is the source's word.
func whyNotJoined(err error, root string, told bool) string {
	if told && errors.Is(err, hosts.ErrForbidden) {
		return "of a key that is no passphrase a restricted key is not believed; to open all of them, there: " + zfs.CommandLine([]string{"zfs", "load-key", "-r", root})
	}
	if errors.Is(err, &zfs.Error{Kind: zfs.KeyMissing}) {
		return "libzfs_core is not there (apt install python3-pyzfs), and zfs change-key -i needs both keys"
	}
	if hint := fault.HintOf(err); hint != "" {
		return err.Error() + " (" + hint + ")"
	}
	return err.Error()
}
