// Package job runs a whole transfer in stages: reach, survey, plan, admit, move,
// verify, each in a file of its name. sending.go has their order, send.go and
// batch.go in what one source and the datasets of a job differ; dev.go and
// devcopy.go go the same way with devices, and retry.go tries both again after a
// cut.
//
// It is the only package that sees all parts; it decides order and retries, the
// planner decides what.
package job

import (
	"context"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
)

// Send is a request for `zxfer send`.
type Send struct {
	Source endpoint.Endpoint // Name is "dataset" or "dataset@snapshot"
	Target endpoint.Endpoint
	Plan   plan.Request // Source, Snapshot and Target are filled in from the endpoints

	TakeSnapshot string // --snapshot: take one of this name first, which none has yet, "" = none
	Hold         string // --hold: tag placed on both ends' arrived snapshots, "" = none
	Bookmark     bool   // --bookmark: bookmark what was sent, on the source
	Verify       bool   // --verify: compare content digests of both sides
	DryRun       bool
	Measure      bool // --measure: measure what limits the transfer before it starts

	transport.Settings

	Parallel int // datasets at once
	// Gate, where not nil, is asked instead of Parallel before each dataset:
	// jobs that share a limit share a Gate. It returns what gives the turn
	// back, or an error once ctx has ended.
	Gate func(ctx context.Context) (release func(), err error)
	// Clock tells the time of day where the way's bandwidth depends on it; nil =
	// time.Now.
	Clock      func() time.Time
	Retries    int      // after a cut, per dataset
	SkipChecks []string // preflight findings to pass over, by id
}

// Watcher is told what is done. Methods may be called from several goroutines.
type Watcher interface {
	// Log is for a person: what is being done, retried, or was noticed.
	Log(message string)
	// Activity is called where something begins that may take a while and that no
	// stream tells of, such as a listing: what it is, as in "listing tank". The
	// function that it returns is called when that has ended.
	Activity(what string) (done func())
}

// withActivity tells what is being done as long as f does it.
func withActivity(ctx context.Context, rep Watcher, what string, f func(context.Context) error) error {
	defer rep.Activity(what)()
	return f(ctx)
}

// Reporter is told what happens while a job runs.
type Reporter interface {
	Watcher
	// Planned is called once, before anything is changed.
	Planned(*Report)
	// Started is called for every stream; id is unique within the job.
	Started(id int, d *plan.Dataset, step int)
	// Progress is called about twice a second for every running stream.
	Progress(id int, p connect.Progress)
	// Finished is called for every stream that was started.
	Finished(id int, r *StepResult)
	// Ended is called once for every dataset of the plan, when no more is tried: with
	// why it did not arrive, or nil.
	Ended(d *plan.Dataset, err error)
}

// Quiet is a Reporter that passes nothing on.
type Quiet struct{}

func (Quiet) Log(string)                      {}
func (Quiet) Activity(string) func()          { return func() {} }
func (Quiet) Planned(*Report)                 {}
func (Quiet) Started(int, *plan.Dataset, int) {}
func (Quiet) Progress(int, connect.Progress)  {}
func (Quiet) Finished(int, *StepResult)       {}
func (Quiet) Ended(*plan.Dataset, error)      {}

// StepResult is one stream's end.
type StepResult struct {
	Source    string            `json:"source"`
	Target    string            `json:"target"`
	Snapshot  string            `json:"snapshot"` // that arrived, "@name"
	Kind      plan.Kind         `json:"kind"`
	Bytes     uint64            `json:"bytes"` // of stream moved by this command
	Seconds   float64           `json:"seconds"`
	Rate      uint64            `json:"bytes_per_second"`
	Resumed   bool              `json:"resumed"`
	Tries     int               `json:"tries"`
	Wire      string            `json:"wire"` // "local" where no network was used
	LimitedBy string            `json:"limited_by,omitempty"`
	Stages    []transfer.Stage  `json:"stages,omitempty"`
	Network   *transfer.Network `json:"network,omitempty"`
	Verified  string            `json:"verified,omitempty"` // "guid", or "guid and content"
	Digest    string            `json:"digest,omitempty"`   // of the stream (xxh3-128) or, with --verify, of the content
	Error     string            `json:"error,omitempty"`
}

// Report is the whole job's account: before (plan) and after (results). It is
// the object that --json prints.
type Report struct {
	Schema   string            `json:"schema"` // "zxfer.send/v1", of a restore "zxfer.restore/v1"
	Source   string            `json:"source"`
	Target   string            `json:"target"`
	DryRun   bool              `json:"dry_run"`
	Plan     *plan.Plan        `json:"plan"`
	Wire     connect.Report    `json:"wire"`
	Hosts    []HostReport      `json:"hosts"`
	Findings []finding.Finding `json:"findings"`
	Commands []string          `json:"commands"` // the equivalent zfs command lines
	// PlanSeconds is how long the survey of both hosts, once they were reached,
	// the plan and its estimates took.
	PlanSeconds float64         `json:"plan_seconds,omitempty"`
	Results     []*StepResult   `json:"results,omitempty"`
	Bytes       uint64          `json:"bytes"`
	Seconds     float64         `json:"seconds,omitempty"` // that moving all streams took
	LimitedBy   string          `json:"limited_by,omitempty"`
	Ceilings    []probe.Ceiling `json:"ceilings,omitempty"` // of --measure
	Expected    *Expected       `json:"expected,omitempty"` // of --measure; missing where nothing could be measured
	// Next are the commands that are left to the user once a restore is done.
	Next []string `json:"next,omitempty"`
	// Diverged is the command that makes the copy follow again, if a restore took its original
	// back behind what the copy has; "" if it did not.
	Diverged string `json:"diverged,omitempty"`
	Outcome  string `json:"outcome"` // planned, done, up-to-date, failed, refused, interrupted
	Error    string `json:"error,omitempty"`
	Hint     string `json:"hint,omitempty"`
}

// HostReport is one end's facts, as far as a plan shows them.
type HostReport struct {
	Name    string `json:"name"`
	Role    string `json:"role"` // source, target
	ZFS     string `json:"zfs"`
	Backend string `json:"backend"`
	Version string `json:"version"`
}
