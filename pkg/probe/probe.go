// Package probe inspects a running host and measures the rates of its parts.
//
//   - Capture: an archive of the files and command output that package sysinfo
//     reads facts from.
//   - Measurement: a test of about the requested duration. It ends with its
//     context and leaves no process, listener or file behind.
//   - Ceiling: the result of a measurement, the maximum rate of one part of a host.
//   - Noise: incompressible data that a measurement moves.
//
// It does not judge the results: package preflight does.
package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Measurements of one host by itself.
const (
	Memory         = "memory"
	ZeroNull       = "zero-null"
	NCYes          = "nc-yes"
	NCZero         = "nc-zero"
	LoopbackPlain  = "loopback-plain"
	LoopbackSigned = "loopback-signed"
	LoopbackTLS    = "loopback-tls"
	Hash           = "hash"
	AES            = "aes-gcm"
	Zstd           = "zstd"
)

// Measurements that need a dataset or a path.
const (
	SourceRead  = "source-read"
	TargetWrite = "target-write"
	PathRead    = "path-read"
	PathWrite   = "path-write"
)

// Idle measures how many processors other programs use, not a rate. Run it before
// the others.
const Idle = "idle"

// Local returns the IDs of the measurements of one host, in the order in which to
// run them.
func Local() []string {
	return []string{Memory, ZeroNull, Hash, AES, Zstd, LoopbackPlain, LoopbackSigned, LoopbackTLS, NCYes, NCZero}
}

// Title returns the description of a measurement.
func Title(id string) string {
	return map[string]string{
		Memory: "memory copy, one core", ZeroNull: "/dev/zero to /dev/null", NCYes: "yes | nc, nc > /dev/null", NCZero: "dd zeroes | nc, nc > /dev/null",
		LoopbackPlain: "loopback, wire plain", LoopbackSigned: "loopback, wire signed", LoopbackTLS: "loopback, wire tls",
		Hash: "xxh3 digest, one core", AES: "AES-128-GCM, one core", Zstd: "zstd fastest, one core",
		"link": "the link, source to target", "link-back": "the link, target to source",
		SourceRead: "zfs send of the source", TargetWrite: "write into the target's pool",
		PathRead: "read of the path", PathWrite: "write at the path",
	}[id]
}

// Request describes one measurement.
type Request struct {
	ID   string        `json:"id"`
	Time time.Duration `json:"time"` // approximate duration
	// Send is the stream of SourceRead.
	Send *zfs.SendSpec `json:"send,omitempty"`
	// Dataset exists. TargetWrite creates a scratch dataset below it.
	Dataset string `json:"dataset,omitempty"`
}

// Ceiling is the maximum rate of one part of a host.
type Ceiling struct {
	ID             string  `json:"id"`
	Host           string  `json:"host"`
	Title          string  `json:"title"`
	BytesPerSecond uint64  `json:"bytes_per_second"`
	Seconds        float64 `json:"seconds"`
	// CPU is the average number of busy processors, and IOWait of idle ones that
	// waited for a disk. Both include all programs of the host.
	CPU    float64 `json:"cpus_busy"`
	IOWait float64 `json:"cpus_iowait"`
	// Latency is the time to store a small amount, in TargetWrite and PathWrite.
	Latency float64 `json:"latency_seconds,omitempty"`
	// Peer is the other end of a link. PeerCPU is its number of busy processors.
	Peer    string  `json:"peer,omitempty"`
	PeerCPU float64 `json:"peer_cpus_busy,omitempty"`
	// Note explains the rate, for example the dialect of nc.
	Note    string       `json:"note,omitempty"`
	Network *tcp.Network `json:"network,omitempty"`
	// Stages belong to the transfer that measured a link.
	Stages []transfer.Stage `json:"stages,omitempty"`
	// Limit is the bottleneck of the link, in the terms of package transfer.
	Limit string `json:"limited_by,omitempty"`
	// Skipped is the reason why there is no measurement.
	Skipped string `json:"skipped,omitempty"`
	// Forbidden means that the policy of a host is the reason.
	Forbidden bool `json:"-"`
}

// errSkipped reports a measurement that this host cannot run.
var errSkipped = errors.New("not measured")

func skip(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errSkipped, fmt.Sprintf(format, args...))
}

// Run runs one of the Local measurements. If the host cannot run it, Run returns no
// error and sets Ceiling.Skipped.
func Run(ctx context.Context, r Request) (Ceiling, error) {
	run, ok := map[string]func(context.Context, time.Duration) (tally, error){
		Idle: idle, Memory: memory, ZeroNull: zeroNull, Hash: hash, AES: aesGCM, Zstd: compress,
		LoopbackPlain:  func(ctx context.Context, d time.Duration) (tally, error) { return loopback(ctx, tcp.Plain, d) },
		LoopbackSigned: func(ctx context.Context, d time.Duration) (tally, error) { return loopback(ctx, tcp.Signed, d) },
		LoopbackTLS:    func(ctx context.Context, d time.Duration) (tally, error) { return loopback(ctx, tcp.TLS, d) },
		NCYes:          func(ctx context.Context, d time.Duration) (tally, error) { return netcat(ctx, d, "yes") },
		NCZero: func(ctx context.Context, d time.Duration) (tally, error) {
			return netcat(ctx, d, "dd", "if=/dev/zero", "bs=1M", "status=none")
		},
	}[r.ID]
	if !ok {
		return Ceiling{}, fmt.Errorf("unknown measurement %q", r.ID)
	}
	return measure(ctx, r, run)
}

// tally is the result of a measurement function.
type tally struct {
	bytes   uint64
	seconds float64
	note    string
	latency time.Duration
}

// measure runs a measurement and adds the processor usage of the host.
func measure(ctx context.Context, r Request, run func(context.Context, time.Duration) (tally, error)) (Ceiling, error) {
	c := Ceiling{ID: r.ID, Title: Title(r.ID)}
	before := usage()
	t, err := run(ctx, r.Time)
	if ctx.Err() != nil {
		return c, context.Cause(ctx)
	}
	if errors.Is(err, errSkipped) {
		c.Skipped = err.Error()
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("measure %s: %w", r.ID, err)
	}
	c.CPU, c.IOWait = usage().Since(before)
	c.Seconds, c.Note, c.Latency = t.seconds, t.note, t.latency.Seconds()
	if t.seconds > 0 {
		c.BytesPerSecond = uint64(float64(t.bytes) / t.seconds)
	}
	return c, nil
}

// usage returns the processor usage of this host.
func usage() sysinfo.Usage { return sysinfo.ReadUsage(os.DirFS("/")) }

// idle waits for d without doing any work.
func idle(ctx context.Context, d time.Duration) (tally, error) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return tally{seconds: d.Seconds()}, nil
}

// repeat calls f, which handles n bytes, until d has passed, and at least once.
func repeat(ctx context.Context, d time.Duration, n int, f func() error) (t tally, err error) {
	start := time.Now()
	for first := true; ctx.Err() == nil && (first || time.Since(start) < d); first = false {
		if err := f(); err != nil {
			return t, err
		}
		t.bytes += uint64(n)
	}
	t.seconds = time.Since(start).Seconds()
	return t, nil
}
