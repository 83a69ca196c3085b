package authz

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Arguments of operations that take more than one value.
type (
	PropertyQuery struct {
		Names      []string `json:"names"`
		Properties []string `json:"properties"`
	}
	// Tagged are snapshots and the tag of a hold on each.
	Tagged struct {
		Tag       string   `json:"tag"`
		Snapshots []string `json:"snapshots"`
	}
)

// checkedFields are the fields that a restricted agent may be asked with: those that a
// rule judges, and those of which no value harms anybody, whatever else is asked.
// A request with any other, such as one that was added since, is refused.
var checkedFields = map[reflect.Type][]string{
	reflect.TypeFor[struct{}]():           fields("", ""),
	reflect.TypeFor[Tagged]():             fields("Tag Snapshots", ""),
	reflect.TypeFor[PropertyQuery]():      fields("Names Properties", ""),
	reflect.TypeFor[zfs.PropertyChange](): fields("Dataset Set Revert", ""),
	reflect.TypeFor[hosts.ListQuery]():    fields("Dataset Only User", "Recursive Versions Newest Alone Changed Brief"),
	reflect.TypeFor[zfs.StreamFlags]():    fields("Raw", "LargeBlocks Embedded Compressed"),
	reflect.TypeFor[zfs.SendSpec]():       fields("Dataset From Through To Flags Token", ""),
	reflect.TypeFor[hosts.ContentQuery](): fields("SendSpec KeyFile", "Within"),
	reflect.TypeFor[zfs.Within]():         fields("", "Object From To"),
	reflect.TypeFor[files.Query]():        fields("Snapshot KeyFile", "Path Sample Seed Within"),
	// What arrives a zfs.Gate holds against this, in every receive.
	reflect.TypeFor[zfs.Arrival]():     fields("Base Volume", "Snapshots Raw Resumed"),
	reflect.TypeFor[zfs.SnapshotID]():  fields("", "Name GUID"),
	reflect.TypeFor[zfs.ReceiveSpec](): fields("Target Rollback Origin Set Carried Carry KeepKey Corrective Arrival", "Whole"),
	reflect.TypeFor[zfs.Carry]():       fields("", "All Named"), // the guard decides by its own
	reflect.TypeFor[tcp.Offer](): fields("Address PortLow Peer Deadline Socket",
		"Mode Streams PortHigh"), // which wire.Listen bounds
	reflect.TypeFor[tcp.Ticket]():          fields("Address Socket Deadline", "Mode Session Secret Streams ServerPin ClientCert ClientKey"),
	reflect.TypeFor[transport.Socket]():    fields("Window", "Congestion"),
	reflect.TypeFor[transfer.Options]():    fields("Buffer Block BandLimit CompressThreads Stall", "Compress"),
	reflect.TypeFor[hosts.Task]():          fields("From To", ""),
	reflect.TypeFor[hosts.SendStream]():    fields("Spec Options", ""),
	reflect.TypeFor[hosts.ReceiveStream](): fields("Spec Options", ""),
	reflect.TypeFor[hosts.SendFiles]():     fields("Archive Options", ""),
	reflect.TypeFor[files.Archive]():       fields("Snapshot KeyFile", "Paths After Names"),
	reflect.TypeFor[hosts.Dial]():          fields("Ticket", ""),
	reflect.TypeFor[hosts.Accept]():        fields("", "Session"),
	reflect.TypeFor[hosts.Nothing]():       fields("", ""),
	reflect.TypeFor[zfs.DrillClone]():      fields("Snapshot Writable KeyFile Among", "Job"),
	reflect.TypeFor[zfs.DrillClones]():     fields("Datasets", "Job"),
	reflect.TypeFor[zfs.DivergedCopy]():    fields("Dataset As", "GUID"),
	reflect.TypeFor[zfs.Orphan]():          fields("Dataset Tag", "GUID Snapshots"),
}

// Anything is for what tells nothing that a grant is about.
func Anything[A any](context.Context, *Guard, *A) error { return nil }

// errHostFacts refuses what tells of the whole host: mounts, pools,
// interfaces. A job that is told so goes without.
var errHostFacts = errors.New("facts of the whole host are not for this key")

// HostFacts is for what only they answer.
func HostFacts[A any](context.Context, *Guard, *A) error { return errHostFacts }

// Names tells of names, of snapshots or whatever else.
func Names(names *[]string) Account { return Account{each: quoted(*names)} }

// Name tells of one.
func Name(name *string) Account { return Account{each: []string{quote(*name)}} }

// Marks tells of bookmarks, and of which snapshots they are.
func Marks(marks *map[string]string) (a Account) {
	for _, b := range slices.Sorted(maps.Keys(*marks)) {
		a.each = append(a.each, quote(b)+" of "+quote((*marks)[b]))
	}
	return a
}

// Tags tells of holds.
func Tags(h *Tagged) Account { return Account{of: quote(h.Tag), each: quoted(h.Snapshots)} }

// check bounds the tag.
func (h *Tagged) check() error {
	if h.Tag == "" || len(quote(cut(h.Tag))) > maxTag || len(h.Tag) > zfs.MaxName {
		return fmt.Errorf("a hold's tag of %d bytes is none of zxfer's", len(h.Tag))
	}
	return nil
}

// Streams tells what a task receives before what it sends. Its ticket is secret.
func Streams(t *hosts.Task) (a Account) {
	add := func(words ...string) { a.each = append(a.each, strings.Join(words, " ")) }
	if t.Moves() == "nothing" {
		add("a connection, with nothing on it")
	}
	if to, ok := t.To.(hosts.ReceiveStream); ok {
		r := to.Spec
		add("receive", quote(r.Target))
		if r.Corrective {
			add("corrective")
		}
		if r.Rollback {
			add("rollback")
		}
		if r.Origin != "" {
			add("origin", quote(r.Origin))
		}
		for _, name := range slices.Sorted(maps.Keys(r.Set)) {
			add("set", quote(name+"="+r.Set[name]))
		}
	}
	if from, ok := t.From.(hosts.SendFiles); ok {
		add("send files of", quote(from.Archive.Snapshot))
		for _, p := range from.Archive.Paths {
			add(quote(p))
		}
	}
	if from, ok := t.From.(hosts.SendStream); ok {
		s := from.Spec
		add("send", quote(s.Dataset))
		if s.From != "" {
			add("from", quote(s.From))
		}
		for _, through := range s.Through {
			add("through", quote(through))
		}
		add("to", quote(s.To))
		if s.Token != "" {
			add("the rest of an interrupted stream")
		}
		if s.Flags.Raw {
			add("raw")
		}
	}
	return a
}

func (g *Guard) all() []string {
	return append(g.policy.receivable(), g.policy.Send...)
}

// onlyAdded tells whether versions of a dataset are only added: where that is asked
// for, and of what may be restored and nothing else. That are originals, and what is
// newer in them than a copy is nowhere else.
func (g *Guard) onlyAdded(dataset string) bool {
	return g.policy.AppendOnly || !below(dataset, g.policy.Receive) && !below(dataset, g.policy.Send)
}

func (g *Guard) receivable(dataset string) error {
	if !below(dataset, g.policy.receivable()) {
		return fmt.Errorf("nothing may be received into %q", cut(dataset))
	}
	return nil
}

func outside(name string) error { return fmt.Errorf("%q is not below an allowed dataset", cut(name)) }

// cut bounds what an error repeats.
func cut(s string) string { return s[:min(len(s), zfs.MaxName)] }

// snapshots judges names of snapshots, which must be of roots.
func (g *Guard) snapshots(names, roots []string, op string) error {
	for _, n := range names {
		dataset, _, err := zfs.ParseSnapshot(n)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if !below(dataset, roots) {
			return outside(n)
		}
	}
	return nil
}

// Properties judges reads of properties: of granted datasets and their versions, and
// zfs.AncestorProperties (type, space, encryption) of the datasets above.
func Properties(ctx context.Context, g *Guard, q *PropertyQuery) error {
	short := zfs.AncestorProperties()
	other := func(p string) bool { return !slices.Contains(short, p) }
	for _, n := range q.Names {
		dataset := n
		if strings.ContainsAny(n, "@#") {
			var err error
			if dataset, _, err = zfs.ParseVersion(n); err != nil {
				return err
			}
		} else if g.policy.above(n) && len(q.Properties) > 0 && !slices.ContainsFunc(q.Properties, other) {
			continue
		}
		if slices.Equal(q.Properties, []string{"origin", zfs.AsideProperty}) { // which clones drills left
			if origin, err := g.origin(ctx, n); err != nil || origin != "" {
				dataset = origin
			}
		}
		if !g.policy.granted(g.formerly(dataset)) {
			return outside(n)
		}
	}
	for _, p := range q.Properties {
		if err := zfs.CheckProperty(p); err != nil {
			return err
		}
	}
	return nil
}

// Bookmark keeps bookmarks with their snapshots.
func Bookmark(_ context.Context, g *Guard, marks *map[string]string) error {
	for b, s := range *marks {
		of, _, err := zfs.ParseBookmark(b)
		if err != nil {
			return err
		}
		from, _, err := zfs.ParseSnapshot(s)
		if err != nil {
			return err
		}
		if of != from || !below(of, g.all()) {
			return outside(b)
		}
	}
	return nil
}

var errAppendOnly = errors.New("append-only: nothing is destroyed")

// Destroy is for versions of what is granted, unless they are only added.
func Destroy(_ context.Context, g *Guard, versions *[]string) error {
	if len(*versions) == 0 && g.policy.AppendOnly { // who asks is told
		return errAppendOnly
	}
	for _, n := range *versions {
		dataset, _, err := zfs.ParseVersion(n)
		if err != nil {
			return err
		}
		if g.healsThrough(n) {
			continue
		}
		if g.policy.AppendOnly {
			return errAppendOnly
		}
		if !below(dataset, g.all()) {
			return outside(n)
		}
		if g.onlyAdded(dataset) {
			return fmt.Errorf("%q may be restored only: nothing of it is destroyed", cut(dataset))
		}
	}
	return nil
}

// List surveys granted datasets. Of the datasets above it shows what Properties does.
func List(_ context.Context, g *Guard, q *hosts.ListQuery) error {
	for _, n := range append([]string{q.Dataset}, q.Only...) {
		if !g.policy.granted(n) {
			return outside(n)
		}
	}
	q.Brief = true
	return q.CheckUser()
}

// DatasetOf tells of a path on what may be sent, and of no other whether there is
// one: that is not for them to know.
func DatasetOf(ctx context.Context, g *Guard, path *string) error {
	dataset, err := g.site.DatasetOf(ctx, *path)
	if err != nil || !below(dataset, g.policy.Send) {
		return errors.New("the path is not on a dataset that may be sent")
	}
	return nil
}

// Snapshot takes snapshots of what may be sent.
func Snapshot(_ context.Context, g *Guard, names *[]string) error {
	others := slices.DeleteFunc(slices.Clone(*names), g.healsThrough)
	return g.snapshots(others, g.policy.Send, "snapshot")
}

// Hold places holds.
func Hold(_ context.Context, g *Guard, h *Tagged) error {
	if err := h.check(); err != nil {
		return err
	}
	return g.snapshots(h.Snapshots, g.all(), "hold")
}

// Release removes holds; only zxfer's own, where versions are only added (onlyAdded).
func Release(_ context.Context, g *Guard, h *Tagged) error {
	if err := h.check(); err != nil {
		return err
	}
	formerly := make([]string, len(h.Snapshots))
	for i, s := range h.Snapshots {
		dataset, name, _ := strings.Cut(s, "@")
		formerly[i] = g.formerly(dataset) + "@" + name
	}
	if err := g.snapshots(formerly, g.all(), "release"); err != nil {
		return err
	}
	for _, s := range formerly {
		if dataset, _, _ := zfs.ParseSnapshot(s); g.onlyAdded(dataset) && !strings.HasPrefix(h.Tag, zfs.TagPrefix) {
			return fmt.Errorf("append-only: the hold %q is not one of zxfer's jobs", cut(h.Tag))
		}
	}
	return nil
}

// Holds tells of holds.
func Holds(_ context.Context, g *Guard, names *[]string) error {
	return g.snapshots(*names, g.all(), "holds")
}

// DiscardPartial drops what an interrupted receive left.
func DiscardPartial(_ context.Context, g *Guard, dataset *string) error {
	return g.receivable(*dataset)
}

// CreateParents creates below a granted dataset that is there, never above.
func CreateParents(ctx context.Context, g *Guard, dataset *string) error {
	if err := g.receivable(*dataset); err != nil {
		return err
	}
	for _, root := range g.policy.receivable() {
		if !below(*dataset, []string{root}) || *dataset == root {
			continue
		}
		there, err := g.site.Properties(ctx, []string{root}, []string{"type"})
		if err != nil {
			return err
		}
		if there[root] != nil {
			return nil
		}
		return fmt.Errorf("%s, which the policy names, does not exist: its administrator creates it", root)
	}
	return nil // the granted dataset itself: its parents are not for the agent to make
}
