package decision

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/zfs"
)

// CheckTaking refuses to take snapshots of a copy, because they would block its next receive.
func (v *Survey) CheckTaking() error {
	if v.Scope.Naming() == nil {
		return nil
	}
	of := v.Source.ByName()
	for _, d := range v.Source.Datasets {
		if _, role, err := zfs.RoleOf(d.Name, func(name string) map[string]zfs.Property {
			if a := of[name]; a != nil {
				return a.Properties
			}
			return nil
		}); err == nil && role.Kind == zfs.RoleSource || d.Properties[zfs.RestoreProperty].Local() {
			continue // a fail over made it the source, or a restore receives it and it becomes writable
		}
		if d.Properties[zfs.FlagsProperty].Local() && d.Get("readonly") == "on" {
			return fault.Refusef("to send on the snapshots that arrive: snapshots = { received_from = \"JOB:TARGET\" }\nif nothing sends to it any more: "+
				v.SourceAt.Command("zfs", "inherit", "-r", zfs.FlagsProperty, v.Root),
				"%s is a copy that zxfer received (%s, readonly=on): a snapshot of it would block the next receive", d.Name, zfs.FlagsProperty)
		}
	}
	return nil
}

// ToConfirm returns the snapshots of a relay that no target has. Confirm needs their holds.
func (v *Survey) ToConfirm() (names []string) {
	if v.Job.UpstreamTag() == "" || v.Promoted {
		return nil
	}
	for _, d := range v.Source.Datasets {
		sent := v.sent(d)
		for _, s := range d.Snapshots() {
			if s.CreateTXG > sent {
				names = append(names, s.In(d.Name))
			}
		}
	}
	return names
}

// sent returns the createtxg of the most recent snapshot of a dataset that any target has, or 0.
func (v *Survey) sent(d *zfs.Dataset) (at uint64) {
	if known := v.State.Datasets[d.Name]; known != nil {
		for target, a := range known.Targets {
			if !v.Excluded[target][d.Name] {
				at = max(at, txgOf(d, a.BaseGUID))
			}
		}
	}
	return at
}

// Confirm removes from Source what the upstream job of a relay has not confirmed: newer snapshots, and
// datasets without a confirmed one. tags has the hold tags of the snapshots of ToConfirm. If nothing
// was ever confirmed, it returns an error of class fault.Refused.
func (v *Survey) Confirm(tags map[string][]string) (notes []string, err error) {
	tag, latest := v.Job.UpstreamTag(), map[string]uint64{}
	switch {
	case tag == "":
		v.forgetReceived()
		return nil, nil
	case v.Promoted:
		for _, d := range v.Source.Datasets {
			if s, any := d.Latest(); any {
				latest[d.Name] = s.CreateTXG
			}
		}
		v.recordReceived(latest)
		return nil, nil
	}
	l, receiving, missing := *v.Source, false, []string{}
	l.Datasets, v.Unconfirmed, v.Waiting = nil, map[string]int{}, map[string]bool{}
	for _, d := range v.Source.Datasets {
		if d.Inconsistent() {
			receiving, v.Waiting[d.Name] = true, true
			notes = append(notes, d.Name+" is not sent: its first receive has not ended")
			continue
		}
		confirmed := v.sent(d)
		for _, s := range d.Snapshots() {
			if slices.Contains(tags[s.In(d.Name)], tag) {
				confirmed = max(confirmed, s.CreateTXG)
			}
		}
		if confirmed == 0 {
			missing, v.Waiting[d.Name] = append(missing, d.Name), true
			continue
		}
		latest[d.Name] = confirmed
		c := *d
		c.Versions = slices.DeleteFunc(slices.Clone(d.Versions), func(s zfs.Version) bool { return s.Kind == zfs.Snapshot && s.CreateTXG > confirmed })
		if n := len(d.Versions) - len(c.Versions); n > 0 {
			v.Unconfirmed[d.Name] = n
			latest, _ := c.Latest()
			notes = append(notes, fmt.Sprintf("%s of %s after @%s: not sent, because %s has not confirmed %s",
				english.Plural(n, "snapshot", ""), d.Name, latest.Name, v.Job.Snapshots.ReceivedFrom, english.PluralWord(n, "it", "them")))
		}
		l.Datasets = append(l.Datasets, &c)
	}
	if len(missing) > 0 {
		notes = append(notes, fmt.Sprintf("not sent, because no snapshot has the hold %s: %s", tag, strings.Join(missing, ", ")))
	}
	if len(l.Datasets)+len(v.Unchanged) == 0 && !receiving {
		return nil, fault.Refusef("list the holds: zfs holds -r SNAPSHOT\nthat job needs holds = \"both\" or \"target\"; if its first run has not ended, wait",
			"%s: no snapshot has the hold %s, by which the job of snapshots.received_from confirms what it sent", v.Root, tag)
	}
	v.Source = &l
	v.recordReceived(latest)
	v.recordWaiting()
	return notes, nil
}

// recordWaiting records that the run could not send the datasets in Waiting, so that they become late.
func (v *Survey) recordWaiting() {
	for i := range v.Job.Targets {
		t := &v.Job.Targets[i]
		for name := range v.Waiting {
			if v.Excluded[t.Name][name] {
				continue
			}
			a := v.State.Copy(name, t.Name)
			a.Target = cmp.Or(a.Target, t.CopyOf(v.Root, name))
			a.Hold(v.Started)
		}
	}
}

// recordReceived updates the state of a relay. latest has the createtxg of the most recent confirmed
// snapshot by listed dataset.
func (v *Survey) recordReceived(latest map[string]uint64) {
	for name := range v.Unchanged {
		latest[name] = 0
		if known := v.State.Dataset(name).Received; known != nil {
			latest[name] = known.Latest
		}
	}
	events, other := map[string]decide.ReceivedEvent{}, decide.NoSnapshot
	for name, txg := range latest {
		if known := v.State.Dataset(name).Received; known == nil || known.Latest != txg {
			events[name], other = decide.SnapshotConfirmed, decide.OtherConfirmed
		} else if v.Unconfirmed[name] > 0 {
			events[name] = decide.SnapshotUnconfirmed
		}
	}
	for name, txg := range latest {
		known := v.State.Dataset(name)
		was := cmp.Or(known.Received, &replicate.Received{})
		now := &replicate.Received{State: decide.ReceivedAfter(cmp.Or(events[name], other)), Since: v.Started, Latest: txg, Unconfirmed: v.Unconfirmed[name], Promoted: v.Promoted}
		if now.State != decide.ReceivedNew && !was.Since.After(v.Started) { // otherwise the clock was wrong
			now.Since = was.Since
		}
		known.Received = now
	}
}

// forgetReceived removes the state of a relay from a job that is none.
func (v *Survey) forgetReceived() {
	for _, known := range v.State.Datasets {
		if known.Received != nil {
			known.Received = nil
		}
	}
}

// unsent returns the snapshots of a copy that a relay has not sent on, by GUID, with the reason. The oldest
// bookmark of a relay is what its slowest target has. Without a bookmark it has sent nothing.
func unsent(t *replicate.Target, copied *zfs.Dataset) map[uint64]retention.Reason {
	out := map[uint64]retention.Reason{}
	for _, job := range t.SentOnBy {
		sent := uint64(0)
		for _, v := range copied.Versions {
			if v.Kind == zfs.Bookmark && strings.HasPrefix(v.Name, zfs.TagPrefix+job+":") {
				sent = v.CreateTXG // versions are sorted
				break
			}
		}
		for _, s := range copied.Snapshots() {
			if s.CreateTXG > sent && out[s.GUID].Kind == retention.NoReason {
				out[s.GUID] = retention.Reason{Kind: retention.NotSentOn, Of: job}
			}
		}
	}
	return out
}

// Unsent returns the number of snapshots that a pruning keeps only because a relay has not sent them.
func (p *Pruning) Unsent() (n int) {
	for _, why := range p.KeepReasons {
		if why.Kind == retention.NotSentOn {
			n++
		}
	}
	return n
}
