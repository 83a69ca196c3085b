package authz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/device"
	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
	"zxfer/pkg/probe"
	"zxfer/pkg/zfs"
)

// rules returns the rule of each operation.
func rules() map[string]anyRule {
	all := map[string]anyRule{}
	for _, entry := range []ruling{
		of(hosts.OpFacts, reads(allowAll[hosts.None])),
		of(hosts.OpHostFacts, reads(allowAll[hosts.None])), // reveals less than OpFacts
		of(hosts.OpCapture, reads(denyHostFacts[bool])),
		of(hosts.OpInUse, reads(denyHostFacts[[]string])),

		of(hosts.OpList, reads(mayList).needs("send", "receive")),
		of(hosts.OpDatasetOf, reads(mayDatasetOf).needs("send")),
		of(hosts.OpProperties, reads(mayProperties).needs("send", "receive")),
		of(hosts.OpEstimate, reads(mayEstimate).needs("send")),
		of(hosts.OpHolds, reads(mayHolds).needs("send", "receive")),
		of(hosts.OpPermitted, reads(mayPermitted).needs("send", "receive")),
		of(hosts.OpSnapshot, changes(maySnapshot, nameList).needs("send")),
		of(hosts.OpHold, changes(mayHold, holdNames).needs("send", "receive")),
		of(hosts.OpRelease, changes(mayRelease, holdNames).needs("send", "receive")),
		of(hosts.OpBookmark, changes(mayBookmark, bookmarkNames).needs("send", "receive")),
		of(hosts.OpDestroy, changes(mayDestroy, nameList).needs("send", "receive").destroying()),
		of(hosts.OpCreateParents, changes(mayCreateParents, singleName).needs("receive")),
		of(hosts.OpDiscardPartial, changes(mayDiscardPartial, singleName).needs("receive")),

		of(hosts.OpDigest, reads(mayDigest).needs("send", "receive")),
		of(hosts.OpReadFiles, reads(mayReadFiles).needs("send")),
		of(hosts.OpBlockSizes, reads(mayBlockSizes).needs("send", "drill")),
		of(hosts.OpOffer, reads(mayOffer)),
		of(hosts.OpTransfer, changes(mayTransfer, transferNames).needs("send", "receive")),

		of(hosts.OpSetProperties, changes(maySetProperties, propertyNames).needs("restore")),
		of(hosts.OpMount, changes(mayMount, mountedName).needs("restore")),
		of(hosts.OpMountpoints, reads(denyHostFacts[hosts.None])),
		of(hosts.OpInheritKey, changes(mayInheritKey, singleName).needs("receive")),
		of(hosts.OpMakeEncryptionRoot, changes(mayMakeEncryptionRoot, singleName).needs("receive")),

		of(hosts.OpDamage, reads(mayDamage).needs("heal")),
		of(hosts.OpScrub, changes(mayScrub, singleName).needs("heal")),
		of(hosts.OpSync, reads(maySync).needs("send", "receive")),
		of(hosts.OpRevert, changes(mayRevert, singleName).needs("heal")),

		of(hosts.OpCreateDrillClone, changes(mayCreateDrillClone, drillSnapshotName).needs("drill")),
		of(hosts.OpDestroyDrillClones, changes(mayDestroyDrillClones, drillDatasetNames).needs("drill")),

		of(hosts.OpRenameDiverged, changes(mayRenameDiverged, divergedNames).needs("rotate")),
		of(hosts.OpRenameCopies, changes(mayRenameCopies, renamedNames).needs("follow")),
		of(hosts.OpDestroyOrphans, changes(mayDestroyOrphans, orphanNames).needs("remove").destroying()),

		{hosts.OpApply.Name(), listRule{}},

		of(hosts.OpSnapshotFrozen, never[freeze.Request]("a restricted key cannot freeze applications, because that runs programs")),
		of(hosts.OpRunInDrillClone, never[zfs.DrillCommand]("a restricted key cannot run commands")),
		of(hosts.OpRollback, never[zfs.Rollback]("a restricted key cannot roll back the original: its newest data may exist nowhere else")),
		of(hosts.OpImportPool, never[zfs.PoolImport]("a restricted key cannot import pools, because that reads the disks of the whole host")),
		of(hosts.OpExportPool, never[zfs.PoolExport]("a restricted key cannot export pools, which have other datasets")),
		of(hosts.OpFindPools, never[zfs.PoolQuery]("a restricted key cannot list pools")),
		of(hosts.OpInheritKeyAsserted, never[zfs.AssertedKey]("a restricted key cannot assert keys other than passphrases")),

		// The zero rule refuses these like unknown operations.
		of(hosts.OpUnmount, rule[string]{}),
		of(hosts.OpMeasure, rule[probe.Request]{}),
		of(hosts.OpInspectDevice, rule[string]{}),
		of(hosts.OpDeviceState, rule[device.Task]{}),
		of(hosts.OpDigestDevice, rule[device.DigestQuery]{}),
		of(hosts.OpDigestVolume, rule[hosts.VolumeDigestQuery]{}),
	} {
		all[entry.op] = entry.rule
	}
	return all
}

// of pairs an operation with a rule for its type of arguments.
func of[A, R any](op hosts.Op[A, R], rule rule[A]) ruling { return ruling{op.Name(), rule} }

// ruling is the name of an operation with its rule.
type ruling struct {
	op   string
	rule anyRule
}

// checkTag limits the tag of a hold.
func checkTag(h *hosts.Tagged) error {
	if h.Tag == "" || len(quote(clipName(h.Tag))) > maxTag || len(h.Tag) > zfs.MaxName {
		return fmt.Errorf("a hold tag of %d bytes does not belong to zxfer", len(h.Tag))
	}
	return nil
}

// allowAll permits an operation that reveals nothing about datasets.
func allowAll[A any](context.Context, *Guard, *A) error { return nil }

// denyHostFacts refuses an operation that reveals only facts of the whole host.
func denyHostFacts[A any](context.Context, *Guard, *A) error { return errHostFacts }

// errHostFacts refuses facts of the whole host: mounts, pools, interfaces. Jobs work without
// them.
var errHostFacts = errors.New("this key does not permit reading facts of the whole host")

// mayProperties permits reading the properties of readable datasets and their versions. For
// ancestors it permits zfs.AncestorProperties (type, space, encryption).
func mayProperties(ctx context.Context, g *Guard, q *hosts.PropertyQuery) error {
	short := zfs.AncestorProperties()
	other := func(p string) bool { return !slices.Contains(short, p) }
	for _, n := range q.Names {
		dataset := n
		if strings.ContainsAny(n, "@#") {
			var err error
			if dataset, _, err = zfs.ParseVersion(n); err != nil {
				return err
			}
		} else if g.policy.isAncestor(n) && len(q.Properties) > 0 && !slices.ContainsFunc(q.Properties, other) {
			continue
		}
		if slices.Equal(q.Properties, []string{"origin", zfs.DrillCloneProperty}) { // the query for leftover drill clones
			if origin, err := g.drillOrigin(ctx, n); err != nil || origin != "" {
				dataset = origin
			}
		}
		if !g.policy.readable(g.nameBefore(dataset)) {
			return errOutside(n)
		}
	}
	for _, p := range q.Properties {
		if err := zfs.CheckProperty(p); err != nil {
			return err
		}
	}
	return nil
}

// mayList permits listing readable datasets. For ancestors it shows as much as Properties.
func mayList(_ context.Context, g *Guard, q *hosts.ListQuery) error {
	for _, n := range append([]string{q.Dataset}, q.Only...) {
		if !g.policy.readable(n) {
			return errOutside(n)
		}
	}
	q.Brief = true
	return q.CheckUser()
}

// mayDatasetOf permits resolving paths on datasets that may be sent. For other paths, the refusal
// does not show whether a dataset exists.
func mayDatasetOf(ctx context.Context, g *Guard, path *string) error {
	dataset, err := g.host.DatasetOf(ctx, *path)
	if err != nil || !within(dataset, g.policy.Send) {
		return errors.New("the path is not on a dataset that this key may send")
	}
	return nil
}

// maySnapshot permits snapshots of datasets that may be sent or healed.
func maySnapshot(_ context.Context, g *Guard, names *[]string) error {
	others := slices.DeleteFunc(slices.Clone(*names), g.isHealSnapshot)
	return g.checkSnapshots(others, g.policy.Send, "snapshot")
}

// mayBookmark permits bookmarks in the same dataset as their snapshot.
func mayBookmark(_ context.Context, g *Guard, marks *map[string]string) error {
	for b, s := range *marks {
		of, _, err := zfs.ParseBookmark(b)
		if err != nil {
			return err
		}
		from, _, err := zfs.ParseSnapshot(s)
		if err != nil {
			return err
		}
		if of != from || !within(of, g.sendOrReceive()) {
			return errOutside(b)
		}
	}
	return nil
}

// mayHold permits holds on granted datasets.
func mayHold(_ context.Context, g *Guard, h *hosts.Tagged) error {
	if err := checkTag(h); err != nil {
		return err
	}
	return g.checkSnapshots(h.Snapshots, g.sendOrReceive(), "hold")
}

// mayRelease permits releasing holds; only zxfer's own if keepsVersions.
func mayRelease(ctx context.Context, g *Guard, h *hosts.Tagged) error {
	if err := checkTag(h); err != nil {
		return err
	}
	names := make([]string, len(h.Snapshots))
	for i, s := range h.Snapshots {
		dataset, name, _ := strings.Cut(s, "@")
		names[i] = g.nameBefore(dataset) + "@" + name
	}
	if err := g.checkSnapshots(names, g.sendOrReceive(), "release"); err != nil {
		return err
	}
	for _, s := range names {
		if dataset, _, _ := zfs.ParseSnapshot(s); g.keepsVersions(dataset) && !strings.HasPrefix(h.Tag, zfs.TagPrefix) {
			return fmt.Errorf("append-only: the hold %q does not belong to a job of zxfer", clipName(h.Tag))
		}
	}
	return g.checkSnapshotRoles(ctx, names)
}

// mayHolds permits listing holds.
func mayHolds(_ context.Context, g *Guard, names *[]string) error {
	return g.checkSnapshots(*names, g.sendOrReceive(), "holds")
}

// mayPermitted permits reading the account's own permissions on readable datasets and their ancestors.
func mayPermitted(_ context.Context, g *Guard, dataset *string) error {
	if !g.policy.readable(*dataset) && !g.policy.isAncestor(*dataset) {
		return errOutside(*dataset)
	}
	return nil
}

// mayDiscardPartial permits discarding a partially received state.
func mayDiscardPartial(ctx context.Context, g *Guard, dataset *string) error {
	if err := g.checkReceivable(*dataset); err != nil {
		return err
	}
	return g.checkRole(ctx, *dataset)
}

// mayCreateParents permits creating datasets below an existing granted one, never above.
func mayCreateParents(ctx context.Context, g *Guard, dataset *string) error {
	if err := g.checkReceivable(*dataset); err != nil {
		return err
	}
	if err := g.checkRole(ctx, *dataset); err != nil {
		return err
	}
	for _, root := range g.policy.receivable() {
		if !within(*dataset, []string{root}) || *dataset == root {
			continue
		}
		found, err := g.host.Properties(ctx, []string{root}, []string{"type"})
		if err != nil {
			return err
		}
		if found[root] != nil {
			return nil
		}
		return fmt.Errorf("%s does not exist: the administrator of the key must create it", root)
	}
	return nil // the granted dataset itself; its parents are not granted
}

// checkSnapshots checks that snapshots belong to roots.
func (g *Guard) checkSnapshots(names, roots []string, op string) error {
	for _, n := range names {
		dataset, _, err := zfs.ParseSnapshot(n)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if !within(dataset, roots) {
			return errOutside(n)
		}
	}
	return nil
}

func (g *Guard) sendOrReceive() []string {
	return append(g.policy.receivable(), g.policy.Send...)
}

func (g *Guard) checkReceivable(dataset string) error {
	if !within(dataset, g.policy.receivable()) {
		return &outsideError{"receiving into %q is not permitted", clipName(dataset), []string{"receive"}}
	}
	return nil
}

// errOutside refuses a dataset or version outside of the grants. Without verbs, addGrants adds those of the
// operation.
func errOutside(name string, verbs ...string) error {
	return &outsideError{"the key does not permit access to %q", clipName(name), verbs}
}

// outsideError is the refusal of a dataset or version that no grant covers.
type outsideError struct {
	format string
	name   string
	verbs  []string // of which one would permit it
}

func (e *outsideError) Error() string {
	text := fmt.Sprintf(e.format, e.name)
	dataset := e.name
	if i := strings.IndexAny(dataset, "@#"); i >= 0 {
		dataset = dataset[:i]
	}
	if _, err := zfs.ParseDataset(dataset); err != nil || len(e.verbs) == 0 {
		return text
	}
	words := make([]string, len(e.verbs))
	for i, verb := range e.verbs {
		words[i] = allowWords(verb, dataset)
	}
	return text + "; to permit it, add " + strings.Join(words, " or ") + " in authorized_keys"
}

// allowWords returns a grant as it is written in authorized_keys.
func allowWords(verb, dataset string) string {
	return zfs.CommandLine([]string{"--allow", verb + "=" + dataset})
}

// addGrants adds the verbs of which one would permit an operation to its refusal.
func addGrants(err error, verbs []string) error {
	var outside *outsideError
	if errors.As(err, &outside) && len(outside.verbs) == 0 {
		outside.verbs = verbs
	}
	return err
}

// clipName limits the part of a name that an error repeats.
func clipName(s string) string { return s[:min(len(s), zfs.MaxName)] }
