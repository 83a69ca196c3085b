package failover

import (
	"context"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// checkBlockSizes refuses a change of roles after which plain increments from the copy to the source would
// lose data. It compares each common snapshot once. Later runs compare what arrives then.
func (s *roleSwitch) checkBlockSizes(ctx context.Context) error {
	var pairs []*plan.BlockPair
	for _, d := range s.reads.Datasets {
		copied := s.f.listed.Find(s.f.copyRoot + strings.TrimPrefix(d.Name, s.f.root))
		base, common := lastCommon(d, copied)
		if !common || d.Type != zfs.Filesystem || d.Encrypted() && !s.f.t.Transfer.Decrypt || s.compared[base.GUID] {
			continue
		}
		at, _ := copied.SnapshotOf(base.GUID)
		p := &plan.BlockPair{Source: at.In(copied.Name), Target: base.In(d.Name), Required: true}
		if s.f.target.Role.Kind == zfs.RoleSource { // files that the new source replaced are sent as new ones
			p.Next = copied.Name
			for _, v := range copied.Snapshots() {
				if v.CreateTXG > at.CreateTXG {
					p.Next = v.In(copied.Name)
					break
				}
			}
		}
		pairs = append(pairs, p)
		if s.compared == nil {
			s.compared = map[uint64]bool{}
		}
		s.compared[base.GUID] = true
	}
	risks, err := send.CompareBlockSizes(ctx, s.f.t.Host, s.f.session.Source.Host, pairs, func(title string) func() { return s.f.session.Activity("%s", title) })
	if err != nil {
		return err
	}
	for _, p := range pairs {
		risk := risks[p.Key()]
		dataset, _, _ := strings.Cut(p.Source, "@")
		switch {
		case risk.Refused != nil:
			return fault.Refusef(fault.HintOf(risk.Refused), "%s could not be sent back: the block sizes of its files cannot be compared: %w", dataset, risk.Refused)
		case risk.Count > 0:
			return fault.Refusef(s.rewriteHint(), "%s could not be sent back: %s", dataset, risk.Describe())
		}
	}
	return nil
}

// checkBlockSizesNow is checkBlockSizes with the snapshots that arrived since the last check.
func (s *roleSwitch) checkBlockSizesNow(ctx context.Context) error {
	if err := s.list(ctx); err != nil {
		return err
	}
	return s.checkBlockSizes(ctx)
}

// rewriteHint returns the remedies for files with different block sizes.
func (s *roleSwitch) rewriteHint() string {
	const rewrite = "replace each by a copy of itself (cp -a FILE FILE.new; mv FILE.new FILE)"
	if s.f.target.Role.Kind == zfs.RoleSource {
		return "to rename the former source and send in full: " + s.f.again("--rotate") + "\nor " + rewrite + " on " + s.f.t.Host.Label()
	}
	return rewrite + " on " + s.f.session.Source.Host.Label() + "\nthen send them: " + s.f.session.Env.Command("run "+s.f.session.Job.Name)
}
