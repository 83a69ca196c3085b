package send

import (
	"zxfer/pkg/finding"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// Result is the report of any job but a doctor's.
type Result interface{ Concluded() *outcome.Conclusion }

// Reporter receives the events of a job.
type Reporter interface {
	ends.Watcher
	// Planned is called once, before any change.
	Planned(*Report)
	// Started is called for every stream; id is unique within the job.
	Started(id int, d *plan.Dataset, step int)
	// Progress is called about twice a second for every running stream.
	Progress(id int, p connect.Progress)
	// Finished is called after every started stream.
	Finished(id int, r *StepResult)
	// Ended is called once for every dataset of the plan, after the last try. err is nil if it
	// arrived.
	Ended(d *plan.Dataset, err error)
}

// Quiet is a Reporter that ignores all events.
type Quiet struct{}

func (Quiet) Log(string)                      {}
func (Quiet) Activity(string) func()          { return func() {} }
func (Quiet) Planned(*Report)                 {}
func (Quiet) Started(int, *plan.Dataset, int) {}
func (Quiet) Progress(int, connect.Progress)  {}
func (Quiet) Finished(int, *StepResult)       {}
func (Quiet) Ended(*plan.Dataset, error)      {}

// StepResult is the result of one stream.
type StepResult struct {
	Source   string    `json:"source"`
	Target   string    `json:"target"`
	Snapshot string    `json:"snapshot"` // sent snapshot, "@name"
	Kind     plan.Kind `json:"kind"`
	Bytes    uint64    `json:"bytes"` // stream bytes moved by this command
	// ReadBytes is the size of the stream that the source read, if it sent only some blocks.
	ReadBytes uint64 `json:"read_bytes,omitempty"`
	Blocks    uint64 `json:"blocks,omitempty"` // their number
	connect.Speed
	Resumed bool   `json:"resumed"`
	Tries   int    `json:"tries"`
	Wire    string `json:"wire"` // "local" without a network
	connect.Bottleneck
	Verified string `json:"verified,omitempty"` // "guid", or "guid and content"
	Digest   string `json:"digest,omitempty"`   // of the stream (xxh3-128) or, with --verify, of the content
	Error    string `json:"error,omitempty"`
}

// Report is the JSON report of a send or restore, first with the plan, then with results.
type Report struct {
	Schema   string            `json:"schema"` // "zxfer.send/v1" or "zxfer.restore/v1"
	Source   string            `json:"source"`
	Target   string            `json:"target"`
	DryRun   bool              `json:"dry_run"`
	Plan     *plan.Plan        `json:"plan"`
	Wire     connect.Report    `json:"wire"`
	Hosts    []ends.HostReport `json:"hosts"`
	Findings []finding.Finding `json:"findings"`
	Growth   *preflight.Growth `json:"growth,omitempty"` // of the target; nil if the plan sends nothing
	Commands []string          `json:"commands"`         // equivalent zfs commands
	// PlanSeconds is the duration of survey, plan and estimates, without connecting.
	PlanSeconds float64            `json:"plan_seconds,omitempty"`
	Results     []*StepResult      `json:"results,omitempty"`
	Bytes       uint64             `json:"bytes"`
	Seconds     float64            `json:"seconds,omitempty"` // duration of all streams
	LimitedBy   string             `json:"limited_by,omitempty"`
	Ceilings    []probe.Ceiling    `json:"ceilings,omitempty"` // of --measure
	Expected    *forecast.Expected `json:"expected,omitempty"` // of --measure; nil if nothing could be measured
	// Mounted lists the filesystems that a restore mounted, also again.
	Mounted []string `json:"mounted,omitempty"`
	// Next lists the commands left to the user after a restore.
	Next []string `json:"next,omitempty"`
	// Diverged is the command that makes the copy follow again after a restore rolled the
	// original back behind the copy, "" if it did not.
	Diverged string `json:"diverged,omitempty"`
	// Interrupted reports that the user interrupted the transfer, and that its error counts what arrived.
	Interrupted        bool `json:"-"`
	outcome.Conclusion      // planned, done, up-to-date, failed, refused, interrupted
}

// DatasetResult is the result of one dataset of a Batch.
type DatasetResult struct {
	outcome.Dataset
	// Final is the snapshot that the target should have, named as on the source. NameOnTarget is its
	// name on the target, "" if it is missing.
	Final        zfs.Version
	NameOnTarget string
	Err          error
	// Unset reports properties of zfs.Dataset.Access that the copy lacks; nil = none.
	Unset error
}

// resultOf returns the initial result of a planned dataset.
func resultOf(d *plan.Dataset) *DatasetResult {
	r := &DatasetResult{Final: d.Final, Dataset: outcome.Dataset{Source: d.Source, Target: d.Target, Snapshot: d.Final.Name, Streams: len(d.Steps)}}
	if d.Rename != nil {
		r.RenamedTo = d.Rename.As
	}
	if len(d.Steps) > 0 && d.Steps[0].Kind == plan.Full {
		r.Full = 1
	}
	return r
}
