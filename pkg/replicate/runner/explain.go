package runner

import (
	"context"
	"fmt"
	"slices"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// Conflicts that a single transfer cannot know of: they need the memory of
// earlier runs, or a look at all datasets at once.
const (
	Renamed   = "renamed"   // the source dataset, and the target still has the old name
	Recreated = "recreated" // another dataset of the same name
)

// review explains what the planner can only state, and refuses what it cannot
// see. Nothing of it is mended here: every hint names the commands that would.
func (w *work) review(t *targetWork, p *plan.Plan, st plan.State) {
	w.shared.Lock()
	defer w.shared.Unlock()
	for i := range p.Conflicts {
		c := &p.Conflicts[i]
		w.recreated(t, c, st)
		c.Summary, c.Remedy = replicate.Keys(c.Summary), replicate.Keys(c.Remedy)
	}
	for i, note := range p.Notes {
		p.Notes[i] = replicate.Keys(note)
	}
	orphans := orphansOf(t, w.source.Name, &st, w.all)
	for _, d := range p.Datasets {
		if c, ok := renamed(d, &st, orphans); ok {
			p.Refuse(c)
			continue
		}
		if d.NewKey != "" {
			w.Log(w.job.Name + ": " + d.NewKey)
		}
		w.rootChanged(d, &st)
	}
}

// orphansOf finds the datasets of the target that hold the snapshots of the
// source but whose name no dataset of the source has: by snapshot GUID.
func orphansOf(t *targetWork, root string, st *plan.State, all zfs.Listing) map[uint64]string {
	named := map[string]bool{}
	for _, d := range all.Datasets {
		named[t.CopyOf(root, d.Name)] = true
	}
	out := map[uint64]string{}
	for _, d := range st.Target.Datasets {
		if named[d.Name] {
			continue
		}
		for _, v := range d.Snapshots() {
			out[v.GUID] = d.Name
		}
	}
	return out
}

// renamed finds a dataset that would be sent in full although the target has
// its history under another name.
func renamed(d *plan.Dataset, st *plan.State, orphans map[uint64]string) (c finding.Finding, ok bool) {
	if len(d.Steps) == 0 || d.Steps[0].Kind != plan.Full && d.Steps[0].Kind != plan.Clone {
		return c, false
	}
	source := st.Source.Find(d.Source)
	if source == nil {
		return c, false
	}
	for _, v := range slices.Backward(source.Snapshots()) {
		old := orphans[v.GUID]
		if old == "" {
			continue
		}
		return finding.Finding{
			ID: Renamed, Source: d.Source, Target: d.Target,
			Summary: fmt.Sprintf("%s was renamed: %s still has its snapshots up to @%s under the old name %s",
				on(st.SourceHost, d.Source), st.TargetHost, v.Name, old),
			Remedy: "rename it there too: " + zfs.CommandLine([]string{"zfs", "rename", old, d.Target}) +
				"\nor give the old copy up, and the dataset is sent in full: " + zfs.CommandLine([]string{"zfs", "destroy", "-r", old}),
		}, true
	}
	return c, false
}

// recreated says so where a dataset has nothing in common with its copy
// because it is another one of the same name.
func (w *work) recreated(t *targetWork, c *finding.Finding, st plan.State) {
	if c.ID != plan.NoCommon {
		return
	}
	known, now := w.state.Datasets[c.Source], st.Source.Find(c.Source)
	if known == nil || now == nil || known.GUID == 0 || known.GUID == now.GUID {
		return
	}
	when := ""
	if a := known.Targets[t.Name]; a != nil && !a.Success.IsZero() {
		when = " since " + a.Success.UTC().Format("2006-01-02 15:04 UTC")
	}
	c.ID = Recreated
	c.Summary = fmt.Sprintf("%s was deleted and created anew%s (its GUID was %d, it is %d): %s holds the old one",
		on(st.SourceHost, c.Source), when, known.GUID, now.GUID, on(st.TargetHost, c.Target))
	c.Remedy = "keep the old copy under another name, and the new dataset is sent in full: " +
		zfs.CommandLine([]string{"zfs", "rename", c.Target, c.Target + "-" + w.run.Started.Format("20060102")}) +
		"\nor give it up: " + zfs.CommandLine([]string{"zfs", "destroy", "-r", c.Target})
}

// rootChanged tells of a source whose encryption root is another one than at
// the last run; a raw send takes the change along.
func (w *work) rootChanged(d *plan.Dataset, st *plan.State) {
	known, now := w.state.Datasets[d.Source], st.Source.Find(d.Source)
	if known == nil || now == nil || known.EncryptionRoot == "" || known.GUID != now.GUID {
		return
	}
	if root := now.Get("encryptionroot"); root != known.EncryptionRoot {
		w.Log(fmt.Sprintf("%s: the encryption root of %s changed from %s to %s: what arrives from now on needs the new key",
			w.job.Name, on(st.SourceHost, d.Source), known.EncryptionRoot, or(root, "none")))
	}
}

// missingSource says what became of a source dataset that is not there.
func (w *work) missingSource(ctx context.Context) error {
	source := on(label(w.source.Host), w.source.Name)
	known := w.state.Datasets[w.source.Name]
	if known == nil || known.GUID == 0 {
		return fault.Refusef("list what there is: zfs list -r "+zfs.PoolOf(w.source.Name), "%s: no such dataset", source)
	}
	var pool zfs.Listing
	err := w.onSource(ctx, func(st site.Site) (err error) {
		pool, err = st.List(ctx, site.ListQuery{Dataset: zfs.PoolOf(w.source.Name), Recursive: true})
		return err
	})
	if err != nil {
		return err
	}
	for _, d := range pool.Datasets {
		if d.GUID == known.GUID {
			return fault.Refusef(fmt.Sprintf("write source = %q into the job file, and rename the copies: zfs rename OLD NEW on each target", d.Name),
				"%s was renamed to %s", source, d.Name)
		}
	}
	return fault.Refusef("its copies are untouched; remove the job from the file if it is meant to be gone", "%s was destroyed: pool %s has no dataset of its GUID %d any more",
		source, zfs.PoolOf(w.source.Name), known.GUID)
}

func label(host string) string { return or(host, "local") }

func on(host, name string) string { return host + ":" + name }
