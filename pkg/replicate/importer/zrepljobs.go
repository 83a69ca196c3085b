package importer

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// jobs makes drafts of the jobs: of push and pull jobs, and of snap jobs whose
// datasets no push job sends. Sinks and sources are the passive ends: the job
// on the other side does their work over ssh.
func (z *zrepl) jobs() error {
	for _, j := range z.all {
		if err := z.unknown(j); err != nil {
			return err
		}
	}
	first := len(z.drafts)
	for _, kind := range []string{"push", "pull", "snap", "source", "sink"} {
		for _, j := range z.all {
			if j.kind != kind {
				continue
			}
			var err error
			switch kind {
			case "push":
				err = z.push(j)
			case "pull":
				err = z.pull(j)
			case "snap":
				err = z.snap(j)
			case "source":
				z.source(j)
			case "sink":
				err = z.sink(j)
			}
			if err != nil {
				return err
			}
		}
	}
	if len(z.drafts) > first {
		z.note(nil, z.drafts[first].where, "snapshots", Changed, "a job sends and removes only the snapshots that snapshots.take and snapshots.adopt name; zrepl sends all there are")
		z.note(nil, z.drafts[first].where, "zrepl.service", ByHand, "end zrepl's daemon before the first run; \"zrepl zfs-abstraction release-all\" releases its holds and bookmarks")
	}
	return nil
}

// unknown reports keys of a job that are not known here.
func (z *zrepl) unknown(j *zjob) error {
	all, err := j.pairs()
	if err != nil {
		return err
	}
	for _, p := range all {
		if !slices.Contains([]string{"name", "type", "connect", "serve", "filesystems", "snapshotting", "pruning", "send", "recv",
			"root_fs", "interval", "replication", "conflict_resolution"}, p.key) {
			z.note(nil, p.at.where(), p.key, Dropped, "it is not known to this importer, which knows zrepl 0.6 and 0.7")
		}
	}
	return nil
}

// trees makes a draft of every tree of a filter.
func (z *zrepl) trees(j *zjob, f filter) []*draft {
	roots := f.roots()
	var out []*draft
	for _, r := range roots {
		d := z.add(&draft{where: j.where(), wish: j.name, Job: replicate.Job{Source: r.path, Recursive: r.recursive, Exclude: r.exclude}})
		if len(roots) > 1 && r.path != "" {
			d.wish = j.name + "-" + jobWord(r.path)
		}
		for _, c := range r.coarse {
			what := fmt.Sprintf("%q: false", c.path)
			if slices.Contains(r.exclude, literal(below(r.path, c.path))) {
				z.note(d, c.where, what, Changed, "what is below it is left out, too; zrepl leaves out the one dataset")
			} else {
				z.note(d, c.where, what, ByHand, "the dataset alone cannot be left out, without what is below: it is sent")
			}
		}
		if r.path == "" {
			d.Source, d.noSource, d.Exclude = unknownDataset, true, nil
			z.note(d, r.where, `"<"`, ByHand, "a job has one source: write source, and a job for each further pool")
			if len(r.exclude) > 0 {
				z.note(d, r.where, strings.Join(r.exclude, ", "), ByHand, "left out by the filter: write them into exclude, as paths below the source")
			}
		}
		out = append(out, d)
	}
	if len(out) == 0 {
		z.note(nil, j.where(), j.name, Dropped, "its filesystems let nothing through")
	}
	return out
}

// push makes the drafts of a push job.
func (z *zrepl) push(j *zjob) error {
	taking, pruning, rules := j.shots, j.value, "keep_sender"
	if s := z.snapOf(j); s != nil {
		s.used, taking, pruning, rules = true, s.shots, s.value, "keep"
		z.note(nil, s.where(), s.name, Changed, "job %q takes over its snapshots and its pruning: they send the same datasets", j.name)
	}
	drafts := z.trees(j, j.filter)
	to, err := z.peer(j)
	if err != nil {
		return err
	}
	for _, d := range drafts {
		z.snapshots(d, taking)
		if err := z.hooksOf(d, j); err != nil {
			return err
		}
		t := replicate.Target{To: to.place(d)}
		if err := z.retention(d, &t, pruning, rules, j.value, taking); err != nil {
			return err
		}
		if err := z.options(d, &t, j.value, to.sink, j.value); err != nil {
			return err
		}
		d.Transfer.RSH = to.rsh
		d.addTarget(t)
		d.noTarget = to.root == "" || d.noSource
		switch {
		case to.root == "":
			z.note(d, to.where, "connect", ByHand, "the other host's sink job names the dataset (root_fs): write it into the target as ROOT_FS/CLIENT_IDENTITY/SOURCE, or import that host's zrepl.yml together with this one")
		case d.noSource:
			z.note(d, to.where, "connect", ByHand, "zrepl keeps a copy at %s/SOURCE: write the target so", to.root)
		}
		if taking.manual {
			z.note(d, j.where(), "schedule", ByHand, "nothing takes snapshots in these settings: write schedule, else the job runs only by hand")
		}
		z.overSSH(d, to)
	}
	return nil
}

// snapOf is the snap job that takes the snapshots of a push job that takes
// none.
func (z *zrepl) snapOf(j *zjob) *zjob {
	if !j.shots.manual {
		return nil
	}
	for _, s := range z.all {
		if s.kind == "snap" && !s.used && reflect.DeepEqual(trees(s.filter), trees(j.filter)) {
			return s
		}
	}
	return nil
}

// trees is what a filter lets through, without where it says so.
func trees(f filter) []root {
	all := f.roots()
	for i := range all {
		all[i].where, all[i].coarse = "", nil
	}
	return all
}

// pull makes the draft of a pull job. What it pulls is the other host's to
// say: its source job is looked for among the files.
func (z *zrepl) pull(j *zjob) error {
	var from *zjob
	for _, s := range z.all {
		if s.kind != "source" {
			continue
		}
		if from != nil {
			from = nil // more than one: it is not clear which
			break
		}
		from = s
	}
	rootFS, err := j.textOf("root_fs")
	if err != nil {
		return err
	}
	if rootFS, err = dataset(j.where(), rootFS); err != nil {
		return err
	}
	to, err := z.connection(j)
	if err != nil {
		return err
	}
	taking := shots{manual: true}
	var drafts []*draft
	if from != nil {
		taking, from.used = from.shots, true
		if s := z.snapOf(from); s != nil {
			s.used, taking = true, s.shots
			z.note(nil, s.where(), s.name, Changed, "job %q takes over its snapshots: they are of the same datasets", j.name)
		}
		drafts = z.trees(j, from.filter)
	} else {
		drafts = []*draft{z.add(&draft{where: j.where(), wish: j.name, noSource: true, Job: replicate.Job{Source: unknownDataset, Recursive: true}})}
		z.note(drafts[0], j.where(), "source", ByHand, "the other host's source job names the filesystems, and takes the snapshots, which this job can do instead (snapshots.take): "+
			"write source, or import that host's zrepl.yml together with this one")
	}
	for _, d := range drafts {
		z.snapshots(d, taking)
		t := replicate.Target{To: rootFS + "/" + d.Source}
		d.noTarget = d.noSource
		d.Source = endpoint.Endpoint{Host: to.host, Name: d.Source}.String()
		sending := j.value
		if from != nil {
			if err := z.hooksOf(d, from); err != nil {
				return err
			}
			sending = from.value
		}
		if err := z.retention(d, &t, j.value, "keep_sender", j.value, taking); err != nil {
			return err
		}
		if err := z.options(d, &t, sending, j.value, j.value); err != nil {
			return err
		}
		d.Transfer.RSH = to.rsh
		d.addTarget(t)
		if d.noTarget {
			z.note(d, j.where(), "root_fs", ByHand, "zrepl keeps a copy at %s/SOURCE: write the target so", rootFS)
		}
		if err := z.interval(d, j, taking); err != nil {
			return err
		}
		z.overSSH(d, to)
	}
	return nil
}

// interval maps how often a pull job pulls.
func (z *zrepl) interval(d *draft, j *zjob, taking shots) error {
	text, err := j.textOf("interval")
	if err != nil {
		return err
	}
	if text == "" || text == "manual" {
		if d.Schedule == "" {
			z.note(d, j.where(), "interval: manual", Changed, "the job has no schedule: it runs only by hand")
		}
		return nil
	}
	every, err := zreplDuration(text)
	if err != nil {
		return fault.Usagef("", "%s: interval: %w", j.where(), err)
	}
	spec := z.spec(j.where(), every)
	if d.Schedule != "" && d.Schedule != spec {
		z.note(d, j.where(), "interval: "+text, Changed, "one run takes the snapshots and sends them: the source's schedule, %s, counts", d.Schedule)
		return nil
	}
	d.Schedule = spec
	return nil
}

// snap makes the drafts of a snap job that no push job took over.
func (z *zrepl) snap(j *zjob) error {
	if j.used {
		return nil
	}
	for _, d := range z.trees(j, j.filter) {
		z.snapshots(d, j.shots)
		if err := z.hooksOf(d, j); err != nil {
			return err
		}
		if err := z.retention(d, nil, j.value, "keep", value{}, j.shots); err != nil {
			return err
		}
	}
	return nil
}

// source reports a source job that no pull job of the import belongs to.
func (z *zrepl) source(j *zjob) {
	if !j.used {
		z.note(nil, j.where(), j.name, ByHand, "it waits to be pulled from, which needs no job here: import the pulling host's zrepl.yml together with this one, or write the job there; "+
			"zxfer replicate authorize --allow send=DATASET restricts what it may read")
	}
}

// sink reports a sink that another host's jobs send to.
func (z *zrepl) sink(j *zjob) error {
	if j.used {
		return nil
	}
	rootFS, err := j.textOf("root_fs")
	if err != nil {
		return err
	}
	z.note(nil, j.where(), j.name, ByHand, "it waits to be sent to, which needs no job here: the sending host's job does all; zxfer replicate authorize --allow receive=%s --append-only restricts what it may do", rootFS)
	return nil
}
