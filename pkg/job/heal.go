package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/site"
	"zxfer/pkg/way"
	"zxfer/pkg/zfs"
)

// Heal is a request for `zxfer heal`.
type Heal struct {
	At      endpoint.Endpoint // the pool or dataset that is damaged
	Copies  []Copy
	DryRun  bool
	NoScrub bool
	Retries int
	// Stamp makes the name of the snapshot that is healed through one of its own.
	Stamp string
	way.Way
}

// HealReport is the account of a heal; --json prints it.
type HealReport struct {
	Schema   string           `json:"schema"` // "zxfer.heal/v1"
	At       string           `json:"at"`
	DryRun   bool             `json:"dry_run"`
	ZFS      string           `json:"zfs"`
	Scan     string           `json:"scan,omitempty"` // as zpool status tells of the last
	Datasets []*HealedDataset `json:"datasets"`
	Things   []*HealedThing   `json:"things"`
	More     int              `json:"more,omitempty"` // things that are not listed
	Scrubbed bool             `json:"scrubbed"`
	Outcome  string           `json:"outcome"`
	Error    string           `json:"error,omitempty"`
	Hint     string           `json:"hint,omitempty"`
}

// HealedDataset is a damaged dataset and where it is healed from.
type HealedDataset struct {
	Dataset string `json:"dataset"`
	Copy    string `json:"copy,omitempty"`  // the good one
	Bytes   uint64 `json:"bytes,omitempty"` // of the stream, as near as ZFS knows
	Healed  bool   `json:"healed"`          // its stream went through
	Why     string `json:"why,omitempty"`   // it did not, or will not
	Remedy  string `json:"remedy,omitempty"`
	// common is the newest snapshot that both have, as the copy names it.
	common string
	pair   *counterpart
}

// HealedThing is what was damaged, and what became of it.
type HealedThing struct {
	zfs.Damaged
	Outcome string `json:"outcome"` // healed, not healed, planned, unknown
	Why     string `json:"why,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

// What became of a damaged thing.
const (
	Mended    = "healed"
	NotMended = "not healed"
	ToMend    = "planned"
	Unknown   = "unknown"
)

// healing is a heal on its way.
type healing struct {
	req     Heal
	at      *hosts.Set
	host    *hosts.Host // that has the damage
	rep     Reporter
	report  *HealReport
	changed bool
}

// RunHeal runs `zxfer heal`: look, plan, mend each dataset through a snapshot of its
// own, scrub, look again. Errors are of class fault.Refused where nothing was changed.
func RunHeal(ctx context.Context, req Heal, at *hosts.Set, rep Reporter) (*HealReport, error) {
	h := &healing{req: req, at: at, rep: rep, host: at.At(req.At.Host, &req.Way), report: &HealReport{Schema: "zxfer.heal/v1", At: req.At.String(), DryRun: req.DryRun}}
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

func (h *healing) run(ctx context.Context) error {
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
	switch {
	case len(h.report.Datasets) == 0 && len(h.report.Things) == 0, h.req.DryRun:
		return nil
	case !mend:
		return fault.Refusef("", "%s: nothing of the damage can be healed; nothing was changed", h.req.At)
	}
	for _, d := range h.report.Datasets {
		if d.Why != "" {
			continue
		}
		h.changed = true
		switch err := h.mend(ctx, d); {
		case ctx.Err() != nil, fault.ClassOf(err) == fault.Interrupted:
			return fault.Interrupt("the same command goes on", err)
		case err != nil:
			d.Why, d.Remedy = err.Error(), fault.HintOf(err)
			h.rep.Log(d.Dataset + ": not healed: " + d.Why)
		default:
			d.Healed = true
		}
	}
	return h.conclude(ctx)
}

// damage is what the host tells of it.
func (h *healing) damage(ctx context.Context) (d zfs.Damage, err error) {
	defer h.rep.Doing("reading the list of errors of " + h.req.At.String())()
	err = h.host.Again(ctx, site.In(func(s site.Healer) error {
		d, err = s.Damage(ctx, h.req.At.Name)
		return err
	}))
	return d, err
}

// plan finds for each damaged dataset what it can be healed from.
func (h *healing) plan(ctx context.Context, d zfs.Damage, version string) error {
	h.report.Scan, h.report.More = d.Scan.Text, d.More
	damaged := []string{}
	for _, t := range d.Things {
		if strings.HasPrefix(t.Snapshot, zfs.HealPrefix) {
			continue // which goes
		}
		h.report.Things = append(h.report.Things, &HealedThing{Damaged: t, Outcome: ToMend})
		if t.Dataset != "" && !slices.Contains(damaged, t.Dataset) {
			damaged = append(damaged, t.Dataset)
		}
	}
	if d.Unlisted {
		locked, err := h.locked(ctx)
		if err != nil {
			return err
		}
		if len(locked) == 0 {
			return fault.Refusef("zpool scrub -w "+zfs.CommandLine([]string{zfs.PoolOf(h.req.At.Name)})+"\nthen the same command",
				"%s: there are errors, but ZFS does not list them; a scrub makes the list anew", h.req.At)
		}
		damaged = locked
		for _, name := range locked {
			h.report.Things = append(h.report.Things, &HealedThing{Damaged: zfs.Damaged{Dataset: name, Shown: name}, Outcome: ToMend,
				Why: "ZFS lists no errors while the key of a damaged dataset is not loaded: it may be any of those without"})
		}
	}
	slices.Sort(damaged)
	for _, name := range damaged {
		out := &HealedDataset{Dataset: name}
		h.report.Datasets = append(h.report.Datasets, out)
		if err := h.source(ctx, out); err != nil {
			if ctx.Err() != nil {
				return err
			}
			out.Why, out.Remedy = err.Error(), fault.HintOf(err)
		}
		if !corrects(version) {
			out.Why, out.Remedy = fmt.Sprintf("OpenZFS %s cannot heal blocks; 2.2 and later can", version), ""
		}
	}
	for _, t := range h.report.Things {
		h.judge(t)
	}
	return nil
}

// corrects tells whether a version of OpenZFS has corrective receive.
func corrects(version string) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err != nil || major > 2 || major == 2 && minor >= 2
}

// locked are the encrypted datasets whose keys are not loaded.
func (h *healing) locked(ctx context.Context) (names []string, err error) {
	l, err := h.host.List(ctx, site.ListQuery{Dataset: h.req.At.Name, Recursive: true, Alone: true})
	for _, d := range l.Datasets {
		if d.Encrypted() && d.Get("keystatus") == "unavailable" {
			names = append(names, d.Name)
		}
	}
	return names, err
}

// judge says of a thing why it will not be, or was not, healed, and what remains to
// be done.
func (h *healing) judge(t *HealedThing) {
	i := slices.IndexFunc(h.report.Datasets, func(d *HealedDataset) bool { return t.Dataset != "" && d.Dataset == t.Dataset })
	if i < 0 {
		t.Outcome, t.Why = NotMended, "metadata, or of a dataset that is gone: no copy has its blocks"
		if strings.HasPrefix(t.Shown, "<0x") {
			t.Why = "of a dataset that is gone: two scrubs clear it"
		}
		return
	}
	d := h.report.Datasets[i]
	if d.Why != "" {
		t.Outcome, t.Why = NotMended, d.Why
	}
	if t.Outcome == ToMend {
		return
	}
	if d.common != "" && t.Path != "" {
		t.Remedy = "zxfer restore --files " + zfs.CommandLine([]string{t.Path, h.restorable(d, t), "restored"})
	}
}

// restorable is the snapshot of the good copy that has what is damaged.
func (h *healing) restorable(d *HealedDataset, t *HealedThing) string {
	at := d.pair.good
	if t.Snapshot != "" && slices.Contains(d.pair.shared, t.Snapshot) {
		at.Name += "@" + t.Snapshot
	} else {
		at.Name += "@" + d.common
	}
	return at.String()
}

// conclude scrubs, and holds what is damaged now against what was.
func (h *healing) conclude(ctx context.Context) error {
	if !h.req.NoScrub {
		if err := h.scrub(ctx); err != nil {
			if ctx.Err() != nil {
				return fault.Interrupt("the streams went through; a scrub tells what they healed: zpool scrub "+zfs.PoolOf(h.req.At.Name), err)
			}
			h.rep.Log("scrub: " + err.Error())
		} else {
			h.report.Scrubbed = true
		}
	}
	now, err := h.damage(ctx)
	if err != nil {
		return err
	}
	now.Things = slices.DeleteFunc(now.Things, func(t zfs.Damaged) bool { return strings.HasPrefix(t.Snapshot, zfs.HealPrefix) })
	left := map[string]bool{}
	for _, t := range now.Things {
		left[t.Shown] = true
	}
	remain := 0
	for _, t := range h.report.Things {
		known := slices.ContainsFunc(h.report.Datasets, func(d *HealedDataset) bool { return d.Dataset == t.Dataset && d.Healed })
		switch {
		case now.Unlisted:
			t.Outcome = Unknown
		case !left[t.Shown]:
			t.Outcome, t.Why, t.Remedy = Mended, "", ""
			continue
		default:
			t.Outcome = NotMended
			if known {
				t.Why = "the newest state does not share its blocks, or they are metadata"
			}
		}
		h.judge(t)
		remain++
	}
	if remain == 0 && now.More == 0 {
		if n := now.Scan.Errors; h.report.Scrubbed && n > 0 && !now.Unlisted && zfs.PoolOf(h.req.At.Name) == h.req.At.Name {
			// Seen with 2.3.9 of what only older snapshots of an unmounted filesystem have.
			return fault.Failf("mount what is damaged, and read the list again: zpool status -v "+zfs.PoolOf(h.req.At.Name),
				"%s: what was listed is healed, but the scrub found %s that ZFS does not list", h.req.At, english.Plural(n, "error", ""))
		}
		return nil
	}
	if now.Unlisted {
		return fault.Failf("zfs load-key, or another scrub, then: zpool status -v "+zfs.PoolOf(h.req.At.Name), "%s: the streams went through, but ZFS does not list what is left", h.req.At)
	}
	return fault.Failf("what to do is above, for each of them", "%s: %s not healed", h.req.At, english.Plural(remain+now.More, "error is", "errors are"))
}

// scrubPoll is how often it is asked how far a scrub is.
const scrubPoll = 500 * time.Millisecond

// scrub scrubs the pool and waits. Of what is in the list of errors alone (zpool scrub
// -e) is no proof: 2.3.9 takes an error that only an older snapshot has off the list,
// still damaged, where the newest state has another block in that place.
func (h *healing) scrub(ctx context.Context) error {
	q := site.ScrubQuery{Dataset: h.req.At.Name}
	if err := h.host.Do(ctx, site.In(func(s site.Healer) error { return s.Scrub(ctx, q) })); err != nil {
		return err
	}
	defer h.rep.Doing("scrubbing " + zfs.PoolOf(h.req.At.Name))()
	for said := 0.0; ; {
		if !hosts.Sleep(ctx, scrubPoll) {
			return errors.New("interrupted")
		}
		var d zfs.Damage
		err := h.host.Again(ctx, site.In(func(s site.Healer) (err error) { d, err = s.Damage(ctx, h.req.At.Name); return err }))
		switch {
		case err != nil:
			return err
		case d.Scan.Paused:
			return errors.New("it was paused")
		case !d.Scan.Running:
			return nil
		case d.Scan.Percent >= said+10:
			said = d.Scan.Percent
			h.rep.Log(fmt.Sprintf("scrubbing: %.0f%% done", said))
		}
	}
}
