package job

import (
	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/finding"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/outcome"
	"zxfer/pkg/probe"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
)

// Dev is a request for `zxfer dev`.
type Dev struct {
	Source endpoint.Endpoint // Name is an absolute path
	Target endpoint.Endpoint
	// Compare hashes both devices and copies nothing.
	Compare bool
	DryRun  bool
	Measure bool // measure the bottleneck before the copy
	// Digest is device.XXH3 or device.BLAKE3. "" uses XXH3, except for resumed copies and delta
	// copies.
	Digest string

	transport.Settings
	device.Request // its Options lack the transport settings

	SkipChecks []string // IDs of findings to skip

	Retries int // after interruptions, without progress in between
}

// DevReporter receives the events of a device copy.
type DevReporter interface {
	Watcher
	// DevicePlanned is called once, before any change.
	DevicePlanned(*DevReport)
	// DeviceStarted is called for every try; done counts resumed bytes.
	DeviceStarted(r *DevReport, done uint64)
	// Progress is called about twice a second; id is 1.
	Progress(id int, p connect.Progress)
	// DeviceFinished is called after every started try.
	DeviceFinished(r *DevReport, result *DevResult)
}

// DevReport is the JSON report of `zxfer dev`, first with the plan, then with results.
type DevReport struct {
	Schema             string             `json:"schema"` // "zxfer.dev/v1"
	Source             string             `json:"source"`
	Target             string             `json:"target"`
	DryRun             bool               `json:"dry_run"`
	Compare            bool               `json:"compare,omitempty"`
	Wire               connect.Report     `json:"wire"`
	From               *device.Facts      `json:"source_device,omitempty"`
	To                 *device.Facts      `json:"target_device,omitempty"`
	Problems           []finding.Finding  `json:"problems"`
	Findings           []finding.Finding  `json:"findings"`           // on hosts and link
	Ceilings           []probe.Ceiling    `json:"ceilings,omitempty"` // of --measure
	Expected           *forecast.Expected `json:"expected,omitempty"`
	Size               uint64             `json:"size"`
	Block              int                `json:"block"`
	Digest             string             `json:"digest,omitempty"` // algorithm: xxh3 or blake3
	Delta              bool               `json:"delta,omitempty"`
	Resumable          uint64             `json:"resumable,omitempty"` // bytes stored by an interrupted copy
	Unusable           string             `json:"unusable,omitempty"`  // why it cannot be resumed
	Results            []*DevResult       `json:"results"`             // one per try
	Seconds            float64            `json:"seconds,omitempty"`   // duration of copying or comparing
	Equal              *bool              `json:"equal,omitempty"`     // of a comparison
	Differ             []device.Range     `json:"differ,omitempty"`    // of a comparison: approximate ranges
	outcome.Conclusion                    // planned, done, equal, different, failed, refused, interrupted
}

// DevResult is the result of one try.
type DevResult struct {
	device.Account
	connect.Speed        // of device bytes
	WireBytes     int64  `json:"wire_bytes"`
	Wire          string `json:"wire"`
	Tries         int    `json:"tries"`
	Resumes       bool   `json:"resumes"`
	connect.Bottleneck
	Error string `json:"error,omitempty"`
}
