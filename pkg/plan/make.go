package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/option"
	"zxfer/pkg/zfs"
)

// planner holds the state of one call of Make.
type planner struct {
	req        Request
	state      State
	targetRoot string
	plan       Plan

	source      map[string]*zfs.Dataset // including ancestors of the root, as in target
	target      map[string]*zfs.Dataset
	sourceSnap  map[string]uint64           // by full snapshot name
	targetSnap  map[uint64][]string         // full names on the target, by GUID
	byTarget    map[string]*Dataset         // planned so far
	sent        map[uint64]arrivingSnapshot // snapshots that the plan brings, by GUID
	clones      map[string][]*zfs.Dataset   // source clones by the dataset of their origin
	becomesRoot map[string]bool             // copies that become encryption roots
	notedWhole  bool                        // noted that receives cannot resume
	skipped     map[error][]skippedProperty // source properties that are not set, by reason
}

// arrivingSnapshot is a snapshot that the plan brings to the target.
type arrivingSnapshot struct {
	source string // dataset
	target string // full name
}

// Make plans a transfer. Plans with conflicts must not be carried out.
func Make(req Request, state State) Plan {
	p := &planner{
		req: req, state: state,
		plan:   Plan{Datasets: []*Dataset{}, Notes: []string{}},
		source: state.Source.ByName(), target: state.Target.ByName(),
		sourceSnap: map[string]uint64{}, targetSnap: map[uint64][]string{},
		byTarget: map[string]*Dataset{}, sent: map[uint64]arrivingSnapshot{}, becomesRoot: map[string]bool{}, clones: map[string][]*zfs.Dataset{}, skipped: map[error][]skippedProperty{},
	}
	p.req.created = state.SourceCreated
	var err error
	if p.targetRoot, err = TargetName(req.Source, req.Target); err != nil {
		p.conflict(BadName, req.Source, req.Target, fault.HintOf(err), "%s", err)
		return p.plan
	}
	p.index()
	if !p.checkTarget() || !p.checkProperties() {
		return p.plan
	}
	for _, d := range ordered(state.Source.Datasets) {
		p.dataset(d)
	}
	p.checkKeyDependents()
	for _, out := range p.plan.Datasets {
		p.planJoin(p.source[out.Source], out)
	}
	p.noteSkipped()
	p.noteExtra()
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

// dataset plans one source dataset.
func (p *planner) dataset(d *zfs.Dataset) {
	out := &Dataset{Source: d.Name, Target: targetOf(d.Name, p.req.Source, p.targetRoot), Type: d.Type, Steps: []Step{}}
	to, ok := p.arrivalSnapshot(d, out)
	if !ok {
		return
	}
	out.Arrive = to
	out.Encrypted = d.Encrypted() && !p.req.Decrypt
	p.planRestore(d, out)
	// If a conflict is found, the dataset remains in the plan, which is then not carried out.
	p.plan.Datasets = append(p.plan.Datasets, out)
	p.byTarget[out.Target] = out
	if p.checkNames(d, out) && p.checkBookmark(d, out) && p.checkSourceKey(d, out) {
		p.steps(d, out)
	}
	p.addNeeds(out)
	p.recordArrivals(d, out)
}

// arrivalSnapshot returns the final snapshot of a dataset. Descendants without one are skipped,
// as zfs send -R --skip-missing does.
func (p *planner) arrivalSnapshot(d *zfs.Dataset, out *Dataset) (zfs.Version, bool) {
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
		p.handleNoSnapshot(d, out, top)
	}
	return to, ok
}

func (p *planner) handleNoSnapshot(d *zfs.Dataset, out *Dataset, top bool) {
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
			has = finding.Some(near, maxEvidence)
		}
		hint := "name one of them"
		if !p.req.Restore {
			hint += ", or take a new one: " + option.Name("snapshot", p.req.Snapshot)
		}
		refuse(hint, "%s has no snapshot @%s; it has %s", source, p.req.Snapshot, has)
	case len(d.Snapshots()) > 0:
		refuse("", "%s has no snapshot of those that are to be sent ({{include-snaps}}); it has %s", source, listNames(d))
	case p.req.Restore:
		refuse("", "%s has no snapshot to restore", source)
	default:
		refuse("{{snapshot =}} takes one first", "%s has no snapshot to send", source)
	}
}

// checkNames refuses names that are too long or invalid on the target.
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
	if _, _, err := zfs.ParseSnapshot(out.Arrive.In(d.Name)); err != nil { // the snapshot is not taken yet
		p.conflict(BadName, d.Name, out.Target, "choose a shorter name", "%s cannot be taken: %s", p.onSource(out.Arrive.In(d.Name)), err)
		return false
	}
	return true
}

// checkBookmark refuses a bookmark that could not be created after the transfer.
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

// steps plans the streams of one dataset.
func (p *planner) steps(d *zfs.Dataset, out *Dataset) {
	t := p.target[out.Target]
	if t == nil {
		p.first(d, out)
		return
	}
	if t.Type != d.Type {
		hint := "name another target"
		if p.isKnownCopy(t) { // the source was recreated
			p.markDiverged(d, t)
			hint += "\n" + p.rotateHint(t.Name)
		}
		p.conflict(TypeMismatch, d.Name, out.Target, hint,
			"%s is a %s, and %s is a %s", p.onSource(d.Name), d.Type, p.onTarget(out.Target), t.Type)
		return
	}
	if v, ok := t.SnapshotOf(out.Arrive.GUID); ok {
		if p.req.Restore && !out.Restore.Due && (!p.planRestoreRollback(d, t, v, out) || out.Restore.Rollback != nil) {
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
	p.first(d, out) // discarding the state of a first receive removes the dataset
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

// first plans the transfer of a dataset that is new on the target.
func (p *planner) first(d *zfs.Dataset, out *Dataset) {
	if p.req.First == FirstFail && !p.req.RenamedBefore[out.Target] && !p.state.isRecreated(out.Target) {
		p.conflict(FirstRefused, d.Name, out.Target, "to begin it: {{first all}} with the oldest snapshot, or {{first newest}} with the newest",
			"%s does not have %s, and {{first fail}} begins no copy there", p.state.TargetHost, out.Target)
		return
	}
	place := p.parentEncryptionOf(out.Target)
	if !p.checkFeatures(d, out) || !p.checkParentKey(d, out, place) || !p.checkPromoted(d, out) {
		return
	}
	flags := p.newFlags(d)
	out.CreateParents = p.parentMissing(out.Target)
	receive := p.receiveSpec(out.Target)
	p.setNew(&receive, d, flags, place)
	runs := p.req.segments(d, 0, out.Arrive, true) // the oldest snapshot is a full send
	if p.req.First == FirstNewest {
		runs = []segment{{to: out.Arrive}}
	}
	step := Step{
		Kind: Full, Send: zfs.SendSpec{Dataset: d.Name, To: runs[0].to.Name, Flags: flags}, Receive: receive,
		Why: "the target does not have the dataset", ToGUID: runs[0].to.GUID,
	}
	if out.Aside = p.state.Aside[out.Target]; out.Aside != nil {
		step.Why = "the copy that is there is set aside"
	}
	if origin, counterpart, ok := p.origin(d, out); ok {
		step.Kind, step.BaseGUID = Clone, p.sourceSnap[origin]
		step.Send.From, step.Receive.Origin = origin, counterpart
		step.Why = "the target has the clone's origin, but not the clone"
	}
	step.Receive.Arrival = runs[0].arrival(step.BaseGUID, out)
	out.Steps = append(out.Steps, step)
	p.follow(d, out, runs[0].to, runs[1:], flags)
}

// follow appends incremental streams from a base that the target has by then.
func (p *planner) follow(d *zfs.Dataset, out *Dataset, base zfs.Version, runs []segment, flags zfs.StreamFlags) {
	for _, r := range runs {
		why := fmt.Sprintf("the %d snapshots behind %s in one stream", len(r.through)+1, base.Short())
		if len(r.through) == 0 {
			why = "the next snapshot behind " + base.Short()
		}
		receive := p.receiveSpec(out.Target)
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

// noteExtra notes target datasets that are missing or excluded on the source.
func (p *planner) noteExtra() {
	if !p.req.Recursive {
		return
	}
	var extra, unchosen []string
	for _, t := range p.state.Target.Datasets {
		source := p.req.Source + strings.TrimPrefix(t.Name, p.targetRoot)
		switch d := p.req.ExcludedDatasets[source]; {
		case p.source[source] != nil || p.req.UpToDate[source] || zfs.IsDiverged(t.Name):
		case d == nil:
			extra = append(extra, t.Name)
		case slices.ContainsFunc(t.Snapshots(), func(v zfs.Version) bool { _, ok := d.SnapshotOf(v.GUID); return ok }):
			unchosen = append(unchosen, t.Name)
		}
	}
	if len(unchosen) > 0 {
		p.note("left as they are, as their originals are not chosen: %s", finding.Some(unchosen, maxEvidence))
	}
	if len(extra) > 0 {
		p.note("left as they are, as the source has no such datasets: %s", finding.Some(extra, maxEvidence))
	}
}
