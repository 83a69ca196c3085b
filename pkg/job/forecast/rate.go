// Package forecast predicts the rate of a transfer from measurements, and names its bottleneck and the
// change that helps most.
//
//   - ceiling: the measured rate of one part of a transfer (package probe)
//   - part: source, link or target
//   - machine: the CPUs that the parts on one kernel share
//   - advice: the most useful change, or why there is none
//
// It measures nothing: package measure does.
package forecast

import (
	"maps"
	"slices"

	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
)

// Expected is an expected transfer rate and its bottleneck.
type Expected struct {
	BytesPerSecond uint64 `json:"bytes_per_second"`
	// LimitedBy is the bottleneck as transfer meters name it, on Host.
	LimitedBy string `json:"limited_by"`
	Host      string `json:"host,omitempty"`
	// Ceiling is the ID of the limiting measurement on Host, "" if shared CPUs are the limit
	// instead of one part.
	Ceiling string `json:"ceiling,omitempty"`
	// Unmeasured lists the parts that were not measured: link, source, target. Any of them may be
	// slower.
	Unmeasured []string `json:"unmeasured,omitempty"`
	// Bytes and Seconds describe the planned transfer.
	Bytes   uint64  `json:"bytes,omitempty"`
	Seconds float64 `json:"eta_seconds,omitempty"`
}

// TooShort reports whether the transfer ends before any bottleneck matters.
func (e *Expected) TooShort() bool {
	return e != nil && e.Bytes > 0 && e.Seconds < 1 && len(e.Unmeasured) == 0
}

// IsLimit reports whether c is the limiting measurement; it may also measure a link to Host.
func (e *Expected) IsLimit(c probe.Ceiling) bool {
	return e != nil && e.Ceiling == c.ID && (e.Host == c.Host || e.Host == c.Peer)
}

// Machine holds the CPUs that stages of a transfer share: the CPUs of a host, or of several
// containers on one kernel.
type Machine struct {
	Host      string // label of its end; the source's if both ends are on it
	CPUs      float64
	OtherLoad float64 // CPUs busy with other work
	limit     string  // meters' name of its CPU bottleneck
	cost      float64 // CPU seconds per byte of the transfer
}

// Machines holds the machines of a transfer by the label of its ends.
type Machines map[string]*Machine

// NewMachines returns the machines of two ends. one means that both run on one kernel.
func NewMachines(source, target Machine, one bool) Machines {
	source.limit, target.limit = transfer.LimitSenderCPU, transfer.LimitReceiverCPU
	s, t := &source, &target
	if one {
		t = s
	}
	return Machines{source.Host: s, target.Host: t}
}

// leastFree is the number of CPUs that a transfer gets at least on a busy machine.
const leastFree = 0.25

// linkLimitShare is a fraction of the slowest link's rate. If shared CPUs allow less, the machine
// is the bottleneck; otherwise the link still is. For other parts see transfer.ExhaustedCPU.
const linkLimitShare = 0.8

// receiveWaits is how often a receive waits until the pool has stored new data: for the dataset,
// at its end, and for its properties. This matters for streams of a few seconds.
const receiveWaits = 3

// Rate predicts the transfer rate, nil without measurements: the slowest stage's rate, or the bandwidth limit.
// Stages on one machine share its CPUs. At rate r, a stage measured at rate R with C busy CPUs
// needs C × r/R of them.
func Rate(ceilings []probe.Ceiling, bytes uint64, bandLimit int64, on Machines) *Expected {
	var e *Expected
	var runsOn map[*Machine]float64 // of the slowest stage
	var latency float64
	for _, c := range ceilings {
		if PartOf(c) == "" || c.BytesPerSecond == 0 {
			continue
		}
		limit := limitName(c)
		busy := map[*Machine]float64{on[c.Host]: c.CPU}
		if c.Peer != "" {
			busy[on[c.Peer]] = max(c.PeerCPU, busy[on[c.Peer]])
		}
		for m, n := range busy {
			m.cost += max(0, n-m.OtherLoad) / float64(c.BytesPerSecond)
		}
		if c.ID == probe.TargetWrite {
			latency = c.Latency
		}
		if e == nil || c.BytesPerSecond < e.BytesPerSecond {
			e = &Expected{BytesPerSecond: c.BytesPerSecond, LimitedBy: limit, Host: c.Host, Ceiling: c.ID}
			if limit == transfer.LimitReceiverCPU && c.Peer != "" {
				e.Host = c.Peer
			}
			runsOn = busy
		}
	}
	if e == nil {
		return nil
	}
	slowest := e.BytesPerSecond
	shared := float64(slowest)
	for _, host := range slices.Sorted(maps.Keys(on)) {
		m := on[host]
		rate := max(leastFree, m.CPUs-m.OtherLoad) / m.cost
		if m.CPUs == 0 || rate >= shared {
			continue
		}
		shared = rate
		if _, its := runsOn[m]; !its || e.Ceiling != Link || rate < linkLimitShare*float64(slowest) {
			e.LimitedBy, e.Host, e.Ceiling = m.limit, m.Host, ""
		}
		e.BytesPerSecond = uint64(rate)
	}
	if bandLimit > 0 && uint64(bandLimit) < e.BytesPerSecond {
		e.BytesPerSecond, e.LimitedBy, e.Host, e.Ceiling = uint64(bandLimit), transfer.LimitBandwidth, "", ""
	}
	if e.Bytes = bytes; bytes > 0 && e.BytesPerSecond > 0 {
		e.Seconds = float64(bytes)/float64(e.BytesPerSecond) + receiveWaits*latency
		e.BytesPerSecond = uint64(float64(bytes) / e.Seconds)
	}
	return e
}

// Local returns the upper bound for the local host: its loopback rate with the default
// transport.
func Local(ceilings []probe.Ceiling) *Expected {
	for _, c := range ceilings {
		if c.ID == probe.LoopbackTLS && c.BytesPerSecond > 0 {
			return &Expected{BytesPerSecond: c.BytesPerSecond, LimitedBy: c.ID, Host: c.Host, Ceiling: c.ID, Unmeasured: Parts()}
		}
	}
	return nil
}

// limitName returns the bottleneck that transfer meters report if the measured part is slowest.
func limitName(c probe.Ceiling) string {
	return map[string]string{partSource: transfer.LimitSource, PartLink: c.Limit, partTarget: transfer.LimitTarget}[PartOf(c)]
}

// Link is the ID of the measurement of the network path from source to target.
const Link = "link"

// The parts of a transfer.
const (
	partSource = "source"
	PartLink   = "link"
	partTarget = "target"
)

// Parts returns the parts of a transfer in order.
func Parts() []string { return []string{partSource, PartLink, partTarget} }

// PartOf returns the part that c measured, "" if it is none.
func PartOf(c probe.Ceiling) string {
	switch c.ID {
	case probe.SourceRead, probe.PathRead:
		return partSource
	case Link:
		return PartLink
	case probe.TargetWrite, probe.PathWrite:
		return partTarget
	}
	return ""
}
