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
	"zxfer/pkg/site"
	"zxfer/pkg/way"
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
	pair   *counterpart
}

// HealedThing is what was damaged, and what became of it.
type HealedThing struct {
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
	locks   map[string]func() // of jobs
	streams int64             // that were begun
	left    error             // why a snapshot that was healed through may be left
}

// RunHeal runs `zxfer heal`: look, plan, mend each dataset through a snapshot of its
// own, scrub, look again. Errors are of class fault.Refused where nothing was changed.
func RunHeal(ctx context.Context, req Heal, at *hosts.Set, rep Reporter) (*HealReport, error) {
	h := &healing{locks: map[string]func(){}, req: req, at: at, rep: rep, host: at.At(req.At.Host, &req.Way), report: &HealReport{
		Schema: "zxfer.heal/v1", At: req.At.String(), DryRun: req.DryRun, Datasets: []*HealedDataset{}, Things: []*HealedThing{}}}
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
	h.left = h.leftovers(ctx)
	switch {
	case len(h.report.Datasets) == 0 && len(h.report.Things) == 0:
		return cmp.Or(h.left, h.unlisted(d))
	case h.req.DryRun:
		return nil
	case !mend:
		return fault.Refusef("", "%s: nothing of the damage can be healed; nothing was changed", h.req.At)
	}
	for {
		if err := h.mendAll(ctx); err != nil {
			return err
		}
		h.unlock()
		if h.left != nil {
			h.rep.Log(h.left.Error())
		}
		err := h.conclude(ctx)
		if !h.report.Scrubbed || ctx.Err() != nil || !h.widen() {
			return cmp.Or(err, h.left)
		}
	}
}

// mendAll mends the datasets that are not yet.
func (h *healing) mendAll(ctx context.Context) error {
	for _, d := range h.report.Datasets {
		if d.Why != "" || d.Healed {
			continue
		}
		h.changed = true
		if d.Note != "" {
			h.rep.Log(d.Copy + ": " + d.Note)
		}
		err := h.lock(ctx, d.pair.job)
		if err == nil {
			err = h.mend(ctx, d)
		}
		if err == nil && !h.reread(ctx, d) && d.Since != "" {
			d.all(h.rep)
			if err = h.mend(ctx, d); err == nil {
				h.reread(ctx, d)
			}
		}
		switch {
		case ctx.Err() != nil, fault.ClassOf(err) == fault.Interrupted:
			return fault.Interrupt("the same command goes on", err)
		case err != nil:
			hints := slices.DeleteFunc(strings.Split(fault.HintOf(err), "\n"), func(l string) bool {
				return strings.HasPrefix(l, "{{skip-check ") // which heal does not have
			})
			d.Why, d.Remedy = err.Error(), strings.Join(hints, "\n")
			h.rep.Log(d.Dataset + ": not healed: " + d.Why)
		default:
			d.Healed, d.Partly = true, false
		}
	}
	return nil
}

// widen takes back that datasets are healed whose newest state a scrub found damaged
// after an increment: what was read was in memory.
func (h *healing) widen() (any bool) {
	for _, d := range h.report.Datasets {
		if d.Healed && d.Since != "" && slices.ContainsFunc(h.report.Things, func(t *HealedThing) bool {
			return t.Dataset == d.Dataset && t.Snapshot == "" && t.Outcome == NotMended
		}) {
			d.all(h.rep)
			d.Healed, any = false, true
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
		locked, err := h.suspects(ctx, d.Reason)
		if err != nil {
			return err
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
		err := h.source(ctx, out)
		if err == nil && !d.Unlisted && corrects(version) {
			err = h.narrow(ctx, out)
		}
		if err != nil {
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

// suspects are the datasets that may be damaged where ZFS does not list errors: the
// encrypted ones whose keys are not loaded. Without a dataset that is named none is
// healed on suspicion, as all of it would cross.
func (h *healing) suspects(ctx context.Context, reason string) (names []string, err error) {
	pool := zfs.PoolOf(h.req.At.Name)
	if reason != "" && reason != zfs.KeyNotLoaded {
		return nil, fault.Refusef("as root, there: zpool status -v "+pool, "%s: ZFS does not list the errors: %s", h.req.At, reason)
	}
	l, err := h.host.List(ctx, site.ListQuery{Dataset: h.req.At.Name, Recursive: true, Alone: true})
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
		return nil, fault.Refusef("zpool scrub -w "+zfs.CommandLine([]string{pool})+"\nthen the same command",
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
func (h *healing) command(dataset string) string {
	args := append([]string{"zxfer", "heal"}, h.req.Flags...)
	args = append(args, endpoint.Endpoint{Host: h.req.At.Host, Name: dataset}.String())
	if h.req.Copy != nil {
		args = append(args, h.req.pairs(dataset)[0].good.String())
	}
	return zfs.CommandLine(args)
}

// judge says of a thing why it will not be, or was not, healed, and what remains to
// be done.
func (h *healing) judge(t *HealedThing) {
	i := slices.IndexFunc(h.report.Datasets, func(d *HealedDataset) bool { return t.Dataset != "" && d.Dataset == t.Dataset })
	if i < 0 {
		t.Outcome, t.Why = NotMended, "metadata, or of a dataset that is gone: no copy has its blocks"
		switch {
		case strings.HasPrefix(t.Shown, "<0x"):
			t.Why = "of a dataset that is gone: two scrubs clear it"
		case strings.HasPrefix(t.Shown, "/"):
			t.Outcome, t.Why = Unknown, "no mounted dataset is known to have this path: zpool status -v "+zfs.PoolOf(h.req.At.Name)
		}
		return
	}
	d := h.report.Datasets[i]
	if d.Why != "" {
		t.Outcome, t.Why = NotMended, d.Why
	}
	switch {
	case t.Outcome != NotMended || d.common == "":
	case t.Path == "":
		t.Remedy = "zxfer restore " + zfs.CommandLine([]string{h.restorable(d, t), t.Dataset + "-restored"})
	default:
		t.Remedy = "zxfer restore --files " + zfs.CommandLine([]string{t.Path, h.restorable(d, t), "restored"})
	}
}

// restorable is the snapshot of the good copy that has what is damaged.
func (h *healing) restorable(d *HealedDataset, t *HealedThing) string {
	at := d.pair.good
	name := d.common
	if i := slices.IndexFunc(d.pair.shared, func(s shared) bool { return s.bad == t.Snapshot }); i >= 0 {
		name = d.pair.shared[i].good
	}
	at.Name += "@" + name
	return at.String()
}

// conclude scrubs, and holds what is damaged now against what was.
func (h *healing) conclude(ctx context.Context) error {
	if !slices.ContainsFunc(h.report.Datasets, func(d *HealedDataset) bool { return d.Healed || d.Partly }) {
		for _, t := range h.report.Things {
			t.Outcome = NotMended
			h.judge(t)
		}
		return fault.Failf("what to do is above, for each of them", "%s: nothing was healed", h.req.At)
	}
	pool := zfs.PoolOf(h.req.At.Name)
	unsure, prove := "no scrub was done since", "zpool wait -t scrub "+pool+"\nzpool scrub -w "+pool+"\nzpool status -v "+pool
	if !h.req.NoScrub {
		err := h.scrub(ctx)
		switch {
		case err == nil:
			h.report.Scrubbed = true
		case ctx.Err() != nil:
			return fault.Interrupt("the streams went through; a scrub tells what they healed: zpool scrub "+zfs.PoolOf(h.req.At.Name), err)
		default:
			unsure = "the scrub: " + err.Error()
			prove = strings.TrimPrefix(fault.HintOf(err)+"\n"+prove, "\n")
			h.rep.Log(unsure)
		}
	}
	now, err := h.damage(ctx)
	if err != nil {
		return err
	}
	if now.Unlisted {
		unsure = "ZFS does not list what is left"
	}
	remain := h.compare(now, unsure)
	switch {
	case now.Unlisted:
		return fault.Failf("zfs load-key, or another scrub, then: zpool status -v "+pool, "%s: the streams went through, but ZFS does not list what is left", h.req.At)
	case !h.report.Scrubbed:
		return fault.Failf(prove, "%s: the streams went through; what they healed a scrub tells: %s", h.req.At, unsure)
	case remain+now.More > 0:
		return fault.Failf("what to do is above, for each of them", "%s: %s not healed", h.req.At, english.Plural(remain+now.More, "error is", "errors are"))
	}
	return h.unlisted(now)
}

// compare notes what became of each thing, and returns how many are not healed for
// sure. Only a scrub that came to its end, and its list, tell: one that was cancelled
// takes off the list what it has not come to.
func (h *healing) compare(now zfs.Damage, unsure string) (remain int) {
	left := map[string]bool{}
	newest := func(t *zfs.Damaged) string { return t.Dataset + ":" + t.Path + t.Object }
	for _, t := range now.Things {
		if strings.HasPrefix(t.Snapshot, zfs.HealPrefix) {
			continue
		}
		left[t.Shown] = true
		if t.Snapshot == "" { // right after a scrub, snapshots that share it are not listed (2.3.9)
			left[newest(&t)] = true
		}
	}
	for _, t := range h.report.Things {
		known := slices.ContainsFunc(h.report.Datasets, func(d *HealedDataset) bool { return d.Dataset == t.Dataset && d.Healed })
		switch {
		case now.Unlisted, !h.report.Scrubbed:
			t.Outcome, t.Why = Unknown, unsure
		case !left[t.Shown] && (t.Dataset == "" || !left[newest(&t.Damaged)]):
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
	return remain
}

// unlisted fails where the last scrub found errors that ZFS does not list, as seen with
// 2.3.9 of what only older snapshots of an unmounted filesystem have.
func (h *healing) unlisted(d zfs.Damage) error {
	pool := zfs.PoolOf(h.req.At.Name)
	found := "the last scrub of " + pool + " found " + english.Plural(d.Scan.Errors, "error", "")
	switch {
	case d.Scan.Errors == 0:
	case pool == h.req.At.Name:
		return fault.Failf("it may be in a snapshot alone, of what is gone or changed since; this reads each, and names those with errors, there:\n"+
			"zfs list -H -o name -t snapshot -r "+pool+` | while read -r s; do zfs send -w "$s" >/dev/null || echo "$s"; done`, "%s: %s that ZFS does not list", h.req.At, found)
	case d.Elsewhere > 0:
		h.rep.Log(found + ", and other datasets have some; that none is in " + h.req.At.Name + ", too, nobody can tell")
	default:
		return fault.Failf("zpool scrub -w "+pool+"\nzpool status -v "+pool, "%s: %s that ZFS does not list: whether they are in %s nobody can tell", h.req.At, found, h.req.At.Name)
	}
	return nil
}
