package job

import (
	"context"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/preflight"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// Files is a request for `zxfer restore --files`.
type Files struct {
	Source endpoint.Endpoint // Name is "dataset" or "dataset@snapshot"
	Target endpoint.Endpoint // Name is the absolute path of a directory
	Paths  []string          // in the snapshot
	// At, where not zero, asks for the newest snapshot of then or before.
	At        time.Time
	KeyFile   string // on the source, of the key that may be loaded meanwhile
	Overwrite bool
	DryRun    bool

	transport.Settings
	Retries int // after a cut, without progress between
}

// FilesReporter is told what happens while files are restored.
type FilesReporter interface {
	Watcher
	// FilesPlanned is called once, before anything is changed.
	FilesPlanned(*FilesReport)
	// FilesStarted is called for every try, which is to move so many bytes.
	FilesStarted(r *FilesReport, bytes uint64)
	// Progress is called about twice a second; id is 1.
	Progress(id int, p connect.Progress)
	// FilesFinished is called for every try that was started.
	FilesFinished(r *FilesReport, bytes uint64, err error)
}

// FilesReport is the account of `zxfer restore --files`, which --json prints.
type FilesReport struct {
	Schema   string            `json:"schema"` // "zxfer.files/v1"
	Source   string            `json:"source"`
	Target   string            `json:"target"`
	DryRun   bool              `json:"dry_run"`
	Snapshot string            `json:"snapshot"` // "pool/a@x" that the files are from
	Notes    []string          `json:"notes,omitempty"`
	Wire     connect.Report    `json:"wire"`
	Findings []finding.Finding `json:"findings"` // of the hosts and the way between them
	// Plan is what would come of it, before anything was changed.
	Plan files.Account `json:"plan"`
	// Result is what came of it, of all tries.
	Result    *files.Account `json:"result,omitempty"`
	Bytes     uint64         `json:"bytes"` // of streams
	Seconds   float64        `json:"seconds,omitempty"`
	LimitedBy string         `json:"limited_by,omitempty"`
	Outcome   string         `json:"outcome"` // planned, done, up-to-date, failed, refused, interrupted
	Error     string         `json:"error,omitempty"`
	Hint      string         `json:"hint,omitempty"`
}

// RunFiles runs `zxfer restore --files`. Errors are classed as those of RunDev.
func RunFiles(ctx context.Context, req Files, at *hosts.Set, rep FilesReporter) (*FilesReport, error) {
	f := &filesJob{req: req, rep: rep, ends: newEnds(at, req.Source, req.Target, &req.Settings), report: &FilesReport{
		Schema: "zxfer.files/v1", Source: req.Source.String(), Target: req.Target.String(), DryRun: req.DryRun, Findings: []finding.Finding{}}}
	err := outcome.Settle(ctx, f.run(ctx))
	r := f.report
	switch {
	case err != nil:
		r.Outcome, r.Error, r.Hint = outcome.Of(err), err.Error(), fault.HintOf(err)
	case req.DryRun:
		r.Outcome = outcome.Planned
	case r.Result == nil:
		r.Outcome = outcome.UpToDate
	default:
		r.Outcome = outcome.Done
	}
	return r, err
}

// filesJob is one running restore of files.
type filesJob struct {
	*ends
	req    Files
	rep    FilesReporter
	report *FilesReport
	now    files.Account // of the last look
}

func (f *filesJob) run(ctx context.Context) error {
	if err := withActivity(ctx, f.rep, fmt.Sprintf("looking at %s and %s", f.req.Source, f.req.Target), f.survey); err != nil {
		return unchanged(err)
	}
	if err := f.open(ctx, f.rep); err != nil {
		return err
	}
	f.report.Wire, f.report.Findings = f.link.Report(false, true), f.findings()
	if err := finding.Refusal(preflight.Blocking(f.report.Findings, nil)); err != nil {
		return err
	}
	if err := withActivity(ctx, f.rep, "looking at what would come", f.look); err != nil {
		return unchanged(err)
	}
	f.report.Plan = f.now
	f.rep.FilesPlanned(f.report)
	if err := f.refuse(); err != nil || f.req.DryRun {
		return err
	}
	if f.now.New+f.now.Replaced+f.now.Failed == 0 && !f.now.Unfinished {
		return nil
	}
	began := time.Now()
	err := f.bring(ctx)
	f.report.Seconds = time.Since(began).Seconds()
	return err
}

// survey reaches both hosts, and finds out which snapshot is wanted.
func (f *filesJob) survey(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { f.source.facts, err = f.source.Facts(gctx); return })
	g.Go(func() error { // which may have no ZFS
		return f.target.Do(gctx, func(st hosts.Host) (err error) { f.target.facts, err = st.HostFacts(gctx); return })
	})
	g.Go(func() error { f.source.system = f.source.System(gctx); return nil })
	g.Go(func() error { f.target.system = f.target.System(gctx); return nil })
	if err := g.Wait(); err != nil {
		return err
	}
	if err := f.choose(f.req.Settings); err != nil {
		return err
	}
	f.report.Wire = f.link.Report(false, true)
	if _, _, err := zfs.ParseSnapshot(f.req.Source.Name); err == nil {
		f.report.Snapshot = f.req.Source.Name
		return nil
	}
	dataset := f.req.Source.Name
	listed, err := f.source.List(ctx, hosts.ListQuery{Dataset: dataset, Alone: true, Versions: true})
	if err != nil {
		return err
	}
	listed.Skip(zfs.HealPrefix)
	d := listed.Find(dataset)
	if d == nil {
		return fault.Refusef("check the name", "%s does not exist", f.req.Source)
	}
	if !f.req.At.IsZero() {
		f.report.Notes, err = asOf(ctx, &f.source, &listed, f.req.At, func(string) bool { return true })
		if err != nil {
			return err
		}
	}
	newest, ok := d.Latest()
	if !ok {
		return fault.Refusef("only snapshots are read", "%s has no snapshot", f.req.Source)
	}
	f.report.Snapshot = newest.In(dataset)
	return nil
}

// move has files cross, or what there is to say of them.
func (f *filesJob) move(ctx context.Context, a files.Archive, into files.Into, count connect.Count, progress func(connect.Progress)) (connect.Result, files.Account, error) {
	a.Snapshot, a.Paths, a.KeyFile = f.report.Snapshot, f.req.Paths, f.req.KeyFile
	into.Directory, into.Overwrite = path.Clean(f.req.Target.Name), f.req.Overwrite
	options := connect.Options(&f.req.Settings, time.Now())
	r, err := connect.Run(ctx, f.link,
		connect.From{Host: f.source.Conn, What: hosts.SendFiles{Archive: a, Options: options}},
		connect.To{Host: f.target.Conn, What: hosts.ReceiveFiles{Into: into, Options: options}}, count, progress)
	var account files.Account
	if r.Received.Files != nil {
		account = *r.Received.Files
	}
	if r.Sent.Files != nil && r.Sent.Files != r.Received.Files { // within a host it is one
		account = account.With(*r.Sent.Files)
	}
	return r, account, err
}

// look finds out what would come, by names alone.
func (f *filesJob) look(ctx context.Context) (err error) {
	_, f.now, err = f.move(ctx, files.Archive{Names: true}, files.Into{Look: true}, connect.Count{}, nil)
	return err
}

// refuse is the error of what is in the way.
func (f *filesJob) refuse() error {
	p := &f.now
	if n := len(p.Blocked); n > 0 {
		return fault.Refusef("name another directory, or move what is there",
			"%s: in %s a folder is where a file would come, or the other way round: %s", f.target.Label(), f.req.Target.Name, finding.Some(p.Blocked, 3))
	}
	if p.Replaced > 0 && !f.req.Overwrite {
		return fault.Refusef("name another directory; {{overwrite}} replaces them",
			"%s: %s there and %s: %s", f.target.Label(), english.PluralWord(int(p.Replaced), "1 file is", fmt.Sprintf("%d files are", p.Replaced)),
			english.PluralWord(int(p.Replaced), "differs", "differ"), finding.Some(p.Differ, 3))
	}
	return nil
}

// bring brings the files, anew after a cut behind those that came.
func (f *filesJob) bring(ctx context.Context) error {
	var total files.Account
	var failed files.Failures // of all tries
	e := &retrier{
		name: fmt.Sprintf("%s -> %s", f.req.Source, f.req.Target), retries: f.req.Retries, log: f.rep.Log,
		try: func(ctx context.Context, _ int) error {
			f.rep.FilesStarted(f.report, f.now.Rest)
			r, a, err := f.move(ctx, files.Archive{After: f.now.After}, files.Into{}, connect.Count{Total: f.now.Rest},
				func(p connect.Progress) { f.rep.Progress(1, p) })
			f.report.Bytes, f.report.LimitedBy = f.report.Bytes+r.Bytes, r.LimitedBy
			f.report.Result, total = &total, a
			// What earlier tries brought, of which a try that failed cannot tell.
			p := &f.report.Plan
			total.New += p.New - min(p.New, f.now.New)
			total.Replaced += p.Replaced - min(p.Replaced, f.now.Replaced)
			total.Bytes += p.Bytes - min(p.Bytes, f.now.Bytes)
			total.Same = p.Same
			failed = mergeFailures(failed, total.Failures)
			total.Failures = failed
			f.rep.FilesFinished(f.report, r.Bytes, err)
			return err
		},
		look: func(ctx context.Context) (bool, error) {
			before := f.now.New + f.now.Replaced
			err := f.look(ctx)
			return f.now.New+f.now.Replaced < before, err
		},
		curable: func(err, _ error) bool { return transient(err) },
	}
	if err := e.run(ctx); err != nil {
		return changed(err)
	}
	if total.Failed == 0 {
		return nil
	}
	return fault.Failf("what is damaged in the copy, another snapshot or copy may have whole",
		"%s", english.PluralWord(int(total.Failed), "1 file did not come as it was", fmt.Sprintf("%d files did not come as they were", total.Failed)))
}

// mergeFailures are what did not come as it was in the tries before, and in one, of which
// some are the same: what is there is passed over by the next, which tells nothing
// of it.
func mergeFailures(before, now files.Failures) files.Failures {
	all := files.Failures{Problems: slices.Clone(before.Problems), Failed: before.Failed + now.Failed}
	for _, p := range now.Problems {
		if slices.Contains(all.Problems, p) {
			all.Failed--
		} else if len(all.Problems) < files.MaxProblems {
			all.Problems = append(all.Problems, p)
		}
	}
	return all
}
