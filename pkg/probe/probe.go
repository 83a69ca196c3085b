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

// The measurements of one host by itself.
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

// The measurements that need a dataset or a path.
const (
	SourceRead  = "source-read"
	TargetWrite = "target-write"
	PathRead    = "path-read"
	PathWrite   = "path-write"
)

// Idle measures no rate: how many processors are busy with something else, to
// be asked before the others.
const Idle = "idle"

// Local are the ids of the measurements of one host, in the order in which
// they are run.
func Local() []string {
	return []string{Memory, ZeroNull, Hash, AES, Zstd, LoopbackPlain, LoopbackSigned, LoopbackTLS, NCYes, NCZero}
}

// Title says what a measurement measures.
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

// Request is one measurement.
type Request struct {
	ID   string        `json:"id"`
	Time time.Duration `json:"time"` // about as long as it takes
	// Send is the stream of SourceRead.
	Send *zfs.SendSpec `json:"send,omitempty"`
	// Dataset is what exists, and TargetWrite makes a scratch dataset below.
	Dataset string `json:"dataset,omitempty"`
}

// Ceiling is a rate that one part of a host reaches by itself.
type Ceiling struct {
	ID             string  `json:"id"`
	Host           string  `json:"host"`
	Title          string  `json:"title"`
	BytesPerSecond uint64  `json:"bytes_per_second"`
	Seconds        float64 `json:"seconds"`
	// CPU is how many processors were busy on average, IOWait how many idle
	// ones waited for a disk, all programs of the host together.
	CPU    float64 `json:"cpus_busy"`
	IOWait float64 `json:"cpus_iowait"`
	// Latency is what storing a little takes, of TargetWrite and PathWrite.
	Latency float64 `json:"latency_seconds,omitempty"`
	// Peer is the other end of a link, and PeerCPU its processors.
	Peer    string  `json:"peer,omitempty"`
	PeerCPU float64 `json:"peer_cpus_busy,omitempty"`
	// Note says what matters to read the rate: the dialect of nc.
	Note    string       `json:"note,omitempty"`
	Network *tcp.Network `json:"network,omitempty"`
	// Stages are those of the transfer that measured a link.
	Stages []transfer.Stage `json:"stages,omitempty"`
	// Limit says what limited the link, in the words of package transfer.
	Limit string `json:"limited_by,omitempty"`
	// Skipped says why it was not measured.
	Skipped string `json:"skipped,omitempty"`
}

// errSkipped is a measurement that this host cannot make.
var errSkipped = errors.New("not measured")

func skip(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errSkipped, fmt.Sprintf(format, args...))
}

// Run makes one of the Local measurements. One that the host cannot make is
// no error: see Ceiling.Skipped.
func Run(ctx context.Context, r Request) (Ceiling, error) {
	run, ok := map[string]func(context.Context, time.Duration) (tally, error){
		Idle: idle, Memory: memory, ZeroNull: zeroNull, Hash: hash, AES: seal, Zstd: compress,
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

// tally is what a measurement moved.
type tally struct {
	bytes   uint64
	seconds float64
	note    string
	latency time.Duration
}

// measure runs a measurement and adds what the processors did meanwhile.
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

// usage is that of this host.
func usage() sysinfo.Usage { return sysinfo.ReadUsage(os.DirFS("/")) }

// idle only waits: what is busy meanwhile is none of ours.
func idle(ctx context.Context, d time.Duration) (tally, error) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return tally{seconds: d.Seconds()}, nil
}

// repeat calls f, which handles n bytes, until d has passed.
func repeat(ctx context.Context, d time.Duration, n int, f func() error) (t tally, err error) {
	start := time.Now()
	for ctx.Err() == nil && time.Since(start) < d {
		if err := f(); err != nil {
			return t, err
		}
		t.bytes += uint64(n)
	}
	t.seconds = time.Since(start).Seconds()
	return t, nil
}
