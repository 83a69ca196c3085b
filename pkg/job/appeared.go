package job

import (
	"context"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// checkAppeared looks whether anything is below the target that the plan did
// not bring and that was not there before. What streams may bring zfs.Gate
// judges; this is what remains to be seen of it.
func (s *sender) checkAppeared(ctx context.Context) error {
	before := &s.state.Target
	if !s.req.Plan.Recursive && before.Find(before.Root) != nil {
		return nil // what was below it before is not known
	}
	after, err := s.target.List(ctx, site.ListQuery{Dataset: before.Root, Recursive: true, Alone: true, Changed: true})
	if err != nil {
		return err
	}
	unknown := unknown(s.report.Plan, before, &after)
	if len(unknown) == 0 {
		return nil
	}
	if after, err = s.target.List(ctx, site.ListQuery{Dataset: before.Root, Only: unknown, Alone: true, Newest: true}); err != nil {
		return err
	}
	return s.unplanned(before, &after)
}

func (s *sender) unplanned(before, after *zfs.Listing) error {
	names := appeared(s.report.Plan, before, after)
	if len(names) == 0 {
		return nil
	}
	return fault.Failf("before anything there is mounted, look at it: zfs get all "+zfs.CommandLine(names),
		"%s: below %s there are datasets now that were neither there before nor planned: %s",
		s.target.Label(), before.Root, strings.Join(names, ", "))
}

// appeared are the datasets below a target that came without being planned. One
// without a snapshot was received by nobody: it was created there.
func appeared(p *plan.Plan, before, after *zfs.Listing) (names []string) {
	for _, name := range unknown(p, before, after) {
		if d := after.Find(name); len(d.Versions) > 0 || d.Inconsistent() {
			names = append(names, name)
		}
	}
	return names
}

// unknown are those that were neither planned nor there before.
func unknown(p *plan.Plan, before, after *zfs.Listing) (names []string) {
	known := map[string]bool{}
	for _, d := range before.Datasets {
		known[d.Name] = true
	}
	for _, d := range p.Datasets {
		for name := d.Target; name != "" && !known[name]; name = zfs.ParentOf(name) {
			known[name] = true // with the parents that were created
		}
	}
	for _, d := range after.Datasets {
		if !known[d.Name] {
			names = append(names, d.Name)
		}
	}
	return names
}
