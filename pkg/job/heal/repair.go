package heal

import (
	"context"
	"errors"
	"slices"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/zfs"
)

// The states of a Repair.
const (
	RepairFull    = "yes"    // copies can repair all errors
	RepairPartial = "partly" // copies cannot repair the other errors, or this is unknown
	RepairNone    = "no"
	RepairUnknown = "unknown"
)

// Repair states whether copies can repair the errors of a dataset and its descendants.
type Repair struct {
	State  string
	Copies []string // to repair from, each once
	Why    string   // why not all errors can be repaired, or why this is unknown
}

// maxRepairDatasets limits the datasets that RepairOf checks, because each takes several queries.
const maxRepairDatasets = 16

// ErrorsOf returns the errors of a dataset and its descendants.
type ErrorsOf func(ctx context.Context, e endpoint.Endpoint) (zfs.Damage, error)

// RepairOf returns whether the copies of req can repair the damage d of req.At, as a dry run of
// Run decides. It sends nothing, reads no file and takes no lock. It asks errorsOf for the
// errors of each copy. The host of a copy may claim snapshots that it does not have: only a heal
// proves a repair.
func RepairOf(ctx context.Context, req Request, at *hosts.Set, d zfs.Damage, errorsOf ErrorsOf) Repair {
	req.DryRun = true
	h := newHealJob(req, at, send.Quiet{})
	h.copies.errorsOf = func(ctx context.Context, e endpoint.Endpoint) (zfs.Damage, error) {
		d, err := errorsOf(ctx, e)
		return withoutHealSnapshots(d), err
	}
	facts, err := h.host.Facts(ctx)
	if err == nil {
		err = h.host.Require(ctx, hosts.OpScrub)
	}
	var n repairCounts
	switch {
	case d.Unlisted:
		n.add(&n.unsure, 1, "ZFS does not list the errors: "+unlistedReason(d.Reason))
	case err != nil:
		n.failed(err)
	default:
		h.report.ZFS, h.found = facts.ZFS, h.req.ofJob(withoutHealSnapshots(d))
		n.count(ctx, h, h.found)
	}
	return Repair{State: n.state(), Copies: n.copies, Why: n.why}
}

// unlistedReason explains zfs.Damage.Reason.
func unlistedReason(reason string) string {
	switch reason {
	case "", zfs.KeyNotLoaded:
		return "the key of a damaged dataset is not loaded"
	case zfs.DatasetDestroyed:
		return "some belong to a destroyed dataset, until the next scrub"
	}
	return reason
}

// repairCounts counts errors by whether a copy can repair them.
type repairCounts struct {
	full, none, unsure int
	copies             []string
	why                string // the first reason
}

// add adds errors to one of the counts.
func (n *repairCounts) add(to *int, number int, why string) {
	if *to += number; number > 0 && n.why == "" {
		n.why = why
	}
}

// failed counts an error that prevents a repair, or the decision.
func (n *repairCounts) failed(err error) {
	to := &n.unsure
	if isDecided(err) {
		to = &n.none
	}
	n.add(to, 1, err.Error())
}

func (n *repairCounts) state() string {
	switch {
	case n.full > 0 && n.none == 0 && n.unsure == 0:
		return RepairFull
	case n.full > 0:
		return RepairPartial
	case n.unsure > 0:
		return RepairUnknown
	}
	return RepairNone
}

// isDecided reports whether err excludes a repair from a copy. After other errors, such as a lost
// connection, a repair may be possible.
func isDecided(err error) bool {
	return fault.ClassOf(err) == fault.Refused || errors.Is(err, &zfs.Error{Kind: zfs.NotFound})
}

// count plans the heal of a damage, and counts its errors.
func (n *repairCounts) count(ctx context.Context, h *healJob, d zfs.Damage) {
	damaged := h.addObjects(d)
	for _, name := range damaged[:min(len(damaged), maxRepairDatasets)] {
		if err := h.planDataset(ctx, name, false); err != nil { // interrupted, or too slow
			h.datasets[len(h.datasets)-1].err = err
			break
		}
	}
	for _, t := range h.report.Objects {
		i := slices.IndexFunc(h.datasets, func(d *healing) bool { return d.report.Dataset == t.Dataset })
		if i < 0 && t.Dataset != "" {
			n.add(&n.unsure, 1, "not all damaged datasets were checked")
			continue
		}
		h.explain(t)
		switch {
		case i >= 0 && h.datasets[i].err != nil:
			n.failed(h.datasets[i].err)
		case t.Outcome == NotHealed:
			n.add(&n.none, 1, t.Why)
		case t.Outcome == Unknown:
			n.add(&n.unsure, 1, t.Why)
		case h.datasets[i].report.Note != "":
			n.add(&n.unsure, 1, h.datasets[i].report.Copy+": "+h.datasets[i].report.Note)
		default:
			n.full++
			if good := h.datasets[i].report.Copy; !slices.Contains(n.copies, good) {
				n.copies = append(n.copies, good)
			}
		}
	}
	n.add(&n.none, d.PoolErrors, "the pool has "+english.Plural(d.PoolErrors, "error", "")+" in its metadata or in destroyed data")
	n.add(&n.unsure, d.More, "the list of errors is too long")
}
