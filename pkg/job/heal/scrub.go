package heal

import (
	"cmp"
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
	"zxfer/pkg/retry"
	"zxfer/pkg/zfs"
)

// scrubAndCompare scrubs the pool and compares the damage with that before.
func (h *healJob) scrubAndCompare(ctx context.Context) error {
	h.report.Scrubbed = false // an earlier scrub says nothing about later healing
	if !slices.ContainsFunc(h.report.Datasets, func(d *Dataset) bool { return d.Healed || d.Partial }) {
		for _, t := range h.report.Objects {
			t.Outcome = NotHealed
			h.explain(t)
		}
		return fault.Failf("follow the hints above", "%s: nothing was healed", h.req.At)
	}
	unsure, prove := "there was no scrub since", h.req.poolCommands("zpool wait -t scrub", "zpool scrub -w", "zpool status -v")
	if !h.req.NoScrub {
		err := h.scrub(ctx)
		switch {
		case err == nil:
			h.report.Scrubbed = true
		case ctx.Err() != nil:
			return fault.Interrupt("the streams were received; a scrub shows what they healed: "+h.req.poolCommands("zpool scrub"), err)
		default:
			unsure = "scrub: " + err.Error()
			prove = strings.TrimPrefix(fault.HintOf(err)+"\n"+prove, "\n")
			h.rep.Log(unsure)
		}
	}
	now, err := h.damage(ctx)
	if err != nil {
		return err
	}
	h.found = now
	if now.Unlisted {
		unsure = "ZFS does not list the remaining errors"
	} else if h.report.Scrubbed {
		if err := h.plan(ctx, now); err != nil { // it adds new damage
			return err
		}
	}
	remain := h.recordOutcomes(now, unsure)
	switch {
	case now.Unlisted:
		return fault.Failf("run zfs load-key or another scrub, then "+h.req.poolCommands("zpool status -v"), "%s: the streams were received, but ZFS does not list the remaining errors", h.req.At)
	case !h.report.Scrubbed:
		return fault.Failf(prove, "%s: the streams were received; a scrub shows what they healed: %s", h.req.At, unsure)
	case remain+now.More > 0:
		h.logUnlisted(&now)
		return fault.Failf("follow the hints above", "%s: %s not healed", h.req.At, english.Plural(remain+now.More, "error is", "errors are"))
	}
	return h.checkUnlisted(now)
}

// The scrub's progress is queried at intervals of a twentieth of the time so far, within these limits,
// because each answer contains the whole error list.
const (
	scrubPoll    = 500 * time.Millisecond
	maxScrubPoll = 10 * time.Second
)

// scrub scrubs the pool and waits for the end. Scrubbing only listed errors (zpool scrub -e)
// proves nothing: OpenZFS 2.3.9 removes an error of an older snapshot from the list, although
// still damaged, if the live data has another block in that place.
func (h *healJob) scrub(ctx context.Context) error {
	paused := fault.Failf(h.req.poolCommands("zpool scrub -s"), "the scrub is paused, and would only continue from there")
	if d, err := h.damage(ctx); err != nil || d.Scan.Paused {
		return cmp.Or(err, paused)
	}
	if err := hosts.Run(ctx, h.host, hosts.OpScrub, h.req.At.Name); err != nil {
		return err
	}
	defer h.rep.Activity("scrubbing " + zfs.PoolOf(h.req.At.Name))()
	started := time.Now()
	for logged := 0.0; ; {
		d, err := damage(ctx, h.host, h.req.At.Name)
		switch {
		case err != nil:
			return err
		case d.Scan.Paused:
			return paused
		case !d.Scan.Running && !strings.HasPrefix(d.Scan.Text, "scrub repaired"):
			return fmt.Errorf("it did not finish: %q", d.Scan.Text)
		case !d.Scan.Running:
			return nil
		case d.Scan.Percent >= logged+10:
			logged = d.Scan.Percent
			h.rep.Log(fmt.Sprintf("scrubbing: %.0f%% done", logged))
		}
		if !retry.Sleep(ctx, min(max(time.Since(started)/20, scrubPoll), maxScrubPoll)) {
			return errors.New("interrupted")
		}
	}
}

// recordOutcomes sets the outcome of each object and counts those not certainly healed. Only a
// completed scrub decides: a cancelled one removes errors that it has not reached from the list.
func (h *healJob) recordOutcomes(now zfs.Damage, unsure string) (remain int) {
	left := map[string]bool{}
	newest := func(t *zfs.DamagedObject) string { return t.Dataset + ":" + t.Path + t.Object }
	for _, t := range now.Objects {
		left[t.Shown] = true
		if t.Snapshot == "" { // right after a scrub, snapshots that share it are not listed (2.3.9)
			left[newest(&t)] = true
		}
	}
	for _, t := range h.report.Objects {
		switch healed := slices.ContainsFunc(h.report.Datasets, func(d *Dataset) bool { return d.Dataset == t.Dataset && d.Healed }); {
		case now.Unlisted, !h.report.Scrubbed:
			t.Outcome, t.Why = Unknown, unsure
		case !left[t.Shown] && (t.Dataset == "" || !left[newest(&t.DamagedObject)]):
			t.Outcome, t.Why, t.Remedy = Healed, "", ""
			continue
		case healed && t.Snapshot == "":
			t.Outcome, t.Why = NotHealed, "it is metadata, or the copy has different blocks"
		case healed:
			t.Outcome, t.Why = NotHealed, "the current data does not share its blocks, or they are metadata"
		case t.Dataset != "":
			t.Outcome, t.Why = NotHealed, "the last scrub found it: run the same command again"
		default:
			t.Outcome = NotHealed
		}
		h.explain(t)
		remain++
	}
	return remain
}

// explain sets why an object is or will not be healed, and sets a remedy if one exists.
func (h *healJob) explain(t *Object) {
	i := slices.IndexFunc(h.datasets, func(d *healing) bool { return t.Dataset != "" && d.report.Dataset == t.Dataset })
	if i < 0 {
		t.Outcome, t.Why = NotHealed, "metadata, or of a destroyed dataset: no copy has its blocks"
		switch {
		case strings.HasPrefix(t.Shown, "<0x"):
			t.Why = "of a destroyed dataset or snapshot: two scrubs clear it"
		case strings.HasPrefix(t.Shown, "/"):
			t.Outcome, t.Why = Unknown, "no mounted dataset has this path: "+h.req.poolCommands("zpool status -v")
		}
		return
	}
	d := h.datasets[i]
	if d.report.Why != "" {
		t.Outcome, t.Why = NotHealed, d.report.Why
	}
	if t.Outcome != NotHealed || d.common == "" {
		return
	}
	from, name := d.pair.good, d.common // or the damaged snapshot, if the copy has it
	if i := slices.IndexFunc(d.pair.shared, func(s commonSnapshot) bool { return s.bad == t.Snapshot }); i >= 0 {
		name = d.pair.shared[i].good
	}
	from.Name += "@" + name
	if t.Path == "" {
		t.Remedy = "zxfer restore " + zfs.CommandLine([]string{from.String(), siblingName(d.pair.bad)})
	} else {
		t.Remedy = "zxfer restore --files " + zfs.CommandLine([]string{t.Path, from.String(), "./restored"})
	}
}

// siblingName returns the name for a restore next to the damaged dataset.
func siblingName(e endpoint.Endpoint) string {
	if zfs.PoolOf(e.Name) == e.Name {
		return e.String() + "/restored"
	}
	return e.String() + "-restored"
}

// logUnlisted reports that the last scrub found more errors than ZFS lists.
func (h *healJob) logUnlisted(d *zfs.Damage) {
	pool := zfs.PoolOf(h.req.At.Name)
	if listed := d.ListedBlocks(); pool == h.req.At.Name && d.NoBlocks == "" && listed > 0 && uint64(d.Scan.Errors) > listed {
		h.rep.Log(fmt.Sprintf("the last scrub of %s found %s, but ZFS lists only %d: metadata or an older snapshot is damaged, too", pool, english.Plural(d.Scan.Errors, "error", ""), listed))
	}
}

// checkUnlisted returns an error if the last scrub found errors that ZFS does not list. OpenZFS
// 2.3.9 does this for errors in older snapshots of unmounted filesystems.
func (h *healJob) checkUnlisted(d zfs.Damage) error {
	pool := zfs.PoolOf(h.req.At.Name)
	ofPool := fmt.Sprintf("pool %s has %s outside of datasets: in its metadata, or in destroyed data, which two scrubs clear", pool, english.Plural(d.PoolErrors, "error", ""))
	found := "the last scrub of " + pool + " found " + english.Plural(d.Scan.Errors, "error", "")
	switch {
	case d.Scan.Errors == 0 && d.PoolErrors > 0:
		h.rep.Log(ofPool + ": " + h.req.poolCommands("zpool status -v"))
	case d.Scan.Errors == 0:
	case d.PoolErrors > 0:
		return fault.Failf(h.req.poolCommands("zpool status -v", "zpool scrub -w", "zpool scrub -w"), "%s", ofPool)
	case pool == h.req.At.Name:
		return fault.Failf("to read the whole pool and list the first snapshot with each error: "+
			h.req.shellCommands("zfs list -H -o name -t filesystem,volume -r "+zfs.CommandLine([]string{pool})+` | while read -r d; do p=; zfs list -H -o name -t snapshot -d 1 -s createtxg "$d" | `+
				`while read -r s; do zfs send -w ${p:+-i} ${p:+"$p"} "$s" >/dev/null || echo "$s"; p=$s; done; done`)+
			"\nif it lists no snapshot, scrub: "+h.req.poolCommands("zpool scrub -w"), "%s: %s that ZFS does not list", h.req.At, found)
	case d.Elsewhere > 0:
		h.rep.Log(found + ", some in other datasets; the rest may also be in " + h.req.At.Name)
	default:
		return fault.Failf(h.req.poolCommands("zpool scrub -w", "zpool status -v"),
			"%s: %s that ZFS does not list, in %s or elsewhere; another scrub clears errors of deleted data", h.req.At, found, h.req.At.Name)
	}
	return nil
}
