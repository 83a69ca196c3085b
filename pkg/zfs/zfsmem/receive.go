package zfsmem

import (
	"context"
	"slices"
	"strconv"
	"time"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// begin starts or resumes a receive. It refuses the streams that zfs receive refuses.
func (s *receiveSink) begin(rec *zfs.Record) (*partial, error) {
	h := s.host
	h.mu.Lock()
	defer h.mu.Unlock()
	name := s.spec.Target
	d, left := h.datasets[name], h.partial[name]
	of := stream{name: rec.ToName(), to: rec.ToGUID(), from: rec.FromGUID(), raw: rec.Features()&zfstest.FeatureRaw != 0,
		resumed: rec.Features()&zfstest.FeatureResuming != 0, typ: zfs.Filesystem}
	if s.spec.Arrival.Volume {
		of.typ = zfs.Volume
	}
	if s.spec.Corrective {
		return &partial{of: of}, nil
	}
	if of.resumed {
		if left == nil || left.of.to != of.to {
			return nil, s.fail(zfs.BadStream)
		}
		return left, nil
	}
	switch latest, _ := latestOf(d); {
	case left != nil:
		return nil, s.fail(zfs.PartialState)
	case d == nil && h.datasets[zfs.ParentOf(name)] == nil:
		return nil, s.fail(zfs.NotFound)
	case (of.from == 0 || s.spec.Origin != "") && d != nil:
		return nil, s.fail(zfs.Exists)
	case of.from != 0 && s.spec.Origin == "" && (d == nil || latest.GUID != of.from) && !s.mayRollBack(d, of.from):
		return nil, s.fail(zfs.NoBase)
	}
	if d == nil {
		d = h.create(name, of.typ, s.spec.Set)
		set(d, "inconsistent", "1")
		if of.raw {
			set(d, "encryption", "aes-256-gcm")
			set(d, "encryptionroot", name)
			set(d, "keystatus", "unavailable")
		}
	}
	for p, v := range s.spec.Set {
		d.Properties[p] = zfs.Property{Value: v, Source: "local"}
	}
	if s.spec.Origin != "" {
		in, i := h.find(s.spec.Origin)
		if i < 0 {
			return nil, s.fail(zfs.NoBase)
		}
		h.clone(in.Versions[i], s.spec.Origin, d)
	}
	at := &partial{of: of}
	h.partial[name] = at // refuses another receive
	return at, nil
}

func latestOf(d *zfs.Dataset) (zfs.Version, bool) {
	if d == nil {
		return zfs.Version{}, false
	}
	return d.Latest()
}

// mayRollBack reports whether snapshots newer than the incremental source may be destroyed.
func (s *receiveSink) mayRollBack(d *zfs.Dataset, base uint64) bool {
	if d == nil || !s.spec.Rollback {
		return false
	}
	_, ok := d.SnapshotOf(base)
	return ok
}

// rollback destroys them after the whole stream has arrived.
func (s *receiveSink) rollback(d *zfs.Dataset, base uint64) {
	if !s.spec.Rollback {
		return
	}
	to, ok := d.SnapshotOf(base)
	d.Versions = slices.DeleteFunc(d.Versions, func(v zfs.Version) bool {
		return ok && v.Kind == zfs.Snapshot && v.CreateTXG > to.CreateTXG
	})
}

// full reports whether a quota is exceeded.
func (s *receiveSink) full(at *partial) bool {
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	for name := s.spec.Target; name != ""; name = zfs.ParentOf(name) {
		quota, err := strconv.Atoi(s.host.datasets[name].Get("quota"))
		if err == nil && len(at.writes)*block > quota {
			return true
		}
	}
	return false
}

// end creates the snapshot.
func (s *receiveSink) end(ctx context.Context, at *partial) error {
	_, v, _ := zfs.ParseVersion(at.of.name) // the gate checked it
	v.GUID = at.of.to
	return s.host.do(ctx, zfs.OpReceive, []string{v.In(s.spec.Target)}, func() error {
		if s.spec.Corrective {
			return s.host.correct(v.In(s.spec.Target), at.of)
		}
		h, d := s.host, s.host.datasets[s.spec.Target]
		h.head[d.Name] = append(slices.Clip(h.content[at.of.from]), at.writes...)
		delete(h.partial, d.Name)
		s.rollback(d, at.of.from)
		delete(d.Properties, "inconsistent")
		set(d, "receive_resume_token", "-")
		h.add(d, v)
		return nil
	})
}

// save keeps the partially received state, unless the receive is not resumable.
func (s *receiveSink) save(at *partial) {
	h := s.host
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.datasets[s.spec.Target]
	if at == nil || d == nil || s.spec.Corrective {
		return
	}
	if s.spec.NotResumable {
		delete(h.partial, d.Name)
		if d.Inconsistent() {
			h.remove(d.Name)
		}
		return
	}
	var flags []string
	if at.of.raw {
		flags = append(flags, "rawok")
	}
	set(d, "receive_resume_token", zfstest.TokenAt(uint64(len(at.writes)), at.of.name, at.of.to, at.of.from, flags...))
}

// Damage returns the part of Damaged that belongs to a pool.
func (h *Host) Damage(ctx context.Context, pool string) (zfs.Damage, error) {
	return query(ctx, h, zfs.OpStatus, []string{pool}, func() (zfs.Damage, error) {
		d := h.Damaged
		d.Objects = slices.DeleteFunc(slices.Clone(d.Objects), func(t zfs.DamagedObject) bool { return t.Dataset != "" && zfs.PoolOf(t.Dataset) != pool })
		return d, nil
	})
}

// Scrub removes healed errors from Damaged.
func (h *Host) Scrub(ctx context.Context, pool string) error {
	return h.do(ctx, zfs.OpScrub, []string{pool}, func() error {
		h.Damaged.Scan = zfs.Scan{Text: "scrub repaired 0B in 00:00:00 with 0 errors on " + time.Unix(h.Now(), 0).Format(time.ANSIC)}
		h.Damaged.Objects = slices.DeleteFunc(h.Damaged.Objects, func(t zfs.DamagedObject) bool { return h.healed[t.Shown] })
		return nil
	})
}

// Sync makes "written" include the bytes of WriteLate.
func (h *Host) Sync(ctx context.Context, pool string) error {
	return h.do(ctx, zfs.OpSync, []string{pool}, func() error {
		for name, n := range h.late {
			if d := h.datasets[name]; d != nil && zfs.PoolOf(name) == pool {
				set(d, "written", strconv.Itoa(n))
				delete(h.late, name)
			}
		}
		return nil
	})
}

// correct heals errors of a dataset through one of its snapshots.
func (h *Host) correct(snapshot string, of stream) error {
	d, at := h.find(snapshot)
	if at < 0 || d.Versions[at].GUID != of.to {
		return fail(zfs.NoBase, zfs.OpReceive, snapshot)
	}
	if h.healed == nil {
		h.healed = map[string]bool{}
	}
	for _, t := range h.Damaged.Objects {
		if t.Dataset == d.Name && (h.Heals == nil || h.Heals(t, of.from)) {
			h.healed[t.Shown] = true
		}
	}
	return nil
}

// Revert rolls a dataset back to a snapshot.
func (h *Host) Revert(ctx context.Context, snapshot string) error {
	return h.do(ctx, zfs.OpRollback, []string{snapshot}, func() error {
		d, at := h.find(snapshot)
		if at < 0 {
			return fail(zfs.NotFound, zfs.OpRollback, snapshot)
		}
		h.head[d.Name] = h.content[d.Versions[at].GUID]
		d.Versions = slices.Delete(d.Versions, at+1, len(d.Versions))
		return nil
	})
}
