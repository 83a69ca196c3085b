package plan

import (
	"fmt"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// planner holds the parts of one call of Make. Each part answers one question.
type planner struct {
	*findings // also the survey
	*arrivals
	destination destination // Where does it arrive?
	bases       bases       // From which snapshot does a stream start?
	losses      losses      // What does the target lose?
	keys        *keys       // Which keys open the copy?
	chains      *chains     // Which flags continue the chain?
	properties  *properties // Which properties are set?
	restores    restores    // What does a restore do after the streams?
	directions  directions  // Did the direction change?
}

// Make plans a transfer. Plans with conflicts must not be carried out.
func Make(req Request, state State) Plan {
	made := Plan{Datasets: []*Dataset{}, Notes: []string{}}
	targetRoot, err := TargetName(req.Source, req.Target)
	p := newPlanner(newView(req, state, targetRoot), &made)
	if err != nil {
		p.conflict(BadName, req.Source, req.Target, fault.HintOf(err), "%s", err)
		return made
	}
	if !p.destination.check() || !p.properties.check() {
		return made
	}
	for _, d := range ordered(state.Source.Datasets) {
		p.dataset(d)
	}
	p.keys.checkDependents()
	p.keys.planJoins()
	p.properties.noteSkipped()
	p.destination.noteExtra()
	return made
}

func newPlanner(v *view, made *Plan) *planner {
	f := &findings{view: v, plan: made}
	a := &arrivals{byTarget: map[string]*Dataset{}, sent: map[uint64]arrivingSnapshot{}}
	k := &keys{findings: f, arrivals: a, becomesRoot: map[string]bool{}}
	return &planner{
		findings: f, arrivals: a,
		destination: destination{f, a}, bases: bases{f, a}, losses: losses{f}, keys: k, chains: &chains{findings: f},
		properties: &properties{findings: f, access: zfs.NewAccessGaps(v.target), skipped: map[error][]skippedProperty{}}, restores: restores{f, a, k}, directions: directions{f, a},
	}
}

// dataset plans one source dataset.
func (p *planner) dataset(d *zfs.Dataset) {
	out := &Dataset{Source: d.Name, Target: targetOf(d.Name, p.req.Source, p.targetRoot), Type: d.Type, Steps: []Step{}}
	to, ok := p.arrivalSnapshot(d, out)
	if !ok {
		return
	}
	out.Final, out.Encrypted = to, p.raw(d)
	out.Restore = p.restores.actions(d, out)
	// If a conflict is found, the dataset remains in the plan, which is then not carried out.
	p.plan.Datasets = append(p.plan.Datasets, out)
	p.byTarget[out.Target] = out
	if p.destination.checkRole(d, out) && p.destination.checkNames(d, out) && p.bases.checkBookmark(d, out) && p.keys.checkSource(d, out) {
		p.steps(d, out)
	}
	addNeeds(p.view, p.arrivals, out)
	p.arrivals.record(d, out)
}

// steps plans the streams of one dataset.
func (p *planner) steps(d *zfs.Dataset, out *Dataset) {
	t := p.target[out.Target]
	var at zfs.Version
	arrived := false
	if t != nil {
		at, arrived = t.SnapshotOf(out.Final.GUID)
	}
	switch {
	case t == nil:
		p.first(d, out)
	case t.Type != d.Type:
		p.conflict(TypeMismatch, d.Name, out.Target, p.offerRotate(d, t, "name another target"), // a copy's source was recreated
			"%s is a %s, and %s is a %s", p.onSource(d.Name), d.Type, p.onTarget(out.Target), t.Type)
	case arrived:
		if !p.req.Restore || out.Restore.Due || p.losses.planRollback(d, t, at, out) && !out.RollsBack() {
			p.upToDate(d, t, at, out)
		}
	case t.ResumeToken() != "" && p.resume(d, t, out):
	case !t.Inconsistent():
		p.increment(d, t, out)
	case out.Discard == "":
		p.conflict(HalfReceived, d.Name, out.Target,
			"wait until that receive ends; if it no longer runs, destroy its state: "+p.state.TargetAt.Command("zfs", "destroy", out.Target),
			"%s is being received by a command whose stream cannot be resumed", p.onTarget(out.Target))
	default:
		p.first(d, out) // discarding the state of a first receive removes the dataset
	}
}

func (p *planner) upToDate(d, t *zfs.Dataset, at zfs.Version, out *Dataset) {
	p.properties.setLacking(d, out)
	if latest, _ := t.Latest(); latest.GUID != at.GUID {
		p.note("%s is ahead: it has @%s and newer snapshots, up to @%s", p.onTarget(t.Name), at.Name, latest.Name)
	}
	switch {
	case t.ResumeToken() == "":
	case p.req.NoResume:
		out.Discard = "requested by {{no-resume}}"
	default:
		p.note("%s has the state of an interrupted receive, which zxfer does not need", p.onTarget(t.Name))
	}
}

// first plans the transfer of a dataset that is new on the target.
func (p *planner) first(d *zfs.Dataset, out *Dataset) {
	if p.req.First == FirstFail && !p.req.RenamedBefore[out.Target] && !p.state.isRecreated(out.Target) {
		p.conflict(FirstRefused, d.Name, out.Target, "to send all snapshots, add {{first all}}\nto send only the most recent one, add {{first newest}}",
			"%s does not have %s, and {{first fail}} forbids a new copy there", p.state.TargetHost, out.Target)
		return
	}
	place := p.keys.encryptionAbove(out.Target)
	if !p.chains.checkFeatures(d, out) || !p.keys.checkParent(d, out, place) || !p.bases.checkPromoted(d, out) {
		return
	}
	flags := p.chains.newFlags(d)
	out.CreateParents = p.destination.parentMissing(out.Target)
	receive := p.chains.receiveSpec(out.Target)
	p.properties.setNew(&receive, d, flags, place, out)
	runs := p.req.segments(d, 0, out.Final, true) // the oldest snapshot is a full send
	if p.req.First == FirstNewest {
		runs = []segment{{to: out.Final}}
	}
	step := Step{
		Kind: Full, Send: zfs.SendSpec{Dataset: d.Name, To: runs[0].to.Name, Flags: flags}, Receive: receive,
		Why: "the target does not have the dataset", ToGUID: runs[0].to.GUID,
	}
	if out.Rename = p.state.Renames[out.Target]; out.Rename != nil {
		step.Why = "the existing copy is renamed"
	}
	if origin, counterpart, ok := p.bases.origin(d, out); ok {
		step.Kind, step.BaseGUID = Clone, p.sourceSnap[origin]
		step.Send.From, step.Receive.Origin = origin, counterpart
		step.Why = "the target has the clone's origin, but not the clone"
	}
	step.Receive.Arrival = runs[0].arrival(step.BaseGUID, out)
	out.Steps = append(out.Steps, step)
	if step.Kind == Clone {
		p.directions.planClone(step.Send.From, step.Receive.Origin, step.BaseGUID, out)
	}
	p.follow(d, out, runs[0].to, runs[1:], flags)
}

// increment plans incremental sends to an existing dataset.
func (p *planner) increment(d, t *zfs.Dataset, out *Dataset) {
	base, counterpart, ok := common(d, t, out.Final)
	if !ok {
		p.bases.refuseNoCommon(d, t, out)
		return
	}
	if !p.losses.acceptsIncrement(d, t, out, counterpart) || !p.acceptsStream(d, t, out) || !p.losses.checkMounted(d, t, out) {
		return
	}
	flags := p.chains.continuedFlags(d, t)
	p.follow(d, out, base, p.req.segments(d, base.CreateTXG, out.Final, base.Kind == zfs.Bookmark), flags)
	if !p.losses.checkNamesFree(d, t, out, counterpart.CreateTXG) {
		return
	}
	arrives := out.arriving()
	for _, v := range out.newer {
		if arrives[v.Name] {
			out.DestroyedFirst = append(out.DestroyedFirst, v.In(t.Name))
		}
	}
	if d.Encrypted() && t.Encrypted() {
		out.ivBase = &ivBase{source: base.In(d.Name), target: counterpart.In(t.Name), guid: base.GUID, raw: p.raw(d)}
	}
	first := &out.Steps[0]
	if p.req.Restore && len(out.Loses) > 0 {
		p.note("%s: if its first stream is interrupted, the same command restarts that stream", p.onTarget(t.Name))
	}
	p.properties.setChanged(&first.Receive, d, out)
	p.directions.plan(d, t, out, base, counterpart)
	p.properties.setLacking(d, out)
	if len(out.Loses) > 0 {
		first.Receive.Rollback = true
		out.Loses = append(out.Loses, "snapshots taken of "+t.Name+" until the stream is received")
	}
	first.Why = fmt.Sprintf("@%s is the most recent common snapshot", counterpart.Name)
	if base.Kind == zfs.Bookmark {
		first.Why = fmt.Sprintf("the bookmark %s stands for @%s, the target's most recent common snapshot", base.Short(), counterpart.Name)
	}
}

// acceptsStream refuses a stream that the existing target cannot receive, or whose data nothing
// could read afterwards.
func (p *planner) acceptsStream(d, t *zfs.Dataset, out *Dataset) bool {
	return p.chains.checkSame(d, t, out) && (p.raw(d) || !t.Encrypted() || p.keys.checkTarget(d, out, t)) &&
		p.keys.checkRoot(d, t, out) && p.chains.checkFeatures(d, out)
}

// follow appends incremental streams from a base that the target has by then.
func (p *planner) follow(d *zfs.Dataset, out *Dataset, base zfs.Version, runs []segment, flags zfs.StreamFlags) {
	for _, r := range runs {
		why := fmt.Sprintf("the %d snapshots after %s in one stream", len(r.through)+1, base.Short())
		if len(r.through) == 0 {
			why = "the next snapshot after " + base.Short()
		}
		receive := p.chains.receiveSpec(out.Target)
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
