package transfer

import (
	"slices"
	"sync/atomic"
	"time"

	"zxfer/pkg/transport/tcp"
)

// Stage counts the bytes and times of one stage. Busy+WaitIn+WaitOut is its lifetime, averaged
// over its goroutines.
type Stage struct {
	Name    string        `json:"name"` // one of the Stage… constants
	Bytes   int64         `json:"bytes"`
	Busy    time.Duration `json:"busy_ns"`
	WaitIn  time.Duration `json:"wait_in_ns"`
	WaitOut time.Duration `json:"wait_out_ns"`
}

// The stages, in the order of the data. A local copy has only read, write and, if set, limit.
const (
	StageRead     = "read" // busy while it waits for the Source
	StageCompress = "compress"
	StageLimit    = "limit"   // busy while it waits for the bandwidth limit
	StageSend     = "send"    // tags or encrypts; waits out for the network
	StageReceive  = "receive" // checks or decrypts; waits in for the network
	StageExpand   = "decompress"
	StageWrite    = "write" // busy while it waits for the Sink

	// Only the block engine of package device has these.
	StageHash   = "hash"   // hashes the blocks that were read
	StageVerify = "verify" // reads written blocks back
)

// Progress is one end's state of a running transfer at one moment.
type Progress struct {
	Bytes   int64         `json:"bytes"` // of the stream, moved by this end
	Files   int64         `json:"files,omitempty"`
	Worked  int64         `json:"worked,omitempty"` // bytes that a WorkingSource processed
	Elapsed time.Duration `json:"elapsed_ns"`
	Stages  []Stage       `json:"stages"`
	Network *Network      `json:"network,omitempty"`
	// Processors is the number of processors of the host, 0 if unknown. Used is their total
	// busy time, including other programs.
	Processors int           `json:"processors,omitempty"`
	Used       time.Duration `json:"processors_used_ns,omitempty"`
}

// Busy returns the average number of busy processors of the host.
func (p Progress) Busy() float64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return p.Used.Seconds() / p.Elapsed.Seconds()
}

// Network holds the kernel's figures for the connections.
type Network = tcp.Network

// Result is one end's account of a finished stream.
type Result struct {
	Progress
	WireBytes int64  `json:"wire_bytes"` // including headers and tags
	Frames    int64  `json:"frames"`
	Digest    string `json:"digest,omitempty"` // hex xxh3-128 of the stream; "" if this end spliced it
	// NoiseRate is set if noise was sent to measure the network path.
	NoiseRate *NoiseRate `json:"pace,omitempty"`
}

// NoiseRate is the speed of noise as one end measured it.
type NoiseRate struct {
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`   // without connecting and waiting for the end
	CPU     float64 `json:"cpus_busy"` // average busy processors of the host, including other programs
}

// Since returns the difference from an earlier Progress of the same transfer. Connections may
// have ended in between, so differences are at least 0.
func (p Progress) Since(earlier Progress) Progress {
	p.Bytes -= min(p.Bytes, earlier.Bytes)
	p.Worked -= min(p.Worked, earlier.Worked)
	p.Elapsed = max(0, p.Elapsed-earlier.Elapsed)
	p.Used = max(0, p.Used-earlier.Used)
	p.Stages = slices.Clone(p.Stages)
	for i := range p.Stages {
		s := &p.Stages[i]
		for _, e := range earlier.Stages {
			if e.Name == s.Name {
				s.Bytes -= min(s.Bytes, e.Bytes)
				s.Busy, s.WaitIn, s.WaitOut = max(0, s.Busy-e.Busy), max(0, s.WaitIn-e.WaitIn), max(0, s.WaitOut-e.WaitOut)
			}
		}
	}
	if p.Network != nil && earlier.Network != nil {
		n, e := *p.Network, earlier.Network
		n.Acked -= min(n.Acked, e.Acked)
		n.BusyTime, n.RwndLimited, n.SndbufLimited = max(0, n.BusyTime-e.BusyTime), max(0, n.RwndLimited-e.RwndLimited), max(0, n.SndbufLimited-e.SndbufLimited)
		p.Network = &n
	}
	return p
}

// meter counts the bytes and waits of a stage. It reads the clock only for waits, because that
// is a system call on some machines.
type meter struct {
	name  string
	bytes atomic.Int64
	// waitIn and waitOut return the time waited so far, averaged over the stage's goroutines;
	// nil if the stage never waits.
	waitIn, waitOut func(life time.Duration) time.Duration
}

func (m *meter) stage(life time.Duration) Stage {
	s := Stage{Name: m.name, Bytes: m.bytes.Load()}
	if m.waitIn != nil {
		s.WaitIn = min(m.waitIn(life), life)
	}
	if m.waitOut != nil {
		s.WaitOut = min(m.waitOut(life), life-s.WaitIn)
	}
	s.Busy = life - s.WaitIn - s.WaitOut
	return s
}

// WaitTimers holds one timer for each goroutine of a stage.
type WaitTimers []*tcp.WaitTimer

// NewWaitTimers returns n timers.
func NewWaitTimers(n int) WaitTimers {
	out := make(WaitTimers, n)
	for i := range out {
		out[i] = new(tcp.WaitTimer)
	}
	return out
}

// Mean returns the average of the timers.
func (w WaitTimers) Mean() time.Duration {
	var sum time.Duration
	for _, s := range w {
		sum += s.Elapsed()
	}
	return sum / time.Duration(max(1, len(w)))
}

// mean is Mean as a meter calls it.
func (w WaitTimers) mean(time.Duration) time.Duration { return w.Mean() }

// exceptWait returns the lifetime of a stage without the time of w.
func exceptWait(w *tcp.WaitTimer) func(time.Duration) time.Duration {
	return func(life time.Duration) time.Duration { return life - min(life, w.Elapsed()) }
}

// sumWaits returns the sum of two waits of a stage.
func sumWaits(a, b func(time.Duration) time.Duration) func(time.Duration) time.Duration {
	return func(life time.Duration) time.Duration { return a(life) + b(life) }
}
