package preflight

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// clones finds full streams of a pool with cloned blocks. Increments repeat blocks that were cloned
// after the incremental source, but listings do not show how many.
func clones(in *Input) []finding.Finding {
	pool := &in.SourceListing.Pool
	full, unknown := uint64(0), false
	for _, st := range in.Plan.Streams() {
		if !isIncrement(*st) {
			full, unknown = addSizes(full, st.Bytes), unknown || st.Bytes == 0
		}
	}
	all, _ := number(pool.Properties["bclonesaved"])
	saved := all
	if !unknown {
		saved = min(saved, full)
	}
	if saved == 0 || saved < full/100 {
		return nil
	}
	return findings(finding.Finding{Host: in.Source.Name, Severity: finding.Note,
		Summary:  fmt.Sprintf("send streams repeat cloned blocks (cp --reflink, copy_file_range), which pool %s stores once: up to %s of this transfer", pool.Name, size.Text(saved)),
		Evidence: fmt.Sprintf("zpool get bclonesaved %s: %d; https://github.com/openzfs/zfs/issues/16961", pool.Name, all),
		Remedy:   "keep that much more space free on the target: " + in.Target.At.Command("zfs", "list", "-o", "space", nearestExisting(&in.TargetListing))})
}

// deduplicated finds full streams of deduplicated datasets to copies that are not.
func deduplicated(in *Input) []finding.Finding {
	ratio, err := strconv.ParseFloat(in.SourceListing.Pool.Properties["dedupratio"], 64)
	if err != nil || !(ratio > 1) || math.IsInf(ratio, 0) {
		return nil
	}
	source, targets := in.SourceListing.ByName(), in.TargetListing.ByName()
	var names []string
	for _, d := range in.Plan.Datasets {
		s := source[d.Source]
		full := slices.ContainsFunc(d.Steps, func(st plan.Step) bool { return !isIncrement(st) })
		if full && s != nil && isOn(s.Get("dedup")) && !isOn(onArrival(targets, d.Target, "dedup", d.Steps[0].Receive.Set["dedup"])) {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	pool := in.SourceListing.Pool.Name
	return findings(finding.Finding{Host: in.Source.Name, Severity: finding.Note,
		Summary:  fmt.Sprintf("send streams repeat blocks that pool %s deduplicates (ratio %.2f), and the copy does not: %s", pool, ratio, finding.JoinFirst(names, 3)),
		Evidence: fmt.Sprintf("zpool get dedupratio %s: %.2f; zfs get dedup", pool, ratio),
		Remedy:   "to deduplicate new copies, which needs memory on the target: {{set dedup=on}}"})
}

// physicalRewrite is the pool feature of zfs rewrite -P.
const physicalRewrite = "physical_rewrite"

// wholeIncrement is the smallest stream in bytes that rewritten reports.
const wholeIncrement = 64 << 20

// rewritten finds increments about as large as their filesystem. Listings do not show zfs rewrite,
// which marks blocks as changed. Other causes are possible.
//
// https://openzfs.github.io/openzfs-docs/man/v2.4/8/zfs-rewrite.8.html
func rewritten(in *Input) []finding.Finding {
	v, ok := zfs.ParseRelease(in.Source.ZFS)
	if !ok || v.Before(zfs.Release{2, 3, 4}) { // the first release with zfs rewrite
		return nil
	}
	source := in.SourceListing.ByName()
	var names, seen []string
	for _, d := range in.Plan.Datasets {
		s := source[d.Source]
		if s == nil || s.Type != zfs.Filesystem {
			continue
		}
		bytes := uint64(0)
		for _, st := range d.Steps {
			if isIncrement(st) && (st.Send.Flags.Raw || st.Send.Flags.Compressed) { // like referenced, compressed
				bytes = addSizes(bytes, st.Bytes)
			}
		}
		if referenced, ok := number(s.Get("referenced")); ok && bytes >= wholeIncrement && bytes >= referenced-referenced/5 {
			names = append(names, s.Name)
			seen = append(seen, fmt.Sprintf("%s: zfs send -nvP: %d, zfs get referenced: %d", s.Name, bytes, referenced))
		}
	}
	if len(names) == 0 {
		return nil
	}
	f := finding.Finding{Host: in.Source.Name, Severity: finding.Note, Evidence: finding.JoinFirst(seen, 3),
		Summary: "increments are about as large as the whole dataset, as after zfs rewrite without -P: " + finding.JoinFirst(names, 3)}
	switch pool := &in.SourceListing.Pool; {
	case pool.Features[physicalRewrite] == "active":
		f.Summary = "increments seem about as large as the whole dataset, but their streams omit blocks that zfs rewrite -P moved: " + finding.JoinFirst(names, 3)
	case pool.HasFeature(physicalRewrite):
		f.Remedy = "to rewrite files without such increments: zfs rewrite -P"
	case v.Before(zfs.Release{2, 4, 0}):
		f.Remedy = "to rewrite files without such increments, use zfs rewrite -P of OpenZFS 2.4"
	default:
		f.Remedy = "to rewrite files without such increments: " + command("zpool", "set", "feature@"+physicalRewrite+"=enabled", pool.Name) + "; then zfs rewrite -P"
	}
	return findings(f)
}
