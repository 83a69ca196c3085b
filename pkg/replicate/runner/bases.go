package runner

import (
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/job"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/record"
	"zxfer/pkg/zfs"
)

// bases are the versions of a source dataset that retention must leave: those
// that the next increment to any target, or the rest of an interrupted one,
// begins with or brings.
func (w *work) bases(d *zfs.Dataset) map[uint64]bool {
	out := map[uint64]bool{}
	for _, t := range w.targets {
		w.addBases(out, t, d)
	}
	return out
}

// addBases adds the versions that one target needs. Of a target that was not
// reached the state knows.
func (w *work) addBases(out map[uint64]bool, t *targetWork, d *zfs.Dataset) {
	a := &record.Arrival{}
	if known := w.state.Datasets[d.Name]; known != nil && known.Targets[t.Name] != nil {
		a = known.Targets[t.Name]
	}
	if a.BaseGUID != 0 {
		out[a.BaseGUID] = true
	}
	if t.result == nil || t.run.Error != "" || t.cut[d.Name] {
		// The target may have any snapshot of the stream as its newest.
		for _, v := range d.Snapshots() {
			if v.CreateTXG > txgOf(d, a.BaseGUID) && v.CreateTXG <= a.Sending {
				out[v.GUID] = true
			}
		}
	}
	if t.result == nil {
		return
	}
	for guid := range t.result.Partial {
		out[guid] = true
	}
	if td := w.copyOf(t, d.Name); td != nil {
		if base, ok := replicate.Base(d, td); ok {
			out[base.GUID] = true
		}
	}
}

// txgOf is the createtxg of a version by its GUID, 0 where there is none.
func txgOf(d *zfs.Dataset, guid uint64) uint64 {
	for _, v := range d.Versions {
		if v.GUID == guid {
			return v.CreateTXG
		}
	}
	return 0
}

// sending is a Reporter that writes down what is on its way before the first
// stream begins: after a cut the target may be away, and what it has got by
// then must stay on the source.
type sending struct {
	quiet
	w       *work
	t       *targetWork
	plan    *plan.Plan
	written bool
}

func (s *sending) Planned(r *job.Report) { s.plan = r.Plan }

func (s *sending) Started(int, *plan.Dataset, int) {
	s.w.shared.Lock()
	defer s.w.shared.Unlock()
	if s.written {
		return
	}
	s.written = true
	for _, d := range s.plan.Datasets {
		if len(d.Steps) > 0 {
			s.w.state.Arrival(d.Source, s.t.Name).Sending = d.Arrive.CreateTXG
		}
	}
	if err := s.w.store.Save(s.w.state); err != nil {
		s.w.note("%s: what is being sent could not be written down: %v", s.t.Name, err)
	}
}

// arrived notes what became of what was on its way.
func (t *targetWork) arrived(a *record.Arrival, d *job.DatasetResult) {
	if d.Err == nil {
		a.Sending = 0
		return
	}
	// What was cut may still be arriving while the target is looked at.
	t.cut[d.Source] = fault.ClassOf(d.Err) == fault.Interrupted
}

// followRenames takes what is known of a dataset over to its new name: what
// its targets have as their base, and what is held for them, is the same.
func (w *work) followRenames() {
	var byGUID map[uint64]string
	for _, d := range w.listing.Datasets {
		if known := w.state.Datasets[d.Name]; known != nil && known.GUID != 0 {
			continue
		}
		if byGUID == nil {
			byGUID = map[uint64]string{}
			for name, known := range w.state.Datasets {
				byGUID[known.GUID] = name
			}
		}
		before := byGUID[d.GUID]
		if before == "" || before == d.Name || d.GUID == 0 {
			continue
		}
		now := w.state.Dataset(d.Name)
		now.GUID, now.Past = d.GUID, w.state.Datasets[before].Past
		for target, was := range w.state.Datasets[before].Targets {
			a := *was
			a.EncryptionRoot = "" // is named after a dataset, too
			a.Held = nil
			for _, h := range was.Held {
				if snapshot, ok := strings.CutPrefix(h.Source, before+"@"); ok {
					h.Source = d.Name + "@" + snapshot
				}
				a.Held = append(a.Held, h)
			}
			now.Targets[target] = &a
		}
	}
}
