package job

import (
	"maps"
	"slices"

	"zxfer/pkg/plan"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// Expected is the rate to expect.
type Expected struct {
	BytesPerSecond uint64 `json:"bytes_per_second"`
	// LimitedBy is what a transfer's meters would name, on Host.
	LimitedBy string `json:"limited_by"`
	Host      string `json:"host,omitempty"`
	// Ceiling is the id of the measurement that is the limit, of Host; missing
	// where no part is the limit, but processors that all of them share.
	Ceiling string `json:"ceiling,omitempty"`
	// Unmeasured are the parts of the way that were not measured: link, source,
	// target. Any of them may be slower.
	Unmeasured []string `json:"unmeasured,omitempty"`
	// Bytes and Seconds are of a planned transfer.
	Bytes   uint64  `json:"bytes,omitempty"`
	Seconds float64 `json:"eta_seconds,omitempty"`
}

// Brief tells that all is over before anything limits it.
func (e *Expected) Brief() bool {
	return e != nil && e.Bytes > 0 && e.Seconds < 1 && len(e.Unmeasured) == 0
}

// Names tells the measurement that is the limit: also one of a link to Host.
func (e *Expected) Names(c probe.Ceiling) bool {
	return e != nil && e.Ceiling == c.ID && (e.Host == c.Host || e.Host == c.Peer)
}

// The parts of a transfer's way.
const (
	partSource = "source"
	partLink   = "link"
	partTarget = "target"
)

// Parts are those of a transfer's way, in their order.
func Parts() []string { return []string{partSource, partLink, partTarget} }

// PartOf is the part of a transfer's way that was measured, "" for none.
func PartOf(c probe.Ceiling) string {
	switch c.ID {
	case probe.SourceRead, probe.PathRead:
		return partSource
	case linkOut:
		return partLink
	case probe.TargetWrite, probe.PathWrite:
		return partTarget
	}
	return ""
}

// limits is what a transfer's meters would name where that part is the slowest.
func limits(c probe.Ceiling) string {
	return map[string]string{partSource: transfer.LimitSource, partLink: c.Limit, partTarget: transfer.LimitTarget}[PartOf(c)]
}

// machine is what stages of a transfer share: the processors of a host, or of
// several that are containers of one kernel.
type machine struct {
	cpus  float64
	host  string  // the label of the end on it; the source's where both are
	limit string  // what meters name where its processors limit
	other float64 // processors that are busy with something else
	cost  float64 // processor seconds per byte of the transfer's own
}

// leastFree is the share of a processor that a transfer gets of a machine that
// is busy with other things.
const leastFree = 0.25

// clearly is the share of a slowest link's rate below which the machine at its end is
// named as what limits a transfer: above it the link still does, and the others on
// that machine only slow it down. See transfer.Exhausted for what is no link.
const clearly = 0.8

// receiveWaits is how often a receive waits until a pool has stored what is
// new: for the dataset, at its end, and for the properties that are set on it.
// Of a stream of seconds that is part of the time that it takes.
const receiveWaits = 3

// machines are those of each host, by its label.
type machines map[string]*machine

func (m *measurer) machines() machines {
	source, target := m.source.facts, m.target.facts
	s := &machine{host: m.source.Label(), cpus: float64(source.CPUs), limit: transfer.LimitSenderCPU, other: m.others[m.source.Label()]}
	t := &machine{host: m.target.Label(), cpus: float64(target.CPUs), limit: transfer.LimitReceiverCPU, other: m.others[m.target.Label()]}
	if m.sameHost() || source.Boot != "" && source.Boot == target.Boot {
		t = s
	}
	return machines{m.source.Label(): s, m.target.Label(): t}
}

// expect foretells a transfer's rate of what was measured.
func (m *measurer) expect(bytes uint64, bandLimit int64) *Expected {
	e := expect(m.ceilings, bytes, bandLimit, m.machines())
	if e == nil {
		return nil
	}
	for _, part := range Parts() {
		measured := func(c probe.Ceiling) bool { return c.BytesPerSecond > 0 && PartOf(c) == part }
		if !slices.ContainsFunc(m.ceilings, measured) && (part != partLink || !m.sameHost()) {
			e.Unmeasured = append(e.Unmeasured, part)
		}
	}
	return e
}

// expect foretells a transfer's rate: that of its slowest stage, or the limit
// that was asked for. Stages of one machine also share its processors: at a
// rate r a stage that was measured at R with C processors busy takes C × r/R
// of them.
func expect(ceilings []probe.Ceiling, bytes uint64, bandLimit int64, on machines) *Expected {
	var e *Expected
	var runsOn map[*machine]float64 // the slowest stage
	var latency float64
	for _, c := range ceilings {
		if PartOf(c) == "" || c.BytesPerSecond == 0 {
			continue
		}
		limit := limits(c)
		busy := map[*machine]float64{on[c.Host]: c.CPU}
		if c.Peer != "" {
			busy[on[c.Peer]] = max(c.PeerCPU, busy[on[c.Peer]])
		}
		for m, n := range busy {
			m.cost += max(0, n-m.other) / float64(c.BytesPerSecond)
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
		rate := max(leastFree, m.cpus-m.other) / m.cost
		if m.cpus == 0 || rate >= shared {
			continue
		}
		shared = rate
		if _, its := runsOn[m]; !its || e.Ceiling != linkOut || rate < clearly*float64(slowest) {
			e.LimitedBy, e.Host, e.Ceiling = m.limit, m.host, ""
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

// localExpected is what this host could move by itself at best: the loopback
// with the default wire.
func localExpected(ceilings []probe.Ceiling) *Expected {
	for _, c := range ceilings {
		if c.ID == probe.LoopbackTLS && c.BytesPerSecond > 0 {
			return &Expected{BytesPerSecond: c.BytesPerSecond, LimitedBy: c.ID, Host: c.Host, Ceiling: c.ID, Unmeasured: Parts()}
		}
	}
	return nil
}

// writable is the existing dataset at or above the target below which a
// scratch dataset can be made, "" for none.
func writable(l *zfs.Listing) string {
	for i := len(l.Ancestors) - 1; i >= 0; i-- {
		if l.Ancestors[i].Type == zfs.Filesystem && l.Ancestors[i].Get("encryption") == "off" {
			return l.Ancestors[i].Name
		}
	}
	return ""
}

// largest is the largest planned stream.
func largest(p *plan.Plan) (most plan.Step) {
	for _, st := range p.Streams() {
		if st.Bytes >= most.Bytes {
			most = *st
		}
	}
	return most
}
