// Package heal runs `zxfer heal`: it lists the damage of a pool or dataset, heals each damaged dataset with a stream of
// its copy, and scrubs. Package send sends the streams.
//
// Nouns:
//   - heal pair: a damaged dataset and a good one with common snapshots
//   - heal snapshot: a temporary snapshot that is sent to heal the live data
package heal

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/preflight"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// Request is a request for `zxfer heal`.
type Request struct {
	At      endpoint.Endpoint  // damaged pool or dataset
	Copy    *endpoint.Endpoint // good copy of At, descendants included; nil = use Copies
	Copies  []Copy             // the copies that jobs keep
	Job     string             // heal only datasets of this job, from its own copies; "" = any
	Flags   []string           // flags of the command line, for hints
	DryRun  bool
	NoScrub bool
	Retries int
	// SnapshotSuffix makes the name of the heal snapshot unique.
	SnapshotSuffix string
	// Lock prevents runs of a job until unlock is called. It may be nil.
	Lock func(ctx context.Context, job string) (unlock func(), err error)
	transport.Settings
}

// Report is the JSON report of `zxfer heal`.
type Report struct {
	Schema   string     `json:"schema"` // "zxfer.heal/v1"
	At       string     `json:"at"`
	DryRun   bool       `json:"dry_run"`
	ZFS      string     `json:"zfs"`
	Scan     string     `json:"scan,omitempty"` // last scan, as zpool status prints it
	Datasets []*Dataset `json:"datasets"`
	Objects  []*Object  `json:"things"`
	More     int        `json:"more,omitempty"` // damaged objects that are not listed
	Scrubbed bool       `json:"scrubbed"`
	outcome.Conclusion
}

// Dataset is a damaged dataset and its good copy.
type Dataset struct {
	Dataset string `json:"dataset"`
	Copy    string `json:"copy,omitempty"`
	Bytes   uint64 `json:"bytes,omitempty"`  // estimated size of the stream, all of which the copy's host reads
	Healed  bool   `json:"healed"`           // its stream was received completely
	Partial bool   `json:"partly,omitempty"` // its stream started, but did not complete
	Why     string `json:"why,omitempty"`    // why it is not healed
	Remedy  string `json:"remedy,omitempty"`
	Note    string `json:"note,omitempty"` // known damage of the copy
	// Since is the copy's snapshot before all damage: an incremental stream from it suffices.
	// FullBytes is the size of the full stream in case it does not. Both are empty for a full stream.
	Since     string `json:"since,omitempty"`
	FullBytes uint64 `json:"whole_bytes,omitempty"`
	// Blocks is the number of damaged blocks that are sent, 0 for the whole stream. Whole is the
	// reason why the network carries the whole stream.
	Blocks uint64 `json:"blocks,omitempty"`
	Whole  string `json:"whole_stream,omitempty"`
	// SendBytes estimates the bytes to send. Sent and Read are the bytes sent, and read by the
	// copy's host.
	SendBytes uint64 `json:"send_bytes,omitempty"`
	Sent      uint64 `json:"sent_bytes,omitempty"`
	Read      uint64 `json:"read_bytes,omitempty"`
}

// healing is a damaged dataset with the state of its heal.
type healing struct {
	report   *Dataset
	base     uint64 // GUID of Since
	only     zfs.Blocks
	complete bool // the last stream had all blocks of only
	// cleanupErr is the reason why the last heal snapshot may remain.
	cleanupErr error
	metadata   bool // metadata of the live data is also damaged
	// common is the most recent common snapshot, by its name on the copy.
	common string
	pair   *healPair
	err    error // that Why describes, if the plan excludes the dataset
}

// Object is a damaged object and its outcome.
type Object struct {
	zfs.DamagedObject
	Outcome string `json:"outcome"` // healed, not healed, planned, unknown
	// Read is the result of reading the file after healing: "is readable again", or
	// "is unreadable: " or "was not read: " with the cause.
	Read   string `json:"read,omitempty"`
	Why    string `json:"why,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// The outcomes of a damaged object.
const (
	Healed    = "healed"
	NotHealed = "not healed"
	Planned   = "planned"
	Unknown   = "unknown"
)

type healJob struct {
	req        Request
	datasets   []*healing // of report
	copies     *copyFinder
	at         *hosts.Set
	host       *hosts.Conn // has the damage
	rep        send.Reporter
	report     *Report
	changed    bool
	streams    int        // number of started streams
	found      zfs.Damage // the most recent list
	cleanupErr error      // why the snapshot of an earlier heal may remain
}

func newHealJob(req Request, at *hosts.Set, rep send.Reporter) *healJob {
	h := &healJob{req: req, at: at, rep: rep, host: at.Get(req.At.Host, &req.Settings), report: &Report{
		Schema: "zxfer.heal/v1", At: req.At.String(), DryRun: req.DryRun, Datasets: []*Dataset{}, Objects: []*Object{}}}
	h.copies = &copyFinder{req: &h.req, at: at, rep: rep, locks: map[string]func(){}}
	return h
}

// Run runs `zxfer heal`: it lists the damage, heals each dataset with a heal snapshot, scrubs
// the pool, and compares the damage. Errors are Refused if nothing was changed.
func Run(ctx context.Context, req Request, at *hosts.Set, rep send.Reporter) (*Report, error) {
	h := newHealJob(req, at, rep)
	defer h.copies.unlock()
	err := outcome.Settle(ctx, h.run(ctx))
	if h.changed {
		err = ends.Changed(err)
	}
	r, success := h.report, outcome.Done
	switch {
	case len(r.Datasets) == 0 && len(r.Objects) == 0:
		success = outcome.UpToDate
	case req.DryRun:
		success = outcome.Planned
	}
	r.Conclusion = outcome.Conclude(err, success)
	return r, err
}

func (h *healJob) run(ctx context.Context) error {
	facts, err := h.host.Facts(ctx)
	if err != nil {
		return ends.Unchanged(err)
	}
	if err := h.host.Require(ctx, hosts.OpScrub); err != nil {
		return ends.Unchanged(err)
	}
	h.report.ZFS = facts.ZFS
	d, err := h.damage(ctx)
	if err != nil {
		return ends.Unchanged(err)
	}
	if err := h.plan(ctx, d); err != nil {
		return ends.Unchanged(err)
	}
	healable := slices.ContainsFunc(h.report.Datasets, func(d *Dataset) bool { return d.Why == "" })
	h.cleanupErr = h.cleanUpAll(ctx)
	switch {
	case len(h.report.Datasets) == 0 && len(h.report.Objects) == 0:
		return cmp.Or(h.cleanupErr, h.checkUnlisted(d))
	case h.req.DryRun:
		return nil
	case !healable:
		return fault.Refusef("", "%s: none of the damage can be healed; nothing was changed", h.req.At)
	}
	for round := 1; ; round++ {
		streams := h.streams
		if err := h.healAll(ctx); err != nil {
			return err
		}
		h.copies.unlock()
		if err := h.leftovers(); err != nil {
			h.rep.Log(err.Error())
		}
		if round > 1 && h.streams == streams { // the last scrub is still valid
			for _, t := range h.report.Objects {
				if t.Outcome == NotHealed {
					h.explain(t)
				}
			}
			return cmp.Or(err, h.leftovers())
		}
		err = h.scrubAndCompare(ctx)
		if !h.report.Scrubbed || ctx.Err() != nil || round == maxRounds || !h.nextRound() {
			return cmp.Or(err, h.leftovers())
		}
	}
}

// nextRound prepares another stream for each dataset whose live data the scrub found damaged. It
// reports whether there is one. The damage may be new, or the reread used cached data.
func (h *healJob) nextRound() (any bool) {
	for _, d := range h.datasets {
		live := slices.ContainsFunc(h.report.Objects, func(t *Object) bool {
			return t.Dataset == d.report.Dataset && t.Snapshot == "" && t.Outcome == NotHealed
		})
		switch now := h.found.BlocksOf(d.report.Dataset); {
		case d.report.Why != "" || d.report.Healed && !live:
			continue
		case !d.report.Healed: // the scrub found it
		case len(d.only) == 0 && d.report.Since == "", len(d.only) > 0 && len(now.Data) == 0: // nothing else to send
			continue
		case len(d.only) > 0 && !d.only.Contains(now.Data):
			if d.report.Since != "" {
				d.useFull(h.rep)
			}
			h.rep.Log(d.report.Dataset + ": the scrub found more damaged blocks")
			d.chooseBlocks(&h.found)
		case d.report.Since != "":
			d.useFull(h.rep)
		default:
			d.useWhole(h.rep, "the scrub still finds the damaged blocks")
		}
		any = true
		if d.report.Healed {
			d.report.Healed, d.report.Partial = false, true
			d.pair.shared = nil // hours have passed: check both datasets again
		}
	}
	return any
}

// leftovers returns the errors due to which heal snapshots may remain.
func (h *healJob) leftovers() error {
	err := h.cleanupErr
	for _, d := range h.datasets {
		err = errors.Join(err, d.cleanupErr)
	}
	return err
}

// maxRounds limits the scrubs of one heal. On a failing disk, each finds new damage.
const maxRounds = 4

// healAll heals the datasets that are not healed yet.
func (h *healJob) healAll(ctx context.Context) error {
	for _, d := range h.datasets {
		if d.report.Why != "" || d.report.Healed {
			continue
		}
		h.changed = true
		if d.report.Note != "" {
			h.rep.Log(d.report.Copy + ": " + d.report.Note)
		}
		err := h.copies.lock(ctx, d.pair)
		if err == nil && len(d.pair.shared) == 0 {
			err = h.copies.check(ctx, d)
		}
		if err == nil {
			err = h.heal(ctx, d)
		}
		for err == nil {
			readable, damaged := h.reread(ctx, d)
			if readable || d.complete && !damaged || ctx.Err() != nil || !d.widen(h.rep, damaged) {
				break
			}
			err = h.heal(ctx, d)
		}
		if err == nil {
			err = d.checkMetadata()
		}
		switch {
		case ctx.Err() != nil, fault.ClassOf(err) == fault.Interrupted:
			return fault.Interrupt("the same command resumes", cmp.Or(err, ctx.Err()))
		case err != nil:
			d.report.Why, d.report.Remedy = err.Error(), fault.HintOf(err)
			h.rep.Log(d.report.Dataset + ": not healed") // the report has the reason
		default:
			d.report.Healed, d.report.Partial = true, false
		}
	}
	return nil
}

// plan adds the damage to the report, except known objects, and chooses a good copy for each new
// dataset.
func (h *healJob) plan(ctx context.Context, d zfs.Damage) error {
	h.report.Scan, h.report.More, h.found = d.Scan.Text, d.More, d
	first := len(h.report.Objects)
	damaged := h.addObjects(d)
	if d.Unlisted {
		locked, err := h.lockedCandidates(ctx, d.Reason)
		if err != nil {
			return err
		}
		damaged = locked
		for _, name := range locked {
			h.report.Objects = append(h.report.Objects, &Object{DamagedObject: zfs.DamagedObject{Dataset: name, Shown: name}, Outcome: Planned,
				Why: "ZFS lists no errors while the key of a damaged dataset is not loaded: any dataset without its key may be damaged"})
		}
		slices.Sort(damaged)
	}
	for _, name := range damaged {
		if err := h.planDataset(ctx, name, !d.Unlisted); err != nil {
			return err
		}
	}
	for _, t := range h.report.Objects[first:] {
		h.explain(t)
	}
	return nil
}

// addObjects adds the damaged objects to the report, except known ones. It returns the damaged datasets
// that the report does not have yet, sorted.
func (h *healJob) addObjects(d zfs.Damage) (damaged []string) {
	known := map[string]bool{}
	for _, t := range h.report.Objects {
		known[t.Shown] = true
	}
	for _, of := range h.report.Datasets {
		known[of.Dataset] = true
	}
	for _, t := range d.Objects {
		if known[t.Shown] {
			continue
		}
		h.report.Objects = append(h.report.Objects, &Object{DamagedObject: t, Outcome: Planned})
		if t.Dataset != "" && !known[t.Dataset] && !slices.Contains(damaged, t.Dataset) {
			damaged = append(damaged, t.Dataset)
		}
	}
	slices.Sort(damaged)
	return damaged
}

// planDataset adds a damaged dataset to the report, with a good copy or the reason why there is
// none. If base is set, it also searches an incremental source. It returns an error only if ctx ended.
func (h *healJob) planDataset(ctx context.Context, name string, base bool) error {
	out, err := h.copies.choose(ctx, name)
	h.datasets, h.report.Datasets = append(h.datasets, out), append(h.report.Datasets, out.report)
	capable := preflight.CanHeal(h.report.ZFS)
	if err == nil && base && capable {
		err = h.chooseBase(ctx, out)
	}
	switch {
	case ctx.Err() != nil && err != nil:
		return err
	case !capable:
		err = fault.Refusef("", "OpenZFS %s cannot heal blocks; version 2.2 and later can", h.report.ZFS)
	case err == nil:
		out.chooseBlocks(&h.found)
		return nil
	}
	out.report.Why, out.report.Remedy, out.err = err.Error(), fault.HintOf(err), err
	return nil
}
