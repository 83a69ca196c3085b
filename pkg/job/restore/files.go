package restore

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
	"zxfer/pkg/job/ends"
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
	Paths  []string          // inside the snapshot
	// At, if not zero, selects the most recent snapshot taken at or before that time.
	At        time.Time
	KeyFile   string // on the source; its key may be loaded temporarily
	Overwrite bool
	DryRun    bool

	transport.Settings
	Retries int // after interruptions, without progress in between
}

// FilesReporter receives the events of a file restore.
type FilesReporter interface {
	ends.Watcher
	// FilesPlanned is called once, before any change.
	FilesPlanned(*FilesReport)
	// FilesStarted is called for every try; bytes is the amount still to transfer.
	FilesStarted(r *FilesReport, bytes uint64)
	// Progress is called about twice a second; id is 1.
	Progress(id int, p connect.Progress)
	// FilesFinished is called after every started try.
	FilesFinished(r *FilesReport, bytes uint64, err error)
}

// FilesReport is the JSON report of `zxfer restore --files`.
type FilesReport struct {
	Schema   string            `json:"schema"` // "zxfer.files/v1"
	Source   string            `json:"source"`
	Target   string            `json:"target"`
	DryRun   bool              `json:"dry_run"`
	Snapshot string            `json:"snapshot"` // source of the files, "pool/a@x"
	Notes    []string          `json:"notes,omitempty"`
	Wire     connect.Report    `json:"wire"`
	Findings []finding.Finding `json:"findings"` // on hosts and link
	// Plan counts the files to restore, before any change.
	Plan files.Account `json:"plan"`
	// Result counts the files of all tries.
	Result             *files.Account `json:"result,omitempty"`
	Bytes              uint64         `json:"bytes"` // stream bytes
	Seconds            float64        `json:"seconds,omitempty"`
	LimitedBy          string         `json:"limited_by,omitempty"`
	outcome.Conclusion                // planned, done, up-to-date, failed, refused, interrupted
}

// RunFiles runs `zxfer restore --files`. Errors are classified as in send.Run.
func RunFiles(ctx context.Context, req Files, at *hosts.Set, rep FilesReporter) (*FilesReport, error) {
	f := &filesJob{req: req, rep: rep, ends: ends.New(at, req.Source, req.Target, &req.Settings), report: &FilesReport{
		Schema: "zxfer.files/v1", Source: req.Source.String(), Target: req.Target.String(), DryRun: req.DryRun, Findings: []finding.Finding{}}}
	err := outcome.Settle(ctx, f.run(ctx))
	success := outcome.Done
	switch {
	case req.DryRun:
		success = outcome.Planned
	case f.report.Result == nil:
		success = outcome.UpToDate
	}
	f.report.Conclusion = outcome.Conclude(err, success)
	return f.report, err
}

type filesJob struct {
	ends    *ends.Ends
	req     Files
	rep     FilesReporter
	report  *FilesReport
	pending files.Account // what remains, as of the last preview
}

func (f *filesJob) run(ctx context.Context) error {
	err := f.ends.Prepare(ctx, f.rep, &ends.Stages{
		Survey: func(ctx context.Context) error {
			return ends.WithActivity(ctx, f.rep, fmt.Sprintf("inspecting %s and %s", f.req.Source, f.req.Target), f.survey)
		},
		Admit: f.admit,
		Moves: func() bool { return true },
		Evaluate: func() {
			f.report.Wire, f.report.Findings = f.ends.Search.Link().Report(false, true), f.ends.DeviceFindings()
		},
		Measure: func(ctx context.Context) error {
			if err := ends.WithActivity(ctx, f.rep, "listing the files to restore", f.preview); err != nil {
				return err
			}
			f.report.Plan = f.pending
			return nil
		},
		Planned: func() {
			if preflight.Blocking(f.report.Findings, nil) == nil { // otherwise there was no preview
				f.rep.FilesPlanned(f.report)
			}
		},
	})
	if err != nil || f.req.DryRun || f.pending.New+f.pending.Replaced+f.pending.Failed == 0 && !f.pending.Unfinished {
		return err
	}
	start := time.Now()
	err = f.restoreFiles(ctx)
	f.report.Seconds = time.Since(start).Seconds()
	return err
}

// survey connects to both hosts and selects the snapshot.
func (f *filesJob) survey(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { f.ends.Source.Facts, err = f.ends.Source.Conn.Facts(gctx); return })
	g.Go(func() (err error) { // the target may have no ZFS
		f.ends.Target.Facts, err = hosts.Call(gctx, f.ends.Target.Conn, hosts.OpHostFacts, hosts.None{})
		return
	})
	g.Go(func() error { f.ends.Source.System = f.ends.Source.Conn.System(gctx); return nil })
	g.Go(func() error { f.ends.Target.System = f.ends.Target.Conn.System(gctx); return nil })
	if err := g.Wait(); err != nil {
		return err
	}
	if err := f.ends.Choose(f.req.Settings, f.rep.Log); err != nil {
		return err
	}
	f.report.Wire = f.ends.Search.Link().Report(false, true)
	if _, _, err := zfs.ParseSnapshot(f.req.Source.Name); err == nil {
		f.report.Snapshot = f.req.Source.Name
		return nil
	}
	dataset := f.req.Source.Name
	listed, err := f.ends.Source.Conn.List(ctx, hosts.ListQuery{Dataset: dataset, NoAncestors: true, Versions: true})
	if err != nil {
		return err
	}
	listed.DropSnapshots(zfs.HealPrefix)
	d := listed.Find(dataset)
	if d == nil {
		return fault.Refusef("check the name", "%s does not exist", f.req.Source)
	}
	if !f.req.At.IsZero() {
		f.report.Notes, err = asOf(ctx, &f.ends.Source, &listed, f.req.At, func(string) bool { return true })
		if err != nil {
			return err
		}
	}
	newest, ok := d.Latest()
	if !ok {
		return fault.Refusef("take a snapshot of it first", "%s has no snapshot", f.req.Source)
	}
	f.report.Snapshot = newest.In(dataset)
	return nil
}

// admit returns an error if a check fails, or if existing files conflict with the restore.
func (f *filesJob) admit() error {
	if err := finding.Refusal(preflight.Blocking(f.report.Findings, nil)); err != nil {
		return err
	}
	p := &f.pending
	if n := len(p.Blocked); n > 0 {
		return fault.Refusef("name another directory, or move the existing files",
			"%s: in %s a directory exists in place of a file, or a file in place of a directory: %s", f.ends.Target.Conn.Label(), f.req.Target.Name, finding.JoinFirst(p.Blocked, 3))
	}
	if p.Replaced > 0 && !f.req.Overwrite {
		return fault.Refusef("name another directory, or replace them: {{overwrite}}",
			"%s: %s: %s", f.ends.Target.Conn.Label(), english.PluralWord(int(p.Replaced), "1 different file exists", fmt.Sprintf("%d different files exist", p.Replaced)),
			finding.JoinFirst(p.Differ, 3))
	}
	return nil
}

// restoreFiles transfers the files. After an interruption it continues after the last complete
// file.
func (f *filesJob) restoreFiles(ctx context.Context) error {
	var total files.Account
	var failed files.Failures // of all tries
	l := ends.NewLoop(fmt.Sprintf("%s -> %s", f.req.Source, f.req.Target), f.req.Retries, f.rep.Log)
	l.Try = func(ctx context.Context, _ int) error {
		f.rep.FilesStarted(f.report, f.pending.Rest)
		r, a, err := f.stream(ctx, files.Archive{After: f.pending.After}, files.UnpackOptions{}, connect.Count{Total: f.pending.Rest},
			func(p connect.Progress) { f.rep.Progress(1, p) })
		f.report.Bytes, f.report.LimitedBy = f.report.Bytes+r.Bytes, r.LimitedBy
		f.report.Result, total = &total, a
		// Add the results of earlier tries, which the last try does not count.
		p := &f.report.Plan
		total.New += p.New - min(p.New, f.pending.New)
		total.Replaced += p.Replaced - min(p.Replaced, f.pending.Replaced)
		total.Bytes += p.Bytes - min(p.Bytes, f.pending.Bytes)
		total.Same = p.Same
		failed = mergeFailures(failed, total.Failures)
		total.Failures = failed
		f.rep.FilesFinished(f.report, r.Bytes, err)
		return err
	}
	l.Progress = func(ctx context.Context) (bool, error) {
		before := f.pending.New + f.pending.Replaced
		err := f.preview(ctx)
		return f.pending.New+f.pending.Replaced < before, err
	}
	l.Retryable = func(err, _ error) bool { return ends.Transient(err) }
	if err := l.Run(ctx); err != nil {
		return ends.Changed(err)
	}
	if total.Failed == 0 {
		return nil
	}
	return fault.Failf("try another snapshot or copy for the damaged files",
		"%s", english.PluralWord(int(total.Failed), "1 file was not restored correctly", fmt.Sprintf("%d files were not restored correctly", total.Failed)))
}

// mergeFailures adds the failures of a try to those before, without duplicates. A retry skips
// existing files and does not report their failures again.
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

// preview compares names and attributes to find out what remains to be restored.
func (f *filesJob) preview(ctx context.Context) (err error) {
	_, f.pending, err = f.stream(ctx, files.Archive{NamesOnly: true}, files.UnpackOptions{DryRun: true}, connect.Count{}, nil)
	return err
}

// stream sends files from source to target, or only their names for a preview.
func (f *filesJob) stream(ctx context.Context, a files.Archive, into files.UnpackOptions, count connect.Count, progress func(connect.Progress)) (connect.Result, files.Account, error) {
	a.Snapshot, a.Paths, a.KeyFile = f.report.Snapshot, f.req.Paths, f.req.KeyFile
	into.Directory, into.Overwrite = path.Clean(f.req.Target.Name), f.req.Overwrite
	options := connect.Options(&f.req.Settings, time.Now())
	r, err := f.ends.Search.Run(ctx,
		connect.From{Host: f.ends.Source.Conn, What: hosts.SendFiles{Archive: a, Options: options}},
		connect.To{Host: f.ends.Target.Conn, What: hosts.ReceiveFiles{Into: into, Options: options}}, count, progress)
	var account files.Account
	if r.Received.Files != nil {
		account = *r.Received.Files
	}
	if r.Sent.Files != nil && r.Sent.Files != r.Received.Files { // the same object if both ends are one host
		account = account.With(*r.Sent.Files)
	}
	return r, account, err
}
