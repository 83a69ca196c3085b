package importer

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/size"
	"zxfer/pkg/zfs"
)

// retention maps the keep rules of both sides. The job's names come from what
// it takes; without that, from the rules. at and rules are of the source, t and
// other of the target.
func (z *zrepl) retention(d *draft, t *replicate.Target, at value, rules string, other value, taking shots) error {
	read := func(v value, key string) (*keeping, error) {
		pruning, err := v.get("pruning")
		if err != nil {
			return nil, err
		}
		list, err := pruning.get(key)
		if err != nil {
			return nil, err
		}
		k, err := keepRules(list, taking.prefix, taking.interval)
		if err != nil {
			return nil, err
		}
		for _, n := range k.notes {
			z.note(d, n.where, key+": "+n.what, n.class, "%s", n.why)
		}
		return k, nil
	}
	source, err := read(at, rules)
	if err != nil {
		return err
	}
	there := &keeping{}
	if t != nil {
		if there, err = read(other, "keep_receiver"); err != nil {
			return err
		}
		t.Retention = there.old(z.state.options.Now)
	}
	d.Retention = source.old(z.state.options.Now)
	if d.Snapshots.Take == "" {
		switch {
		case len(source.names) > 0:
			d.Snapshots.Adopt = source.names
		case len(there.names) > 0:
			d.Snapshots.Adopt = there.names
		default:
			d.Snapshots.Adopt = []string{"*"}
		}
	}
	if !source.removable(d.Snapshots.Adopt) && d.Retention != nil {
		z.withheld(d, at, rules, "[job.retention]", d.Retention)
		d.Retention = nil
	}
	if t != nil && !there.removable(d.Snapshots.Adopt) && t.Retention != nil {
		z.withheld(d, other, "keep_receiver", "[job.target.retention]", t.Retention)
		t.Retention = nil
	}
	if slices.Contains(d.Snapshots.Adopt, "*") && (d.Retention != nil || t != nil && t.Retention != nil) {
		z.note(d, at.where(), "pruning", Changed, "as in zrepl it concerns every snapshot (adopt = [\"*\"]), also those made by hand")
	}
	return nil
}

// withheld reports a grid that would remove what other rules keep.
func (z *zrepl) withheld(d *draft, at value, rules, table string, g *replicate.Grid) {
	z.note(d, at.where(), rules, ByHand, "left out, so all stays: a grid concerns all that the job adopts, and the rules here tell snapshots apart. "+
		"Narrow snapshots.adopt to what may be removed, then write %s with %s", table, fieldsLine(g))
}

// options maps send of the sending job, recv of the receiving one, and
// replication and conflict_resolution of the one that runs both.
func (z *zrepl) options(d *draft, t *replicate.Target, sending, receiving, active value) error {
	send, err := sending.get("send")
	if err != nil {
		return err
	}
	all, err := send.pairs()
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.key == "bandwidth_limit" {
			if err := z.bandwidth(d, p.to); err != nil {
				return err
			}
			continue
		}
		set, err := p.to.boolean()
		if err != nil {
			return err
		}
		switch p.key {
		case "encrypted", "raw":
			if !set {
				z.note(d, p.at.where(), "send."+p.key+": false", Changed, "encrypted datasets are sent raw all the same; transfer.decrypt = true sends them decrypted")
			} else if p.key == "encrypted" {
				z.note(d, p.at.where(), "send.encrypted: true", Changed, "encrypted datasets are always sent raw; those that are not encrypted are sent, too, where zrepl refuses them")
			}
		case "send_properties", "backup_properties":
			t.Properties.Carry = t.Properties.Carry || set
		case "large_blocks", "compressed", "embedded_data":
			// Chosen by what the dataset and the target are.
		default:
			z.note(d, p.at.where(), "send."+p.key, Dropped, "zxfer has no such choice")
		}
	}
	if receiving.there() {
		if err := z.receiving(d, t, receiving); err != nil {
			return err
		}
	}
	return z.guarantees(d, active)
}

func (z *zrepl) receiving(d *draft, t *replicate.Target, job value) error {
	recv, err := job.get("recv")
	if err != nil {
		return err
	}
	all, err := recv.pairs()
	if err != nil {
		return err
	}
	for _, p := range all {
		switch p.key {
		case "bandwidth_limit":
			if err := z.bandwidth(d, p.to); err != nil {
				return err
			}
		case "properties":
			if err := properties(t, p.to); err != nil {
				return err
			}
		default:
			z.note(d, p.at.where(), "recv."+p.key, Dropped, "zxfer has no such choice")
		}
	}
	return nil
}

func properties(t *replicate.Target, v value) error {
	at, err := v.get("override")
	if err != nil {
		return err
	}
	set, err := at.pairs()
	if err != nil {
		return err
	}
	for _, p := range set {
		text, err := p.to.text()
		if err != nil {
			return err
		}
		if err := zfs.CheckProperty(p.key); err != nil {
			return fault.Usagef("", "%s: recv.properties.override: %w", p.at.where(), err)
		}
		if t.Properties.Set == nil {
			t.Properties.Set = map[string]string{}
		}
		t.Properties.Set[p.key] = text
	}
	inherit, err := v.get("inherit")
	if err != nil {
		return err
	}
	names, err := inherit.texts()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := zfs.CheckProperty(name); err != nil {
			return fault.Usagef("", "%s: recv.properties.inherit: %w", inherit.where(), err)
		}
		if _, ok := t.Properties.Set[name]; !ok {
			t.Properties.Exclude = append(t.Properties.Exclude, name)
		}
	}
	return nil
}

// bandwidth maps a limit; the lower of two counts.
func (z *zrepl) bandwidth(d *draft, v value) error {
	text, err := v.textOf("max")
	if err != nil {
		return err
	}
	n, err := zreplRate(text)
	if err != nil {
		return fault.Usagef("", "%s: bandwidth_limit.max: %w", v.where(), err)
	}
	if n > 0 && (d.Transfer.Bandwidth == 0 || n < d.Transfer.Bandwidth) {
		d.Transfer.Bandwidth = n
	}
	if text, err = v.textOf("bucket_capacity"); err == nil && text != "" {
		z.note(d, v.where(), "bucket_capacity", Dropped, "the limit holds over a second")
	}
	return err
}

// zreplRate reads a limit as bytes per second: "23 MiB", "100 Mbit", 0 for
// none.
//
// https://github.com/zrepl/zrepl/blob/v0.6.1/internal/util/datasizeunit/bits.go
func zreplRate(s string) (size.Size, error) {
	m := regexp.MustCompile(`^(-?[0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kKmMgGtT]?)(i?)([bB]|bit)$`).FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return 0, fmt.Errorf("%q is no amount of data; 10 MiB or 100 Mbit is", s)
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, err
	}
	base := 1000.0
	if m[3] != "" {
		base = 1024
	}
	if m[2] != "" {
		for range strings.Index("kmgt", strings.ToLower(m[2])) + 1 {
			n *= base
		}
	}
	if m[4] != "B" {
		n /= 8
	}
	if n < 0 {
		return 0, nil
	}
	if n >= 1<<62 {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return size.Size(n), nil
}

// guarantees maps replication and conflict_resolution.
func (z *zrepl) guarantees(d *draft, job value) error {
	replication, err := job.get("replication")
	if err != nil {
		return err
	}
	protection, err := replication.get("protection")
	if err != nil {
		return err
	}
	incremental, err := protection.textOf("incremental")
	if err != nil {
		return err
	}
	switch incremental {
	case "guarantee_incremental":
		d.Holds = "target" // the bookmark is enough on the source
	case "guarantee_nothing":
		d.Holds, d.Bookmarks = "none", "none"
	}
	concurrency, err := replication.get("concurrency")
	if err != nil {
		return err
	}
	steps, err := concurrency.get("steps")
	if err != nil {
		return err
	}
	n, err := steps.number()
	if err != nil {
		return err
	}
	d.Parallel = min(n, 64)
	conflicts, err := job.get("conflict_resolution")
	if err != nil {
		return err
	}
	initial, err := conflicts.get("initial_replication")
	if err != nil {
		return err
	}
	text, err := initial.text()
	if err == nil && text != "" && text != "all" {
		z.note(d, initial.where(), "initial_replication: "+text, Changed, "a dataset's first transfer brings all the job's snapshots, from the oldest on")
	}
	return err
}
