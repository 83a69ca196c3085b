package job

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// finish verifies what arrived and places holds and bookmarks. It runs also
// where nothing had to be sent: a hold asked for is then placed all the same.
func (s *sender) finish(ctx context.Context) error {
	arrived := s.state.Target
	if s.report.Plan.Steps() > 0 {
		var err error
		if arrived, err = s.arrived(ctx); err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	have, err := s.verifyGUIDs(&arrived)
	if err != nil {
		return err
	}
	if s.req.Verify {
		if s.report.Plan.Steps() == 0 {
			s.rep.Log("--verify: nothing was sent, so there are only GUIDs to compare, which are equal")
		}
		if err := s.verifyContents(ctx, have); err != nil {
			return err
		}
	}
	if err := s.keep(ctx, have); err != nil || s.report.Plan.Steps() == 0 {
		return err
	}
	return s.checkAppeared(ctx)
}

// arrived looks at the target once more: at the datasets and snapshots of the
// plan, or at all that it has where it lacks one of these by name, as when
// somebody renamed it, and where contents are to be compared.
func (s *sender) arrived(ctx context.Context) (zfs.Listing, error) {
	all := site.ListQuery{Dataset: s.state.Target.Root, Recursive: s.req.Plan.Recursive, Versions: true, Alone: true}
	if s.req.Verify {
		return s.target.List(ctx, all)
	}
	var names []string
	for _, d := range s.report.Plan.Datasets {
		names = append(names, d.Target, s.arrivedName(d))
	}
	found, err := s.target.Properties(ctx, names, []string{"guid", "canmount", "readonly"})
	if err != nil {
		return zfs.Listing{}, err
	}
	l := zfs.Listing{Root: all.Dataset}
	for _, d := range s.report.Plan.Datasets {
		t, snapshot := found[d.Target], found[s.arrivedName(d)]
		if t == nil || snapshot["guid"].Value != strconv.FormatUint(d.Arrive.GUID, 10) {
			return s.target.List(ctx, all)
		}
		at := d.Arrive
		_, at.Name, _ = strings.Cut(s.arrivedName(d), "@")
		l.Datasets = append(l.Datasets, &zfs.Dataset{Name: d.Target, Type: d.Type, Properties: t, Versions: []zfs.Version{at}, NewestOnly: true})
	}
	return l, nil
}

// arrivedName is the full name on the target of the snapshot that a dataset
// arrives at: another than on the source where it was there already, renamed.
func (s *sender) arrivedName(d *plan.Dataset) string {
	if t := s.state.Target.Find(d.Target); t != nil {
		if v, ok := t.SnapshotOf(d.Arrive.GUID); ok {
			return v.In(d.Target)
		}
	}
	return d.Target + "@" + d.Arrive.Name
}

// verifyGUIDs checks that every dataset of the plan holds the very snapshot
// that was sent, and returns the target's datasets by name.
func (s *sender) verifyGUIDs(arrived *zfs.Listing) (map[string]*zfs.Dataset, error) {
	have := make(map[string]*zfs.Dataset, len(arrived.Datasets))
	for _, d := range arrived.Datasets {
		have[d.Name] = d
	}
	for _, d := range s.report.Plan.Datasets {
		t := have[d.Target]
		if t == nil {
			return nil, fault.Failf("", "%s: %s is not there after the transfer", s.target.Label(), d.Target)
		}
		s.verifySafety(d, t)
		if _, ok := t.SnapshotOf(d.Arrive.GUID); !ok {
			return nil, fault.Failf("look at both sides: zfs list -t snapshot -o name,guid "+d.Target,
				"%s: %s has no snapshot with the GUID %d of %s", s.target.Label(), d.Target, d.Arrive.GUID, d.Arrive.In(d.Source))
		}
	}
	for _, r := range s.report.Results {
		if r.Error == "" {
			r.Verified = "guid"
		}
	}
	return have, nil
}

// verifySafety says when a new dataset lacks what keeps it from being mounted
// or changed: to a user without the permission for it, zfs receive only prints
// that it could not set a property, and succeeds.
func (s *sender) verifySafety(d *plan.Dataset, t *zfs.Dataset) {
	if len(d.Steps) == 0 {
		return
	}
	for _, name := range []string{"canmount", "readonly"} {
		if want, set := d.Steps[0].Receive.Set[name]; set && t.Get(name) != want {
			s.rep.Log(fmt.Sprintf("%s: %s has %s=%s, not %s: the user there may not set it", s.target.Label(), d.Target, name, t.Get(name), want))
		}
	}
}

// keep places the holds and bookmarks that were asked for.
func (s *sender) keep(ctx context.Context, have map[string]*zfs.Dataset) error {
	var source, target []string
	bookmarks := map[string]string{}
	for _, d := range s.report.Plan.Datasets {
		source = append(source, d.Arrive.In(d.Source))
		// The target may have renamed it: the GUID was verified, not the name.
		if v, ok := have[d.Target].SnapshotOf(d.Arrive.GUID); ok {
			target = append(target, v.In(d.Target))
		}
		bookmarks[d.Source+"#"+d.Arrive.Name] = d.Arrive.In(d.Source)
	}
	if tag := s.req.Hold; tag != "" {
		if err := s.source.Do(ctx, func(st site.Site) error { return st.Hold(ctx, tag, source) }); err != nil {
			return fmt.Errorf("the data arrived, but: %w", err)
		}
		if err := s.target.Do(ctx, func(st site.Site) error { return st.Hold(ctx, tag, target) }); err != nil {
			return fmt.Errorf("the data arrived, but: %w", err)
		}
	}
	if s.req.Bookmark {
		if err := s.source.Do(ctx, func(st site.Site) error { return st.Bookmark(ctx, bookmarks) }); err != nil {
			return fmt.Errorf("the data arrived, but: %w", err)
		}
	}
	return nil
}
