package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/meet"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/site"
	"zxfer/pkg/sysinfo"
)

// RunSend runs `zxfer send`. The Report is returned, as far as it got, with
// an error too. Errors are of class fault.Refused as long as nothing was
// changed on either side, and of class fault.Interrupted where the same
// command resumes.
func RunSend(ctx context.Context, req Send, at *hosts.Set, rep Reporter) (*Report, error) {
	s := newSender(req, at, rep)

	started := time.Now()
	err := s.run(ctx)
	r := s.report
	if len(r.Results) > 0 {
		r.Seconds = time.Since(started).Seconds()
	}
	r.Outcome = outcome(err, req.DryRun, r.Plan)
	if err != nil {
		r.Error, r.Hint = err.Error(), fault.HintOf(err)
	}
	return r, err
}

func outcome(err error, dryRun bool, p *plan.Plan) string {
	if err != nil {
		switch fault.ClassOf(err) {
		case fault.Refused, fault.Usage:
			return "refused"
		case fault.Interrupted:
			return "interrupted"
		}
		return "failed"
	}
	if p.Steps() == 0 {
		return "up-to-date"
	}
	if dryRun {
		return "planned"
	}
	return "done"
}

// sender is one running send job.
type sender struct {
	req            Send
	rep            Reporter
	report         *Report
	source, target *hosts.Host
	state          plan.State
	facts          struct{ source, target site.Facts }
	// systems are what the hosts' files tell; nil where that is not known.
	systems struct{ source, target *sysinfo.System }
	link    meet.Link
	streams streamCounter
	links   []preflight.Measured
}

func newSender(req Send, at *hosts.Set, rep Reporter) *sender {
	req.Plan.Bookmark = req.Bookmark
	req.Plan.AnyKey = slices.Contains(req.SkipChecks, plan.KeyChanged)
	s := &sender{req: req, rep: rep, report: &Report{
		Schema: "zxfer.send/v1", Source: req.Source.String(), Target: req.Target.String(), DryRun: req.DryRun,
	}}
	s.source, s.target = at.At(req.Source.Host, &req.Way), at.At(req.Target.Host, &req.Way)
	return s
}

func (s *sender) run(ctx context.Context) error {
	defer s.startBackend(ctx)()
	if err := s.resolve(ctx); err != nil {
		return err
	}
	reached := time.Now()
	if err := s.resolveSource(ctx); err != nil {
		return unchanged(err)
	}
	if err := s.look(ctx); err != nil {
		return unchanged(err)
	}
	pretend := s.req.TakeSnapshot != ""
	if pretend {
		pretendSnapshot(&s.state.Source, s.req.TakeSnapshot)
	}
	if err := s.plan(ctx, !pretend); err != nil {
		return err
	}
	s.report.PlanSeconds = time.Since(reached).Seconds()
	// What is refused need not be measured.
	if err := s.admit(); err == nil && s.req.Measure && s.report.Plan.Steps() > 0 {
		if err := s.measure(ctx, !pretend); err != nil {
			return err
		}
	}
	s.rep.Planned(s.report)
	if err := s.admit(); err != nil {
		return err
	}
	if s.req.DryRun {
		return nil
	}
	if pretend {
		if err := s.takeSnapshot(ctx); err != nil {
			return err
		}
	}
	if work(s.report.Plan) {
		if err := s.runDatasets(ctx); err != nil {
			if pretend || s.moved() {
				err = changed(err)
			}
			return err
		}
	}
	err := s.persist(ctx, s.finish)
	if pretend || s.moved() {
		err = changed(err)
	}
	return err
}

// work tells whether a plan changes anything on the target.
func work(p *plan.Plan) bool {
	return p.Steps() > 0 || slices.ContainsFunc(p.Datasets, func(d *plan.Dataset) bool { return d.Discard != "" })
}

// moved tells whether anything arrived by now.
func (s *sender) moved() bool {
	return slices.ContainsFunc(s.report.Results, func(r *StepResult) bool { return r.Error == "" || r.Bytes > 0 })
}

// resolve opens both sites and turns what was typed into dataset names.
func (s *sender) resolve(ctx context.Context) (err error) {
	if s.req.Target.Path() {
		return fault.Usagef("name the target's pool or dataset, without a leading \"/\"", "target %s is a path, not a dataset", s.req.Target)
	}
	g, gctx := errgroup.WithContext(ctx)
	look := func(e *hosts.Host, f *site.Facts, system **sysinfo.System) {
		g.Go(func() (err error) { *f, err = e.Facts(gctx); return })
		if *system == nil { // what doctor captured tells more
			g.Go(func() error { *system = e.System(gctx); return nil })
		}
	}
	look(s.source, &s.facts.source, &s.systems.source)
	if s.target != s.source {
		look(s.target, &s.facts.target, &s.systems.target)
	}
	if err := g.Wait(); err != nil {
		return unchanged(err)
	}
	if s.target == s.source {
		s.facts.target, s.systems.target = s.facts.source, s.systems.source
	}
	s.report.Hosts = []HostReport{
		hostReport(s.source.Label(), "source", s.facts.source),
		hostReport(s.target.Label(), "target", s.facts.target),
	}
	s.link, err = s.chooseLink()
	return err
}

func (s *sender) chooseLink() (meet.Link, error) {
	return meet.Choose(s.req.Way, meet.Side{Host: s.source, Facts: s.facts.source}, meet.Side{Host: s.target, Facts: s.facts.target})
}

// startBackend lets this host's libzfs_core, which takes a while, start while the
// other is reached. One stream alone does not need it. What goes wrong the estimate
// tells. The function that it returns waits for the end of that.
func (s *sender) startBackend(ctx context.Context) (done func()) {
	if !s.req.Plan.Recursive || !s.source.Local() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.source.Do(ctx, func(st site.Site) error {
			_, err := st.Estimate(ctx, nil)
			return err
		})
	}()
	return func() { cancel(); <-over }
}

// wireReport says how a plan's streams will cross.
func wireReport(l meet.Link, p *plan.Plan) meet.Report {
	moves := func(sealed bool) bool {
		return slices.ContainsFunc(p.Datasets, func(d *plan.Dataset) bool { return len(d.Steps) > 0 && d.Encrypted == sealed })
	}
	return l.Report(moves(true), moves(false))
}

func hostReport(name, role string, f site.Facts) HostReport {
	return HostReport{Name: name, Role: role, ZFS: f.ZFS, Backend: f.Backend, Version: f.Version}
}

// look surveys what the request names.
func (s *sender) look(ctx context.Context) (err error) {
	s.state, err = s.survey(ctx, s.req.Plan)
	return err
}

// plan makes the plan of the surveyed state and fills the report with it.
func (s *sender) plan(ctx context.Context, estimate bool) error {
	p, err := s.makePlan(ctx, s.req.Plan, &s.state)
	if err != nil {
		return unchanged(err)
	}
	s.report.Plan = &p
	if len(p.Conflicts) == 0 && estimate {
		if err := s.estimate(ctx, &p, false); err != nil {
			return unchanged(err)
		}
	}
	s.report.Commands = commands(&p)
	s.report.Wire = wireReport(s.link, &p)
	s.report.Findings = preflight.Send(s.preflightInput(&p))
	return nil
}

// admit refuses a plan with conflicts or blocking findings.
func (s *sender) admit() error {
	return finding.Refusal(slices.Concat(s.report.Plan.Conflicts, preflight.Blocking(s.report.Findings, s.req.SkipChecks)))
}

// takeSnapshot takes the snapshot of --snapshot and plans anew with it.
func (s *sender) takeSnapshot(ctx context.Context) error {
	var names []string
	for _, d := range s.state.Source.Datasets {
		if !d.Inconsistent() { // of what is half received ZFS takes none, and the plan skips it
			names = append(names, d.Name+"@"+s.req.TakeSnapshot)
		}
	}
	err := s.source.Do(ctx, func(st site.Site) error { return st.Snapshot(ctx, names) })
	if err != nil {
		return fmt.Errorf("take snapshot @%s: %w", s.req.TakeSnapshot, err)
	}
	below := ""
	if len(names) > 1 {
		below = " and " + english.Plural(len(names)-1, "dataset", "") + " below it"
	}
	s.rep.Log(fmt.Sprintf("took snapshot @%s of %s%s", s.req.TakeSnapshot, s.req.Plan.Source, below))
	if err := s.look(ctx); err != nil {
		return changed(err)
	}
	if err := s.plan(ctx, true); err != nil {
		return changed(err)
	}
	return changed(s.admit())
}

// changed classifies an error that came after something was changed: a refusal
// would say that nothing was.
func changed(err error) error {
	switch fault.ClassOf(err) {
	case fault.Refused, fault.Usage:
		return &fault.Error{Class: fault.Failed, Hint: fault.HintOf(err), Err: err}
	}
	return err
}

// unchanged classifies an error that came before anything was changed.
// A failure to look is still a failure (exit 1), not a refusal.
func unchanged(err error) error {
	if errors.Is(err, context.Canceled) {
		return fault.Interrupt("nothing was changed", errors.New("interrupted"))
	}
	return err
}
