package job

import (
	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/finding"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
)

// Dev is a request for `zxfer dev`.
type Dev struct {
	Source endpoint.Endpoint // Name is an absolute path
	Target endpoint.Endpoint
	// Compare hashes both and copies nothing.
	Compare bool
	DryRun  bool
	Measure bool // measure what limits the copy before it starts
	// Digest is device.XXH3 or device.BLAKE3; "" is the former, but for an
	// interrupted copy that goes on and for one of what differs.
	Digest string

	transport.Settings
	device.Request // what the way says is not in its Options

	SkipChecks []string // findings to pass over, by id

	Retries int // after a cut, without progress between
}

// DevReporter is told what happens while a device is copied.
type DevReporter interface {
	Watcher
	// DevicePlanned is called once, before anything is changed.
	DevicePlanned(*DevReport)
	// DeviceStarted is called for every try.
	DeviceStarted(r *DevReport, done uint64)
	// Progress is called about twice a second; id is 1.
	Progress(id int, p connect.Progress)
	// DeviceFinished is called for every try that was started.
	DeviceFinished(r *DevReport, result *DevResult)
}

// DevReport is the account of `zxfer dev`: before (plan) and after (results).
// It is the object that --json prints.
type DevReport struct {
	Schema    string            `json:"schema"` // "zxfer.dev/v1"
	Source    string            `json:"source"`
	Target    string            `json:"target"`
	DryRun    bool              `json:"dry_run"`
	Compare   bool              `json:"compare,omitempty"`
	Wire      connect.Report    `json:"wire"`
	From      *device.Facts     `json:"source_device,omitempty"`
	To        *device.Facts     `json:"target_device,omitempty"`
	Problems  []finding.Finding `json:"problems"`
	Findings  []finding.Finding `json:"findings"`           // of the hosts and the way between them
	Ceilings  []probe.Ceiling   `json:"ceilings,omitempty"` // of a measurement
	Expected  *Expected         `json:"expected,omitempty"`
	Size      uint64            `json:"size"`
	Block     int               `json:"block"`
	Digest    string            `json:"digest,omitempty"` // what digests are told of: xxh3 or blake3
	Delta     bool              `json:"delta,omitempty"`
	Resumable uint64            `json:"resumable,omitempty"` // bytes that an interrupted copy stored
	Unusable  string            `json:"unusable,omitempty"`  // why such a copy cannot be resumed
	Results   []*DevResult      `json:"results"`             // of every try
	Seconds   float64           `json:"seconds,omitempty"`   // that copying or comparing took
	Equal     *bool             `json:"equal,omitempty"`     // of a comparison
	Differ    []device.Range    `json:"differ,omitempty"`    // of a comparison: where about
	Outcome   string            `json:"outcome"`             // planned, done, equal, different, failed, refused, interrupted
	Error     string            `json:"error,omitempty"`
	Hint      string            `json:"hint,omitempty"`
}

// DevResult is the end of one try.
type DevResult struct {
	device.Account
	Seconds   float64           `json:"seconds"`
	Rate      uint64            `json:"bytes_per_second"` // of device
	WireBytes int64             `json:"wire_bytes"`
	Wire      string            `json:"wire"`
	Tries     int               `json:"tries"`
	Resumes   bool              `json:"resumes"`
	LimitedBy string            `json:"limited_by,omitempty"`
	Stages    []transfer.Stage  `json:"stages,omitempty"`
	Network   *transfer.Network `json:"network,omitempty"`
	Error     string            `json:"error,omitempty"`
}
