package send

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
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// keyDependents adds to a survey the target datasets that inherit their key from a copy whose key
// changes.
func keyDependents(ctx context.Context, e *ends.Ends, req plan.Request, state *plan.State) error {
	if req.Recursive || !plan.NeedKeyDependents(req, *state) {
		return nil
	}
	below, err := e.Target.Conn.List(ctx, hosts.ListQuery{Dataset: state.Target.Root, Recursive: true, NoAncestors: true})
	for _, d := range below.Datasets {
		if state.Target.Find(d.Name) == nil {
			state.Target.Datasets = append(state.Target.Datasets, d)
		}
	}
	return err
}

// keepKey makes a stream fail that would change the copy's key, unless that was prepared. ZFS reports
// a different key only by failing, before anything is stored.
func (m *datasetMove) keepKey(step *plan.Step) {
	if len(m.planned.KeyDependents()) > 0 || m.left.RequiredKeyRoot() != "" {
		_, rekeyed := m.rekeyed.Load(m.left.Target)
		step.Receive.KeepKey = !rekeyed
	}
}

// changeKey prepares the copy for a stream that failed with err because it has another key: the
// dependents of the copy's key become encryption roots. Then the stream can be repeated. It returns
// an error if that is impossible, err if the stream failed for another reason.
func (m *datasetMove) changeKey(ctx context.Context, step *plan.Step, err error) error {
	d := m.left
	switch {
	case !step.Receive.KeepKey || !zfs.IsOtherKey(err):
		return err
	case d.RequiredKeyRoot() != "":
		return fault.Failf("send its whole tree together, from "+d.RequiredKeyRoot()+" ({{recursive}})",
			"%s inherits its key, but the key of %s has changed: %w", d.Target, d.RequiredKeyRoot(), err)
	}
	m.rep.Log(fmt.Sprintf("%s: the source has another key now", d.Target))
	if err := m.makeEncryptionRoots(ctx, m.planned, m.planned.KeyDependents()); err != nil {
		return err
	}
	m.rekeyed.Store(d.Target, true)
	step.Receive.KeepKey = false
	return nil
}

// makeEncryptionRoots turns datasets that inherit their key from d into encryption roots, so that
// they keep their current key when a stream changes d's key. A failure is only logged if the
// dataset gets the new key from its own stream, because it is locked only until that arrives.
func (m *mover) makeEncryptionRoots(ctx context.Context, d *plan.Dataset, names []string) error {
	for _, name := range names {
		err := hosts.Run(ctx, hosts.By(m.ends.Target.Conn.Retry), hosts.OpMakeEncryptionRoot, name)
		switch {
		case err == nil:
			m.newRoots.Store(name, true)
		case (ends.Transient(err) || d.MustBecomeRoot(name)) && name == d.Target:
			return m.recordChange(fmt.Errorf("%s must become an encryption root, as on the source: %w", name, err), 0)
		case ends.Transient(err) || d.MustBecomeRoot(name):
			return m.recordChange(fmt.Errorf("%s inherits its key from %s, which changes: %w", name, d.Target, err), 0)
		default:
			m.rep.Log(fmt.Sprintf("%s cannot be opened until the whole tree is received: %v", name, err))
		}
	}
	return nil
}

// joinKeys makes copies inherit their key again as on the source, if both keys are provably equal
// or the source asserts it. A copy that cannot remains an encryption root.
func (t *Job) joinKeys(ctx context.Context, failed map[string]error) {
	joined, kept := map[string]int{}, map[string]int{}
	var repeatedErr error // error of the first three; the others would fail too
	failures := 0
	for _, d := range t.Report.Plan.ToJoin() {
		if failed[d.Source] != nil || ctx.Err() != nil || d.Joins == "" && !t.becameRoot(d) {
			continue
		}
		root, asserted := cmp.Or(d.Joins, d.AssertedRoot()), d.AssertedRoot() != ""
		err := repeatedErr
		switch {
		case err != nil:
		case asserted:
			err = hosts.Run(ctx, hosts.By(t.Ends.Target.Conn.Retry), hosts.OpInheritKeyAsserted, zfs.AssertedKey{Dataset: d.Target, Root: root})
		default:
			err = hosts.Run(ctx, hosts.By(t.Ends.Target.Conn.Retry), hosts.OpInheritKey, d.Target)
		}
		if err != nil {
			if failures++; failures == 3 && len(joined) == 0 {
				repeatedErr = err
			}
		}
		switch {
		case err == nil:
			joined[root]++
		case errors.Is(err, hosts.ErrLost): // the next step reports it
			return
		case len(d.Steps) > 0 && d.Steps[0].BaseGUID == 0: // later sends do not repeat the message
			kept[root+": "+whyNotJoined(t.Ends.Target.Conn.At(), err, root, asserted)]++
		}
	}
	for _, root := range slices.Sorted(maps.Keys(joined)) {
		t.Reporter.Log(fmt.Sprintf("%s: one zfs load-key of %s also opens %s below it", t.Ends.Target.Conn.Label(), root, english.Plural(joined[root], "more dataset", "")))
	}
	for _, why := range slices.Sorted(maps.Keys(kept)) {
		t.Reporter.Log(fmt.Sprintf("%s: %s, in addition to %s", t.Ends.Target.Conn.Label(), english.Plural(kept[why], "dataset remains an encryption root", "datasets remain encryption roots"), why))
	}
}

// becameRoot reports whether this job turned a copy into an encryption root.
func (t *Job) becameRoot(d *plan.Dataset) bool {
	_, ok := t.mover.newRoots.Load(d.Target)
	return ok
}

// whyNotJoined explains why a dataset remains an encryption root. asserted means that only the
// source claims that the keys are equal.
func whyNotJoined(at remedy.Host, err error, root string, asserted bool) string {
	if asserted && errors.Is(err, hosts.ErrForbidden) {
		return "a restricted key cannot assert keys other than passphrases; to open all of them, run: " + at.Prompt("zfs", "load-key", "-r", root)
	}
	if errors.Is(err, &zfs.Error{Kind: zfs.KeyMissing}) {
		return "libzfs_core is missing (apt install python3-pyzfs), and zfs change-key -i requires both keys"
	}
	if hint := fault.HintOf(err); hint != "" {
		return err.Error() + " (" + hint + ")"
	}
	return err.Error()
}
