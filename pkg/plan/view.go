package plan

import (
	"cmp"
	"maps"

	"zxfer/pkg/zfs"
)

// view is the survey of both hosts, indexed for one request. Planning does not change it.
type view struct {
	req        Request
	state      State
	targetRoot string

	source, target map[string]*zfs.Dataset   // by name, including ancestors of the roots
	sourceSnap     map[string]uint64         // GUIDs by full snapshot name
	targetSnap     map[uint64][]string       // full snapshot names by GUID
	clones         map[string][]*zfs.Dataset // source clones by the dataset of their origin
}

func newView(req Request, state State, targetRoot string) *view {
	req.created = state.SourceCreated
	v := &view{
		req: req, state: state, targetRoot: targetRoot,
		source: state.Source.ByName(), target: state.Target.ByName(),
		sourceSnap: map[string]uint64{}, targetSnap: map[uint64][]string{}, clones: map[string][]*zfs.Dataset{},
	}
	for _, t := range state.Target.Datasets {
		for _, at := range t.Snapshots() {
			v.targetSnap[at.GUID] = append(v.targetSnap[at.GUID], at.In(t.Name))
		}
	}
	for name, guid := range state.TargetOrigins {
		v.targetSnap[guid] = append(v.targetSnap[guid], name)
	}
	for _, d := range state.Source.Datasets {
		for _, at := range d.Snapshots() {
			v.sourceSnap[at.In(d.Name)] = at.GUID
		}
		if of := originDataset(d); of != "" {
			v.clones[of] = append(v.clones[of], d)
		}
	}
	maps.Copy(v.sourceSnap, state.SourceOrigins)
	return v
}

// onSource and onTarget prefix a dataset with its host.
func (v *view) onSource(name string) string { return withHost(v.state.SourceHost, name) }
func (v *view) onTarget(name string) string { return withHost(v.state.TargetHost, name) }

func withHost(host, name string) string {
	if host == "" {
		return name
	}
	return host + ":" + name
}

// exists reports whether the target has a fully received dataset of that name.
func (v *view) exists(target string) bool {
	t := v.target[target]
	return t != nil && !t.Inconsistent()
}

// raw reports whether a dataset is sent raw.
func (v *view) raw(d *zfs.Dataset) bool { return d.Encrypted() && !v.req.Decrypt }

// sourceRoot returns a dataset's encryption root. If the root is not listed, it returns the
// dataset, which shows the root's key properties as of the last change.
func (v *view) sourceRoot(d *zfs.Dataset) *zfs.Dataset {
	return cmp.Or(v.source[encryptionRoot(d)], d)
}

func encryptionRoot(d *zfs.Dataset) string { return cmp.Or(d.Get("encryptionroot"), d.Name) }

// originDataset returns the dataset that a clone was made from, or "".
func originDataset(d *zfs.Dataset) string {
	origin, _, err := zfs.ParseSnapshot(d.Get("origin"))
	if err != nil || origin == d.Name {
		return ""
	}
	return origin
}
