package plan

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// The conflicts.
const (
	NoSnapshot      ConflictID = "no-snapshot"      // nothing to send, or the snapshot asked for is not there
	SameDataset     ConflictID = "same-dataset"     // source and target are one, or one lies inside the other
	TypeMismatch    ConflictID = "type-mismatch"    // filesystem onto volume or the other way round
	Diverged        ConflictID = "diverged"         // both sides went on since the common snapshot
	NoCommon        ConflictID = "no-common"        // the target has no snapshot of the source's history
	Modified        ConflictID = "modified"         // the target changed since its newest snapshot
	KeyNotLoaded    ConflictID = "key-not-loaded"   // --decrypt without the key
	EncryptionMixed ConflictID = "encryption-mixed" // raw onto a dataset that was not received raw, or the reverse
	IVSetMismatch   ConflictID = "ivset-mismatch"   // openzfs#8758
	FeatureMissing  ConflictID = "feature-missing"  // the target's pool lacks a feature
	BadName         ConflictID = "bad-name"         // the target's name would be illegal or too long
	BadProperty     ConflictID = "bad-property"     // -o or -x of a property that cannot be
	BeingReceived   ConflictID = "being-received"   // the source itself is half received
)

// Steps returns the number of streams of the plan.
func (p *Plan) Steps() int {
	n := 0
	for _, d := range p.Datasets {
		n += len(d.Steps)
	}
	return n
}

// planner is the state of one Make.
type planner struct {
	req        Request
	state      State
	targetRoot string
	target     map[string]*zfs.Dataset
	source     map[string]*zfs.Dataset
	sourceSnap map[string]uint64 // full snapshot name on the source → GUID
	targetGUID map[uint64]string // snapshot GUID → full name on the target
	plan       Plan
	sent       map[uint64]string // snapshot GUID → full name on the target once the plan is done
}

// Make plans a transfer. A plan with conflicts has no use but to be shown.
func Make(req Request, state State) Plan {
	p := &planner{req: req, state: state,
		target: map[string]*zfs.Dataset{}, source: map[string]*zfs.Dataset{},
		sourceSnap: map[string]uint64{}, targetGUID: map[uint64]string{}, sent: map[uint64]string{},
	}
	var err error
	if p.targetRoot, err = TargetName(req.Source, req.Target); err != nil {
		p.conflict(BadName, req.Source, req.Target, err.Error(), "")
		return p.plan
	}
	p.index()
	if state.SameHost && (below(p.targetRoot, req.Source) || below(req.Source, p.targetRoot)) {
		p.conflict(SameDataset, req.Source, p.targetRoot,
			fmt.Sprintf("source %s and target %s are one dataset, or one lies inside the other", req.Source, p.targetRoot),
			"choose another target")
		return p.plan
	}
	p.checkProperties()
	for _, d := range p.ordered() {
		p.dataset(d)
	}
	p.extraTargets()
	return p.plan
}

func (p *planner) index() {
	for _, d := range p.state.Target.Datasets {
		p.target[d.Name] = d
		for _, v := range d.Snapshots() {
			p.targetGUID[v.GUID] = v.In(d.Name)
		}
	}
	for name, guid := range p.state.TargetOrigins {
		p.targetGUID[guid] = name
	}
	for _, d := range p.state.Source.Datasets {
		p.source[d.Name] = d
		for _, v := range d.Snapshots() {
			p.sourceSnap[v.In(d.Name)] = v.GUID
		}
	}
	for name, guid := range p.state.SourceOrigins {
		p.sourceSnap[name] = guid
	}
}

func (p *planner) note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf(format, args...))
}

func (p *planner) conflict(id ConflictID, source, target, message, hint string) {
	p.plan.Conflicts = append(p.plan.Conflicts, &Conflict{
		ID: id, Source: source, Target: target, Message: message, Hint: hint,
		SourceVersions: newest(p.source[source]), TargetVersions: newest(p.target[target]),
	})
}

// on names a dataset together with its host.
func on(host, name string) string { return host + ":" + name }

// dataset plans one dataset.
func (p *planner) dataset(d *zfs.Dataset) {
	out := &Dataset{Source: d.Name, Target: targetOf(d.Name, p.req.Source, p.targetRoot), Type: d.Type}
	top := d.Name == p.req.Source
	if d.Inconsistent() && d.ResumeToken() != "" || d.Inconsistent() {
		if top {
			p.conflict(BeingReceived, d.Name, out.Target, on(p.state.SourceHost, d.Name)+" is itself only half received", "complete that receive first")
		} else {
			p.note("%s is skipped: it is itself only half received", d.Name)
		}
		return
	}
	to, ok := p.req.arrival(d)
	if !ok {
		p.noArrival(d, out, top)
		return
	}
	out.Arrive = to
	out.Encrypted = d.Encrypted() && !p.req.Decrypt
	if p.req.Decrypt && d.Encrypted() && !d.KeyLoaded() {
		p.conflict(KeyNotLoaded, d.Name, out.Target,
			fmt.Sprintf("%s cannot be sent decrypted: its key is not loaded", on(p.state.SourceHost, d.Name)),
			"zfs load-key "+encryptionRoot(d)+"\nor leave --decrypt out: it is then sent raw and needs no key")
		return
	}
	if !p.checkNames(d, out, to) {
		return
	}
	p.steps(d, out, to)
}

func encryptionRoot(d *zfs.Dataset) string {
	if r := d.Get("encryptionroot"); r != "" {
		return r
	}
	return d.Name
}

func (p *planner) noArrival(d *zfs.Dataset, out *Dataset, top bool) {
	host := on(p.state.SourceHost, d.Name)
	switch {
	case !top && p.req.Snapshot != "":
		p.note("%s is skipped: it has no snapshot @%s", d.Name, p.req.Snapshot)
	case !top:
		p.note("%s is skipped: it has no snapshot to send", d.Name)
	case p.req.Snapshot != "":
		hint := "--snapshot " + p.req.Snapshot + " takes it"
		message := fmt.Sprintf("%s has no snapshot @%s", host, p.req.Snapshot)
		if near := nearest(d, p.req.Snapshot, 5); len(near) > 0 {
			message += "; it has @" + strings.Join(near, ", @")
		}
		p.conflict(NoSnapshot, d.Name, out.Target, message, hint)
	case len(d.Snapshots()) > 0:
		p.conflict(NoSnapshot, d.Name, out.Target, host+" has no snapshot that the patterns include", "")
	default:
		p.conflict(NoSnapshot, d.Name, out.Target, host+" has no snapshot", "--snapshot NAME takes one first")
	}
}

// checkNames refuses names that the target cannot have.
func (p *planner) checkNames(d *zfs.Dataset, out *Dataset, to zfs.Version) bool {
	longest := to.Name
	if !p.req.LatestOnly {
		for _, v := range d.Snapshots() {
			if v.CreateTXG <= to.CreateTXG && len(v.Name) > len(longest) && p.req.wanted(v.Name) {
				longest = v.Name
			}
		}
	}
	if _, _, err := zfs.ParseSnapshot(out.Target + "@" + longest); err != nil {
		p.conflict(BadName, d.Name, out.Target, "target: "+err.Error(), "choose a shorter target name")
		return false
	}
	return true
}

// steps decides how the dataset gets to its arrival.
func (p *planner) steps(d *zfs.Dataset, out *Dataset, to zfs.Version) {
	t := p.target[out.Target]
	defer func() {
		// Where a conflict came up, the dataset stays in the plan as it is:
		// nothing of the plan is carried out then.
		p.plan.Datasets = append(p.plan.Datasets, out)
		p.needs(d, out)
		p.remember(d, out)
	}()
	if t != nil && t.Type != d.Type {
		p.conflict(TypeMismatch, d.Name, out.Target,
			fmt.Sprintf("%s is a %s and %s a %s", on(p.state.SourceHost, d.Name), d.Type, on(p.state.TargetHost, out.Target), t.Type),
			"choose another target name")
		return
	}
	if t != nil {
		if resumed := p.resume(d, t, out, to); resumed {
			return
		}
		if t.Inconsistent() {
			t = nil // dropping the partial state removes the dataset
		}
	}
	if t == nil || len(t.Snapshots()) == 0 && p.req.Rollback && p.lose(t, out, 0) {
		p.first(d, t, out, to)
		return
	}
	p.increment(d, t, out, to)
}

// lose records what a rollback to after destroys; it is always true.
func (p *planner) lose(t *zfs.Dataset, out *Dataset, after uint64) bool {
	for _, v := range t.Snapshots() {
		if v.CreateTXG > after {
			out.Loses = append(out.Loses, v.In(t.Name))
		}
	}
	if t.Get("written") != "" && t.Get("written") != "0" {
		out.Loses = append(out.Loses, fmt.Sprintf("%s bytes written to %s since its newest snapshot", t.Get("written"), t.Name))
	}
	return true
}

// first plans the transfer of a dataset that the target does not have.
func (p *planner) first(d, t *zfs.Dataset, out *Dataset, to zfs.Version) {
	flags, ok := p.flags(d, nil, out)
	if !ok {
		return
	}
	out.CreateParents = p.parentMissing(out)
	receive := zfs.ReceiveSpec{Target: out.Target, Rollback: t != nil}
	receive.Set, receive.Exclude = p.receiveProperties(d, flags, true)
	runs := p.req.runs(d, 0, to, true) // the first snapshot goes alone, in full
	if origin, on, ok := p.origin(d); ok {
		receive.Origin = on
		step := p.step(Clone, d, zfs.SendSpec{Dataset: d.Name, From: origin, To: runs[0].to.Name, Flags: flags}, receive,
			"the target has the clone's origin, but not the clone")
		step.BaseGUID, step.ToGUID = p.sourceSnap[origin], runs[0].to.GUID
		out.Steps = append(out.Steps, step)
	} else {
		step := p.step(Full, d, zfs.SendSpec{Dataset: d.Name, To: runs[0].to.Name, Flags: flags}, receive,
			"the target does not have the dataset")
		step.ToGUID = runs[0].to.GUID
		out.Steps = append(out.Steps, step)
	}
	p.follow(d, out, runs[0].to, runs[1:], flags)
}

func (p *planner) step(kind Kind, _ *zfs.Dataset, send zfs.SendSpec, receive zfs.ReceiveSpec, why string) Step {
	return Step{Kind: kind, Send: send, Receive: receive, Why: why}
}

// follow appends the streams behind a base that the target has by then.
func (p *planner) follow(d *zfs.Dataset, out *Dataset, base zfs.Version, runs []run, flags zfs.StreamFlags) {
	for _, r := range runs {
		receive := zfs.ReceiveSpec{Target: out.Target}
		receive.Set, receive.Exclude = p.receiveProperties(d, flags, false)
		why := "the history behind " + base.Short()
		if len(r.through) == 0 {
			why = "the next snapshot behind " + base.Short()
		}
		step := p.step(Incremental, d, zfs.SendSpec{Dataset: d.Name, From: base.Short(), Through: r.through, To: r.to.Name, Flags: flags}, receive, why)
		step.BaseGUID, step.ToGUID = base.GUID, r.to.GUID
		out.Steps = append(out.Steps, step)
		base = r.to
	}
}

// parentMissing tells whether an ancestor of the target has to be created.
func (p *planner) parentMissing(out *Dataset) bool {
	parent := zfs.ParentOf(out.Target)
	if parent == "" || p.target[parent] != nil {
		return false
	}
	if out.Source != p.req.Source {
		return false // its parent is part of this plan, or was created for it
	}
	return !slices.ContainsFunc(p.state.Target.Ancestors, func(a *zfs.Dataset) bool { return a.Name == parent })
}

// extraTargets notes datasets below the target that the source has not.
func (p *planner) extraTargets() {
	if !p.req.Recursive {
		return
	}
	have := map[string]bool{}
	for _, d := range p.plan.Datasets {
		have[d.Target] = true
	}
	var extra []string
	for _, t := range p.state.Target.Datasets {
		if !have[t.Name] {
			extra = append(extra, t.Name)
		}
	}
	if len(extra) > 0 {
		p.note("left alone on the target, as the source has no such dataset: %s", strings.Join(extra, ", "))
	}
}
