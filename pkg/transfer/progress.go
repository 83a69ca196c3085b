package transfer

import (
	"slices"
	"time"

	"zxfer/pkg/transport/tcp"
)

// Stage is what one stage did so far. Busy+WaitIn+WaitOut is its lifetime, of
// one goroutine on average where it has several.
type Stage struct {
	Name    string        `json:"name"` // see the Stage… constants
	Bytes   int64         `json:"bytes"`
	Busy    time.Duration `json:"busy_ns"`
	WaitIn  time.Duration `json:"wait_in_ns"`
	WaitOut time.Duration `json:"wait_out_ns"`
}

// The stages, in the order that data passes them. A local copy has only the
// first and the last, and StageLimit where one was set.
const (
	StageRead     = "read" // bytes from the Source; busy is waiting for it
	StageCompress = "compress"
	StageLimit    = "limit"   // busy is waiting for the bandwidth limit
	StageSend     = "send"    // tag or encrypt; waits out for the network
	StageReceive  = "receive" // waits in for the network; check or decrypt
	StageExpand   = "decompress"
	StageWrite    = "write" // bytes into the Sink; busy is waiting for it

	// Only an engine that moves blocks has these.
	StageHash   = "hash"   // of what was read
	StageVerify = "verify" // what was written, read back
)

// Progress is a moment of a running transfer, as one end sees it.
type Progress struct {
	Bytes   int64         `json:"bytes"` // stream bytes that this end has moved
	Files   int64         `json:"files,omitempty"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Stages  []Stage       `json:"stages"`
	Network *Network      `json:"network,omitempty"`
	// Processors is how many the host has, 0 = unknown, and Used for how long each was
	// busy, added up, whatever with.
	Processors int           `json:"processors,omitempty"`
	Used       time.Duration `json:"processors_used_ns,omitempty"`
}

// Busy is how many of the host's processors were, on average.
func (p Progress) Busy() float64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return p.Used.Seconds() / p.Elapsed.Seconds()
}

// Network is what the kernel says of the connections.
type Network = tcp.Network

// Result is one end's account of a finished stream.
type Result struct {
	Progress
	WireBytes int64  `json:"wire_bytes"` // bytes that crossed the network, frames and tags included
	Frames    int64  `json:"frames"`
	Digest    string `json:"digest,omitempty"` // hex xxh3-128 of the stream; "" on the zero-copy path
	// Pace is set where noise was moved, to measure the way.
	Pace *Pace `json:"pace,omitempty"`
}

// Pace is how fast noise was moved, as one end saw it.
type Pace struct {
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`   // in which these crossed: neither making the connections nor waiting for the end
	CPU     float64 `json:"cpus_busy"` // processors of the host, on average, with whatever else it did
}

// Since is what happened after an earlier moment of the same transfer: in its stages,
// and to its connections, some of which may have ended since. Nothing is less than none.
func (p Progress) Since(earlier Progress) Progress {
	p.Bytes -= min(p.Bytes, earlier.Bytes)
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
