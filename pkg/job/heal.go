package job

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/preflight"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// Heal is a request for `zxfer heal`.
type Heal struct {
	At      endpoint.Endpoint  // the pool or dataset that is damaged
	Copy    *endpoint.Endpoint // what to heal it from, and below it what is below; nil = Copies
	Copies  []Copy             // that jobs keep
	Flags   []string           // that the same command has, for hints
	DryRun  bool
	NoScrub bool
	Retries int
	// Stamp makes the name of the snapshot that is healed through one of its own.
	Stamp string
	// Lock keeps a job of the job file from running, until it is unlocked.
	Lock func(ctx context.Context, job string) (unlock func(), err error)
	transport.Settings
}

// HealReport is the account of a heal; --json prints it.
type HealReport struct {
	Schema   string           `json:"schema"` // "zxfer.heal/v1"
	At       string           `json:"at"`
	DryRun   bool             `json:"dry_run"`
	ZFS      string           `json:"zfs"`
	Scan     string           `json:"scan,omitempty"` // as zpool status tells of the last
	Datasets []*HealedDataset `json:"datasets"`
	Things   []*HealedObject  `json:"things"`
	More     int              `json:"more,omitempty"` // things that are not listed
	Scrubbed bool             `json:"scrubbed"`
	Outcome  string           `json:"outcome"`
	Error    string           `json:"error,omitempty"`
	Hint     string           `json:"hint,omitempty"`
}

// HealedDataset is a damaged dataset and where it is healed from.
type HealedDataset struct {
	Dataset string `json:"dataset"`
	Copy    string `json:"copy,omitempty"`   // the good one
	Bytes   uint64 `json:"bytes,omitempty"`  // of the stream, as near as ZFS knows
	Healed  bool   `json:"healed"`           // its stream went through
	Partly  bool   `json:"partly,omitempty"` // it began, but did not come to its end
	Why     string `json:"why,omitempty"`    // it did not, or will not
	Remedy  string `json:"remedy,omitempty"`
	Note    string `json:"note,omitempty"` // what is wrong with the copy
	// Since is the copy's snapshot after which what is damaged came, so that an increment
	// has it; Whole is then what all of it takes, where that does not suffice.
	Since string `json:"since,omitempty"`
	Whole uint64 `json:"whole_bytes,omitempty"`
	base  uint64 // the GUID of Since
	// common is the newest snapshot that both have, as the copy names it.
	common string
	pair   *healPair
}

// HealedObject is what was damaged, and what became of it.
type HealedObject struct {
	zfs.Damaged
	Outcome string `json:"outcome"` // healed, not healed, planned, unknown
	// Read tells of a file after the streams: "reads again", "does not read: " or
	// "was not read: " and why.
	Read   string `json:"read,omitempty"`
	Why    string `json:"why,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// What became of a damaged thing.
const (
	Healed    = "healed"
	NotHealed = "not healed"
	ToMend    = "planned"
	Unknown   = "unknown"
)

// healJob is a heal on its way.
type healJob struct {
	req     Heal
	at      *hosts.Set
	host    *hosts.Conn // that has the damage
	rep     Reporter
	report  *HealReport
	changed bool
	locks   map[string]func() // of jobs
	streams int64             // that were begun
	left    error             // why a snapshot that was healed through may be left
}

// RunHeal runs `zxfer heal`: look, plan, mend each dataset through a snapshot of its
// own, scrub, look again. Errors are of class fault.Refused where nothing was changed.
func RunHeal(ctx context.Context, req Heal, at *hosts.Set, rep Reporter) (*HealReport, error) {
	h := &healJob{locks: map[string]func(){}, req: req, at: at, rep: rep, host: at.Get(req.At.Host, &req.Settings), report: &HealReport{
		Schema: "zxfer.heal/v1", At: req.At.String(), DryRun: req.DryRun, Datasets: []*HealedDataset{}, Things: []*HealedObject{}}}
	defer h.unlock()
	err := outcome.Settle(ctx, h.run(ctx))
	if h.changed {
		err = changed(err)
	}
	r := h.report
	switch {
	case err != nil:
		r.Outcome, r.Error, r.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
	case len(r.Datasets) == 0 && len(r.Things) == 0:
		r.Outcome = outcome.UpToDate
	case req.DryRun:
		r.Outcome = outcome.Planned
	default:
		r.Outcome = outcome.Done
	}
	return r, err
}

func (h *healJob) run(ctx context.Context) error {
	facts, err := h.host.Facts(ctx)
	if err != nil {
		return unchanged(err)
	}
	h.report.ZFS = facts.ZFS
	d, err := h.damage(ctx)
	if err != nil {
		return unchanged(err)
	}
	if err := h.plan(ctx, d, facts.ZFS); err != nil {
		return unchanged(err)
	}
	mend := slices.ContainsFunc(h.report.Datasets, func(d *HealedDataset) bool { return d.Why == "" })
	h.left = h.leftovers(ctx)
	switch {
	case len(h.report.Datasets) == 0 && len(h.report.Things) == 0:
		return cmp.Or(h.left, h.unlisted(d))
	case h.req.DryRun:
		return nil
	case !mend:
		return fault.Refusef("", "%s: nothing of the damage can be healed; nothing was changed", h.req.At)
	}
	for round := 1; ; round++ {
		streams := h.streams
		if err := h.healAll(ctx); err != nil {
			return err
		}
		h.unlock()
		if h.left != nil {
			h.rep.Log(h.left.Error())
		}
		if round > 1 && h.streams == streams { // what the scrub told holds still
			for _, t := range h.report.Things {
				if t.Outcome == NotHealed {
					h.judge(t)
				}
			}
			return cmp.Or(err, h.left)
		}
		err = h.conclude(ctx)
		if !h.report.Scrubbed || ctx.Err() != nil || !h.widen() {
			return cmp.Or(err, h.left)
		}
	}
}

// healAll mends the datasets that are not yet.
func (h *healJob) healAll(ctx context.Context) error {
	for _, d := range h.report.Datasets {
		if d.Why != "" || d.Healed {
			continue
		}
		h.changed = true
		if d.Note != "" {
			h.rep.Log(d.Copy + ": " + d.Note)
		}
		err := h.lock(ctx, d.pair)
		if err == nil && len(d.pair.shared) == 0 {
			err = h.fit(ctx, d)
		}
		if err == nil {
			err = h.healSnapshot(ctx, d)
		}
		if err == nil && !h.reread(ctx, d) && d.Since != "" {
			d.all(h.rep)
			if err = h.healSnapshot(ctx, d); err == nil {
				h.reread(ctx, d)
			}
		}
		switch {
		case ctx.Err() != nil, fault.ClassOf(err) == fault.Interrupted:
			return fault.Interrupt("the same command goes on", err)
		case err != nil:
			hints := slices.DeleteFunc(strings.Split(fault.HintOf(err), "\n"), func(l string) bool {
				return strings.HasSuffix(l, " passes over this check") // which heal does not have
			})
			d.Why, d.Remedy = err.Error(), strings.Join(hints, "\n")
			h.rep.Log(d.Dataset + ": not healed") // the report has the reason
		default:
			d.Healed, d.Partly = true, false
		}
	}
	return nil
}

// widen takes back that datasets are healed whose newest state a scrub found damaged
// after an increment: what was read was in memory.
func (h *healJob) widen() (any bool) {
	for _, d := range h.report.Datasets {
		if d.Healed && d.Since != "" && slices.ContainsFunc(h.report.Things, func(t *HealedObject) bool {
			return t.Dataset == d.Dataset && t.Snapshot == "" && t.Outcome == NotHealed
		}) {
			d.all(h.rep)
			d.Healed, d.Partly, any = false, true, true
			d.pair.shared = nil // the scrub took hours: both are looked at anew
		}
	}
	return any
}

// all has the next stream be a full one.
func (d *HealedDataset) all(rep Reporter) {
	rep.Log(d.Dataset + ": what came after @" + d.Since + " does not suffice: all of it comes")
	d.Since, d.base, d.Bytes, d.Whole = "", 0, d.Whole, 0
}

// damage is what the host tells of it.
func (h *healJob) damage(ctx context.Context) (zfs.Damage, error) {
	defer h.rep.Activity("reading the list of errors of " + h.req.At.String())()
	return damage(ctx, h.host, h.req.At.Name)
}

// damage is what a host tells of what is damaged in a dataset, and below it, but for
// what was healed through, which goes.
func damage(ctx context.Context, at *hosts.Conn, dataset string) (d zfs.Damage, err error) {
	d, err = hosts.Call(ctx, at.Retry, hosts.Healer.Damage, dataset)
	d.Things = slices.DeleteFunc(d.Things, func(t zfs.Damaged) bool { return healsThrough(t.Snapshot) })
	return d, err
}

// plan finds for each damaged dataset what it can be healed from.
func (h *healJob) plan(ctx context.Context, d zfs.Damage, version string) error {
	h.report.Scan, h.report.More = d.Scan.Text, d.More
	damaged := []string{}
	for _, t := range d.Things {
		h.report.Things = append(h.report.Things, &HealedObject{Damaged: t, Outcome: ToMend})
		if t.Dataset != "" && !slices.Contains(damaged, t.Dataset) {
			damaged = append(damaged, t.Dataset)
		}
	}
	if d.Unlisted {
		locked, err := h.lockedCandidates(ctx, d.Reason)
		if err != nil {
			return err
		}
		damaged = locked
		for _, name := range locked {
			h.report.Things = append(h.report.Things, &HealedObject{Damaged: zfs.Damaged{Dataset: name, Shown: name}, Outcome: ToMend,
				Why: "ZFS lists no errors while the key of a damaged dataset is not loaded: it may be any of those without"})
		}
	}
	slices.Sort(damaged)
	for _, name := range damaged {
		out := &HealedDataset{Dataset: name}
		h.report.Datasets = append(h.report.Datasets, out)
		err := h.source(ctx, out)
		if err == nil && !d.Unlisted && preflight.Corrects(version) {
			err = h.narrow(ctx, out)
		}
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			out.Why, out.Remedy = err.Error(), fault.HintOf(err)
		}
		if !preflight.Corrects(version) {
			out.Why, out.Remedy = fmt.Sprintf("OpenZFS %s cannot heal blocks; 2.2 and later can", version), ""
		}
	}
	for _, t := range h.report.Things {
		h.judge(t)
	}
	return nil
}

// lockedCandidates are the datasets that may be damaged where ZFS does not list errors: the
// encrypted ones whose keys are not loaded. Without a dataset that is named none is
// healed on suspicion, as all of it would cross.
func (h *healJob) lockedCandidates(ctx context.Context, reason string) (names []string, err error) {
	pool := zfs.PoolOf(h.req.At.Name)
	if reason == zfs.DatasetGone {
		return nil, fault.Refusef(h.onPool("zpool scrub -w")+"\nthen the same command",
			"%s: ZFS does not list the errors, as some are of a dataset that was destroyed meanwhile", h.req.At)
	}
	if reason != "" && reason != zfs.KeyNotLoaded {
		return nil, fault.Refusef("as root\n"+h.onPool("zpool status -v"), "%s: ZFS does not list the errors: %s", h.req.At, reason)
	}
	l, err := h.host.List(ctx, hosts.ListQuery{Dataset: h.req.At.Name, Recursive: true, Alone: true})
	if err != nil {
		return nil, err
	}
	for _, d := range l.Datasets {
		if d.Encrypted() && d.Get("keystatus") == "unavailable" {
			names = append(names, d.Name)
		}
	}
	switch {
	case len(names) == 0:
		return nil, fault.Refusef(h.onPool("zpool scrub -w")+"\nthen the same command",
			"%s: there are errors, but ZFS does not list them; a scrub makes the list anew", h.req.At)
	case h.req.At.Name == pool:
		commands := ""
		for _, name := range names[:min(len(names), 10)] {
			commands += "\n" + h.command(name)
		}
		return nil, fault.Refusef("zfs load-key -a, there, and the same command; or, where it is one of them that is damaged:"+commands,
			"%s: ZFS lists no errors while the key of a damaged dataset is not loaded; %s", h.req.At, english.Plural(len(names), "dataset is without", "datasets are without"))
	}
	return names, nil
}

// command is what heals a dataset alone.
func (h *healJob) command(dataset string) string {
	args := append([]string{"zxfer", "heal"}, h.req.Flags...)
	args = append(args, endpoint.Endpoint{Host: h.req.At.Host, Name: dataset}.String())
	if h.req.Copy != nil {
		args = append(args, h.req.pairs(dataset)[0].good.String())
	}
	return zfs.CommandLine(args)
}
