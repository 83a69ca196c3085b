package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/option"
	"zxfer/pkg/zfs"
)

// planner is the state of one Make.
type planner struct {
	req        Request
	state      State
	targetRoot string
	plan       Plan

	source     map[string]*zfs.Dataset // ancestors of the root included, as in target
	target     map[string]*zfs.Dataset
	sourceSnap map[string]uint64         // full snapshot name on the source to GUID
	targetSnap map[uint64][]string       // GUID of a snapshot to its full names on the target
	arriving   map[string]*Dataset       // what is planned so far, by target
	sent       map[uint64]arrival        // snapshots that the plan brings, by GUID
	clones     map[string][]*zfs.Dataset // of the source, by the dataset of their origin
	parted     map[string]bool           // copies that become encryption roots
	whole      bool                      // said that receives cannot resume
	left       map[error][]leaving       // properties of the source that are not set, by the reason
}

// arrival is a snapshot that the plan brings to the target.
type arrival struct {
	source string // the dataset
	target string // full name
}

// Make plans a transfer. A plan with conflicts is for showing only.
func Make(req Request, state State) Plan {
	p := &planner{
		req: req, state: state,
		plan:   Plan{Datasets: []*Dataset{}, Notes: []string{}},
		source: state.Source.ByName(), target: state.Target.ByName(),
		sourceSnap: map[string]uint64{}, targetSnap: map[uint64][]string{},
		arriving: map[string]*Dataset{}, sent: map[uint64]arrival{}, parted: map[string]bool{}, clones: map[string][]*zfs.Dataset{}, left: map[error][]leaving{},
	}
	p.req.created = state.SourceCreated
	var err error
	if p.targetRoot, err = TargetName(req.Source, req.Target); err != nil {
		p.conflict(BadName, req.Source, req.Target, fault.HintOf(err), "%s", err)
		return p.plan
	}
	p.index()
	if !p.checkPlace() || !p.checkProperties() {
		return p.plan
	}
	for _, d := range ordered(state.Source.Datasets) {
		p.dataset(d)
	}
	p.checkInheritors()
	for _, out := range p.plan.Datasets {
		p.joins(p.source[out.Source], out)
	}
	p.leftBehind()
	p.extraTargets()
	return p.plan
}

func (p *planner) index() {
	for _, d := range p.state.Target.Datasets {
		for _, v := range d.Snapshots() {
			p.targetSnap[v.GUID] = append(p.targetSnap[v.GUID], v.In(d.Name))
		}
	}
	for name, guid := range p.state.TargetOrigins {
		p.targetSnap[guid] = append(p.targetSnap[guid], name)
	}
	for _, d := range p.state.Source.Datasets {
		for _, v := range d.Snapshots() {
			p.sourceSnap[v.In(d.Name)] = v.GUID
		}
		if of := originDataset(d); of != "" {
			p.clones[of] = append(p.clones[of], d)
		}
	}
	maps.Copy(p.sourceSnap, p.state.SourceOrigins)
}

// checkPlace refuses a target that cannot be one, whatever it holds.
func (p *planner) checkPlace() bool {
	source, target := p.req.Source, p.targetRoot
	if p.state.SameHost && source == target {
		p.conflict(SameDataset, source, target, "name another target", "source and target are both %s", p.onSource(source))
		return false
	}
	if p.state.SameHost && p.req.Recursive && strings.HasPrefix(target, source+"/") {
		p.conflict(SameDataset, source, target, "name a target outside of "+source+", or leave {{recursive}} out",
			"target %s lies inside of %s, which is sent with all that is below it", p.onTarget(target), p.onSource(source))
		return false
	}
	for _, a := range p.state.Target.Ancestors {
		if a.Type == zfs.Volume {
			p.conflict(TypeMismatch, source, target, "name another target", "%s cannot be: %s is a volume", p.onTarget(target), a.Name)
			return false
		}
	}
	return true
}

// dataset plans one dataset.
func (p *planner) dataset(d *zfs.Dataset) {
	out := &Dataset{Source: d.Name, Target: targetOf(d.Name, p.req.Source, p.targetRoot), Type: d.Type, Steps: []Step{}}
	to, ok := p.arrival(d, out)
	if !ok {
		return
	}
	out.Arrive = to
	out.Encrypted = d.Encrypted() && !p.req.Decrypt
	p.giving(d, out)
	// Where a conflict comes up, the dataset stays in the plan as it is:
	// nothing of the plan is carried out then.
	p.plan.Datasets = append(p.plan.Datasets, out)
	p.arriving[out.Target] = out
	if p.checkNames(d, out) && p.checkBookmark(d, out) && p.checkSourceKey(d, out) {
		p.steps(d, out)
	}
	p.needs(out)
	p.remember(d, out)
}

// arrival returns the snapshot to arrive at. A dataset below the one asked
// for is skipped where it has none, as by zfs send -R --skip-missing.
func (p *planner) arrival(d *zfs.Dataset, out *Dataset) (zfs.Version, bool) {
	top := d.Name == p.req.Source
	if d.Inconsistent() {
		if top {
			p.conflict(HalfReceived, d.Name, out.Target, "let what sends or restores it end first, by the same command where it was interrupted",
				"%s is itself only half received", p.onSource(d.Name))
		} else {
			p.note("%s is skipped: it is itself only half received", d.Name)
		}
		return zfs.Version{}, false
	}
	to, ok := p.req.arrival(d)
	if !ok {
		p.noArrival(d, out, top)
	}
	return to, ok
}

func (p *planner) noArrival(d *zfs.Dataset, out *Dataset, top bool) {
	refuse := func(hint, format string, args ...any) {
		p.conflict(NoSnapshot, d.Name, out.Target, hint, format, args...)
	}
	source := p.onSource(d.Name)
	switch {
	case !top && p.req.Snapshot != "":
		p.note("%s is skipped: it has no snapshot @%s", d.Name, p.req.Snapshot)
	case !top && p.req.Restore:
		p.note("%s is skipped: it has no snapshot to restore", d.Name)
	case !top:
		p.note("%s is skipped: it has no snapshot to send", d.Name)
	case p.req.Snapshot != "":
		has := "no snapshot at all"
		if near := nearest(d, p.req.Snapshot); len(near) > 0 {
			has = finding.Some(near, evidence)
		}
		hint := "name one of them"
		if !p.req.Restore {
			hint += ", or take a new one: " + option.Name("snapshot", p.req.Snapshot)
		}
		refuse(hint, "%s has no snapshot @%s; it has %s", source, p.req.Snapshot, has)
	case len(d.Snapshots()) > 0:
		refuse("", "%s has no snapshot of those that are to be sent ({{include-snaps}}); it has %s", source, quoteNames(d))
	case p.req.Restore:
		refuse("", "%s has no snapshot to restore", source)
	default:
		refuse("{{snapshot =}} takes one first", "%s has no snapshot to send", source)
	}
}

// checkNames refuses names that the target cannot have.
func (p *planner) checkNames(d *zfs.Dataset, out *Dataset) bool {
	longest := out.Arrive.Name
	for _, v := range p.req.carried(d, out.Arrive) {
		if len(v.Name) > len(longest) {
			longest = v.Name
		}
	}
	if _, _, err := zfs.ParseSnapshot(out.Target + "@" + longest); err != nil {
		p.conflict(BadName, d.Name, out.Target, "name a target that is shorter", "%s cannot arrive: %s", p.onSource(d.Name), err)
		return false
	}
	if _, _, err := zfs.ParseSnapshot(out.Arrive.In(d.Name)); err != nil { // it is still to be taken
		p.conflict(BadName, d.Name, out.Target, "choose a shorter name", "%s cannot be taken: %s", p.onSource(out.Arrive.In(d.Name)), err)
		return false
	}
	return true
}

// checkBookmark refuses a bookmark that cannot be made once all has arrived.
func (p *planner) checkBookmark(d *zfs.Dataset, out *Dataset) bool {
	if !p.req.Bookmark {
		return true
	}
	pool, feature := &p.state.Source.Pool, "bookmarks"
	if d.Encrypted() {
		feature = "bookmark_v2"
	}
	if pool.Features[feature] == "disabled" {
		p.conflict(FeatureMissing, d.Name, out.Target, pool.Enabling("on "+p.state.SourceHost, feature),
			"{{bookmark}}: pool %s lacks the feature %s", p.onSource(pool.Name), feature)
		return false
	}
	for _, v := range d.Versions {
		if v.Kind == zfs.Bookmark && v.Name == out.Arrive.Name && v.GUID != out.Arrive.GUID {
			p.conflict(NameTaken, d.Name, out.Target, "remove it, if nothing needs it as a base: "+command("zfs", "destroy", v.In(d.Name)),
				"{{bookmark}}: %s is there already, of another snapshot", p.onSource(v.In(d.Name)))
			return false
		}
	}
	return true
}

func (p *planner) checkSourceKey(d *zfs.Dataset, out *Dataset) bool {
	if !p.req.Decrypt || !d.Encrypted() || d.KeyLoaded() {
		return true
	}
	p.conflict(KeyNotLoaded, d.Name, out.Target,
		"load it there: "+command("zfs", "load-key", encryptionRoot(d))+"\nwithout {{decrypt}} it is sent raw, which needs no key",
		"%s cannot be sent decrypted: its key is not loaded", p.onSource(d.Name))
	return false
}

func encryptionRoot(d *zfs.Dataset) string { return cmp.Or(d.Get("encryptionroot"), d.Name) }

// steps decides how the dataset gets to its arrival.
func (p *planner) steps(d *zfs.Dataset, out *Dataset) {
	t := p.target[out.Target]
	if t == nil {
		p.first(d, out)
		return
	}
	if t.Type != d.Type {
		hint := "name another target"
		if p.copied(t) { // the source was created anew
			p.stray(d, t)
			hint += "\n" + p.rotateHint(t.Name)
		}
		p.conflict(TypeMismatch, d.Name, out.Target, hint,
			"%s is a %s, and %s is a %s", p.onSource(d.Name), d.Type, p.onTarget(out.Target), t.Type)
		return
	}
	if v, ok := t.SnapshotOf(out.Arrive.GUID); ok {
		if p.req.Restore && !out.Restore.Due && (!p.goBack(d, t, v, out) || out.Restore.Rollback != nil) {
			return
		}
		p.upToDate(t, v, out)
		return
	}
	if t.ResumeToken() != "" && p.resume(d, t, out) {
		return
	}
	if !t.Inconsistent() {
		p.increment(d, t, out)
		return
	}
	if out.Discard == "" {
		p.conflict(HalfReceived, d.Name, out.Target,
			"wait for that receive to end; if none runs, remove what it left: "+command("zfs", "destroy", out.Target),
			"%s is being received by a command whose stream cannot be resumed", p.onTarget(out.Target))
		return
	}
	p.first(d, out) // dropping the state of a first receive removes the dataset
}

func (p *planner) upToDate(t *zfs.Dataset, at zfs.Version, out *Dataset) {
	if latest, _ := t.Latest(); latest.GUID != at.GUID {
		p.note("%s is ahead: it has @%s and newer snapshots, up to @%s", p.onTarget(t.Name), at.Name, latest.Name)
	}
	switch {
	case t.ResumeToken() == "":
	case p.req.NoResume:
		out.Discard = "asked for by {{no-resume}}"
	default:
		p.note("%s keeps the state of an interrupted receive, which nothing here needs", p.onTarget(t.Name))
	}
}

// first plans the transfer of a dataset that the target does not have.
func (p *planner) first(d *zfs.Dataset, out *Dataset) {
	if p.req.First == FirstFail && !p.req.Again[out.Target] && !p.state.isRecreated(out.Target) {
		p.conflict(FirstRefused, d.Name, out.Target, "to begin it: {{first all}} with the oldest snapshot, or {{first newest}} with the newest",
			"%s does not have %s, and {{first fail}} begins no copy there", p.state.TargetHost, out.Target)
		return
	}
	place := p.placeOf(out.Target)
	if !p.checkFeatures(d, out) || !p.checkPlaceKey(d, out, place) || !p.checkPromoted(d, out) {
		return
	}
	flags := p.choose(d)
	out.CreateParents = p.parentMissing(out.Target)
	receive := p.receive(out.Target)
	p.setNew(&receive, d, flags, place)
	runs := p.req.runs(d, 0, out.Arrive, true) // the oldest snapshot goes alone, in full
	if p.req.First == FirstNewest {
		runs = []run{{to: out.Arrive}}
	}
	step := Step{
		Kind: Full, Send: zfs.SendSpec{Dataset: d.Name, To: runs[0].to.Name, Flags: flags}, Receive: receive,
		Why: "the target does not have the dataset", ToGUID: runs[0].to.GUID,
	}
	if out.Aside = p.state.Aside[out.Target]; out.Aside != nil {
		step.Why = "the copy that is there is set aside"
	}
	if origin, there, ok := p.origin(d, out); ok {
		step.Kind, step.BaseGUID = Clone, p.sourceSnap[origin]
		step.Send.From, step.Receive.Origin = origin, there
		step.Why = "the target has the clone's origin, but not the clone"
	}
	step.Receive.Arrival = runs[0].arrival(step.BaseGUID, out)
	out.Steps = append(out.Steps, step)
	p.follow(d, out, runs[0].to, runs[1:], flags)
}

// follow appends the streams behind a base that the target has by then.
func (p *planner) follow(d *zfs.Dataset, out *Dataset, base zfs.Version, runs []run, flags zfs.StreamFlags) {
	for _, r := range runs {
		why := fmt.Sprintf("the %d snapshots behind %s in one stream", len(r.through)+1, base.Short())
		if len(r.through) == 0 {
			why = "the next snapshot behind " + base.Short()
		}
		receive := p.receive(out.Target)
		receive.Arrival = r.arrival(base.GUID, out)
		out.Steps = append(out.Steps, Step{
			Kind:    Incremental,
			Send:    zfs.SendSpec{Dataset: d.Name, From: base.Short(), Through: r.names(), To: r.to.Name, Flags: flags},
			Receive: receive,
			Why:     why, BaseGUID: base.GUID, ToGUID: r.to.GUID,
		})
		base = r.to
	}
}

// extraTargets notes datasets below the target that the source has not, and copies of
// what is not chosen any more.
func (p *planner) extraTargets() {
	if !p.req.Recursive {
		return
	}
	var extra, unchosen []string
	for _, t := range p.state.Target.Datasets {
		source := p.req.Source + strings.TrimPrefix(t.Name, p.targetRoot)
		switch d := p.req.Unchosen[source]; {
		case p.source[source] != nil || p.req.Idle[source] || zfs.IsDiverged(t.Name):
		case d == nil:
			extra = append(extra, t.Name)
		case slices.ContainsFunc(t.Snapshots(), func(v zfs.Version) bool { _, ok := d.SnapshotOf(v.GUID); return ok }):
			unchosen = append(unchosen, t.Name)
		}
	}
	if len(unchosen) > 0 {
		p.note("left as they are, as their originals are not chosen: %s", finding.Some(unchosen, evidence))
	}
	if len(extra) > 0 {
		p.note("left as they are, as the source has no such datasets: %s", finding.Some(extra, evidence))
	}
}
