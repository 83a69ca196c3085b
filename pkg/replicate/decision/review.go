package decision

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/zfs"
)

// Conflicts that the planner cannot find, because they need the state of earlier runs or all
// datasets.
const (
	Renamed   = "renamed"   // source dataset was renamed; the target has the old name
	Recreated = "recreated" // source dataset was recreated under the same name
)

// Review completes the plan of a transfer to a target: it explains conflicts with the job's state
// and adds conflicts that the planner cannot find. It changes no dataset; hints name the commands.
// It returns additional notes.
func (v *Survey) Review(t *replicate.Target, p *plan.Plan, st *plan.State) (news []string) {
	sources := st.Source.ByName()
	for i := range p.Conflicts {
		c := &p.Conflicts[i]
		v.recreated(t, c, sources[c.Source], st)
		ends := remedy.Command(endpoint.Endpoint{Host: st.SourceAt.Name, Name: c.Source}.String(), endpoint.Endpoint{Host: st.TargetAt.Name, Name: c.Target}.String())
		c.Summary, c.Remedy = replicate.Keys(c.Summary), replicate.KeysOf(c.Remedy, ends)
	}
	for i, note := range p.Notes {
		p.Notes[i] = replicate.Keys(note)
	}
	orphans := v.orphans(t, st)
	renamed := func(from, to string, now *zfs.Dataset) (finding.Finding, bool) {
		c, ok := renamed(from, to, now, st, orphans)
		if ok {
			v.explainRename(t, &c)
		}
		return c, ok
	}
	for i := range p.Conflicts {
		c := &p.Conflicts[i]
		if c.ID != plan.FirstRefused && v.refusedRename(t, c.Source) == nil {
			continue
		}
		if r, ok := renamed(c.Source, c.Target, sources[c.Source]); ok {
			*c = r
		}
	}
	for _, d := range p.Datasets {
		now := sources[d.Source]
		if len(d.Steps) > 0 && (d.Steps[0].Kind == plan.Full || d.Steps[0].Kind == plan.Clone) {
			if c, ok := renamed(d.Source, d.Target, now); ok {
				p.Refuse(c)
				continue
			}
		}
		if d.NewKey != "" {
			news = append(news, d.NewKey)
		}
		known := v.State.Datasets[d.Source]
		if known == nil || now == nil || known.EncryptionRoot == "" || known.GUID != now.GUID {
			continue
		}
		if root := now.Get("encryptionroot"); root != known.EncryptionRoot { // a raw send replicates the change
			news = append(news, fmt.Sprintf("the encryption root of %s changed from %s to %s: new snapshots need the new key",
				qualifiedName(st.SourceHost, d.Source), known.EncryptionRoot, cmp.Or(root, "none")))
		}
	}
	return news
}

// recreated changes a conflict about missing common snapshots if the source dataset was recreated.
func (v *Survey) recreated(t *replicate.Target, c *finding.Finding, now *zfs.Dataset, st *plan.State) {
	known := v.State.Datasets[c.Source]
	if c.ID != plan.NoCommon || known == nil || now == nil || known.GUID == 0 || known.GUID == now.GUID {
		return
	}
	when := ""
	if a := known.Targets[t.Name]; a != nil && !a.Success.IsZero() {
		when = " since " + a.Success.UTC().Format("2006-01-02 15:04 UTC")
	}
	c.ID = Recreated
	c.Summary = fmt.Sprintf("%s was deleted and recreated%s (old GUID %d, new GUID %d): %s has the old one",
		qualifiedName(st.SourceHost, c.Source), when, known.GUID, now.GUID, qualifiedName(st.TargetHost, c.Target))
	c.Remedy = "rename the old copy, so that the new dataset is sent in full: " +
		st.TargetAt.Command("zfs", "rename", c.Target, c.Target+"-"+v.Started.Format("20060102")) +
		"\nor destroy it: " + st.TargetAt.Command("zfs", "destroy", "-r", c.Target)
	if t.OnDivergence != "rotate" {
		c.Remedy += "\nto rename old copies automatically: {{rotate}}"
	}
}

// orphans returns the datasets of the target whose name has no dataset on the source, by GUID of
// their snapshots.
func (v *Survey) orphans(t *replicate.Target, st *plan.State) map[uint64]string {
	named := map[string]bool{}
	for _, d := range v.All {
		named[t.CopyOf(v.Root, d.Name)] = true
	}
	out := map[uint64]string{}
	for _, d := range st.Target.Datasets {
		if named[d.Name] || zfs.IsDiverged(d.Name) {
			continue
		}
		for _, have := range d.Snapshots() {
			out[have.GUID] = d.Name
		}
	}
	return out
}

// renamed returns a conflict if a dataset would be sent in full although the target has its
// snapshots under another name.
func renamed(from, to string, source *zfs.Dataset, st *plan.State, orphans map[uint64]string) (c finding.Finding, ok bool) {
	if source == nil {
		return c, false
	}
	for _, v := range slices.Backward(source.Snapshots()) {
		old := orphans[v.GUID]
		if old == "" {
			continue
		}
		return finding.Finding{
			ID: Renamed, Source: from, Target: to,
			Summary: fmt.Sprintf("%s was renamed: %s still has its snapshots up to @%s under the old name %s",
				qualifiedName(st.SourceHost, from), st.TargetHost, v.Name, old),
			Remedy: "rename the copy too: " + st.TargetAt.Command("zfs", "rename", old, to) +
				"\nor destroy the old copy, so that the dataset is sent in full: " + st.TargetAt.Command("zfs", "destroy", "-r", old),
		}, true
	}
	return c, false
}

// explainRename adds to a conflict why the copy was not renamed, and what to do.
func (v *Survey) explainRename(t *replicate.Target, c *finding.Finding) {
	if r := v.refusedRename(t, c.Source); r != nil {
		c.Summary, c.Remedy = c.Summary+": "+r.Refused, r.Hint+"\n"+c.Remedy
	}
	if !t.FollowsRenames() {
		_, err := decide.NextRename(decide.CopyOutdated, decide.RenameUnwanted, &decide.RenameFacts{})
		c.Remedy += "\n" + fault.HintOf(err)
	}
}

// refusedRename returns the copy of a renamed source dataset if it keeps its former name, else nil.
func (v *Survey) refusedRename(t *replicate.Target, source string) *CopyRename {
	if r := v.Renames[t.Name]; r != nil {
		for _, of := range r.Copies {
			if of.Source == source && of.Refused != "" {
				return of
			}
		}
	}
	return nil
}

func qualifiedName(host, name string) string { return host + ":" + name }

// maxDiverged limits the diverged copies of a dataset. If it diverges more often, renaming does not
// solve the cause (for example two sources of one copy) and would fill the pool.
const maxDiverged = 3

// AllowRename makes a request rename diverged copies, if the target is configured for that.
func (v *Survey) AllowRename(t *replicate.Target, r *plan.Request) {
	v.addRenamed(t, r)
	if t.OnDivergence != "rotate" {
		return
	}
	r.Rotate, r.Copies, r.RenameLimited = zfs.DivergedSuffix(v.Started), map[string]bool{}, map[string]bool{}
	for source, known := range v.State.Datasets {
		if a := known.Targets[t.Name]; a != nil && (a.BaseGUID != 0 || len(a.Held) > 0) {
			r.Copies[t.CopyOf(v.Root, source)] = true
		}
	}
	for _, g := range v.State.OrphansAt(t.Name) { // the source may have a new dataset with that name
		r.Copies[g.Dataset] = true
	}
	r.Owned = maps.Clone(r.Copies)
	sent := v.UnchangedAt(t.Name)
	for _, d := range v.DatasetsFor(t.Name) {
		sent = append(sent, d.Name)
	}
	for _, source := range sent { // also the parents, which no run sent
		for name := t.CopyOf(v.Root, source); name != "" && !r.Owned[name]; name = zfs.ParentOf(name) {
			r.Owned[name] = true
		}
	}
	times := map[string]int{}
	for _, a := range v.State.Diverged {
		if a.Target == t.Name {
			times[a.Dataset]++
			r.RenameLimited[a.Dataset] = times[a.Dataset] >= maxDiverged
		}
	}
}

// addRenamed adds the copies that were renamed and not yet replaced to a request.
func (v *Survey) addRenamed(t *replicate.Target, r *plan.Request) {
	r.RenamedBefore = map[string]bool{}
	for _, d := range v.DatasetsFor(t.Name) {
		copied, arrived := t.CopyOf(v.Root, d.Name), time.Time{}
		if known := v.State.Datasets[d.Name]; known != nil && known.Targets[t.Name] != nil {
			arrived = known.Targets[t.Name].Success
		}
		for _, a := range v.State.Diverged {
			along := strings.HasPrefix(copied, a.Dataset+"/") && !arrived.IsZero() // newer datasets were not renamed
			if a.Target == t.Name && (along || copied == a.Dataset) && arrived.Before(a.Since) {
				r.RenamedBefore[copied] = true
			}
		}
	}
}

// AddExcluded adds the source datasets that the target does not get to a request.
func (v *Survey) AddExcluded(t *replicate.Target, r *plan.Request) {
	r.ExcludedDatasets, r.UpToDate = map[string]*zfs.Dataset{}, map[string]bool{}
	for _, d := range v.All {
		r.ExcludedDatasets[d.Name] = d
	}
	for _, d := range v.DatasetsFor(t.Name) {
		delete(r.ExcludedDatasets, d.Name)
	}
	for _, name := range v.UnchangedAt(t.Name) {
		delete(r.ExcludedDatasets, name)
		r.UpToDate[name] = true
	}
}

// RenamedWithParent reports whether this run renamed the copy of a dataset together with a parent.
func (v *Survey) RenamedWithParent(t *replicate.Target, source string) bool {
	return slices.ContainsFunc(v.State.Diverged, func(a replicate.DivergedCopy) bool {
		return a.Target == t.Name && a.Since.Equal(v.Started) && strings.HasPrefix(t.CopyOf(v.Root, source), a.Dataset+"/")
	})
}
