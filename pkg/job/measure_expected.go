package job

import (
	"maps"
	"slices"

	"zxfer/pkg/plan"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
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

// Brief reports whether the transfer ends before any bottleneck matters.
func (e *Expected) Brief() bool {
	return e != nil && e.Bytes > 0 && e.Seconds < 1 && len(e.Unmeasured) == 0
}

// Names reports whether c is the limiting measurement; it may also measure a link to Host.
func (e *Expected) Names(c probe.Ceiling) bool {
	return e != nil && e.Ceiling == c.ID && (e.Host == c.Host || e.Host == c.Peer)
}

// machine holds the CPUs that stages of a transfer share: the CPUs of a host, or of several
// containers on one kernel.
type machine struct {
	cpus      float64
	host      string  // label of its end; the source's if both ends are on it
	limit     string  // meters' name of its CPU bottleneck
	otherLoad float64 // CPUs busy with other work
	cost      float64 // CPU seconds per byte of the transfer
}

type machines map[string]*machine

// leastFree is the number of CPUs that a transfer gets at least on a busy machine.
const leastFree = 0.25

// linkLimitShare is a fraction of the slowest link's rate. If shared CPUs allow less, the machine
// is the bottleneck; otherwise the link still is. For other parts see transfer.Exhausted.
const linkLimitShare = 0.8

// receiveWaits is how often a receive waits until the pool has stored new data: for the dataset,
// at its end, and for its properties. This matters for streams of a few seconds.
const receiveWaits = 3

// expectedRate predicts the transfer rate from the measurements, nil if there are none.
func (m *measurer) expectedRate(bytes uint64, bandLimit int64) *Expected {
	e := expectedRate(m.ceilings, bytes, bandLimit, m.machines())
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

func (m *measurer) machines() machines {
	source, target := m.source.facts, m.target.facts
	s := &machine{host: m.source.Label(), cpus: float64(source.CPUs), limit: transfer.LimitSenderCPU, otherLoad: m.otherLoad[m.source.Label()]}
	t := &machine{host: m.target.Label(), cpus: float64(target.CPUs), limit: transfer.LimitReceiverCPU, otherLoad: m.otherLoad[m.target.Label()]}
	if same, _ := m.sameMachine(); same {
		t = s
	}
	return machines{m.source.Label(): s, m.target.Label(): t}
}

// expectedRate predicts the transfer rate: the slowest stage's rate, or the bandwidth limit.
// Stages on one machine share its CPUs. At rate r, a stage measured at rate R with C busy CPUs
// needs C × r/R of them.
func expectedRate(ceilings []probe.Ceiling, bytes uint64, bandLimit int64, on machines) *Expected {
	var e *Expected
	var runsOn map[*machine]float64 // of the slowest stage
	var latency float64
	for _, c := range ceilings {
		if PartOf(c) == "" || c.BytesPerSecond == 0 {
			continue
		}
		limit := limitName(c)
		busy := map[*machine]float64{on[c.Host]: c.CPU}
		if c.Peer != "" {
			busy[on[c.Peer]] = max(c.PeerCPU, busy[on[c.Peer]])
		}
		for m, n := range busy {
			m.cost += max(0, n-m.otherLoad) / float64(c.BytesPerSecond)
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
		rate := max(leastFree, m.cpus-m.otherLoad) / m.cost
		if m.cpus == 0 || rate >= shared {
			continue
		}
		shared = rate
		if _, its := runsOn[m]; !its || e.Ceiling != linkOut || rate < linkLimitShare*float64(slowest) {
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

// localExpected returns the upper bound for the local host: its loopback rate with the default
// transport.
func localExpected(ceilings []probe.Ceiling) *Expected {
	for _, c := range ceilings {
		if c.ID == probe.LoopbackTLS && c.BytesPerSecond > 0 {
			return &Expected{BytesPerSecond: c.BytesPerSecond, LimitedBy: c.ID, Host: c.Host, Ceiling: c.ID, Unmeasured: Parts()}
		}
	}
	return nil
}

// limitName returns the bottleneck that transfer meters report if the measured part is slowest.
func limitName(c probe.Ceiling) string {
	return map[string]string{partSource: transfer.LimitSource, partLink: c.Limit, partTarget: transfer.LimitTarget}[PartOf(c)]
}

// The parts of a transfer.
const (
	partSource = "source"
	partLink   = "link"
	partTarget = "target"
)

// Parts returns the parts of a transfer in order.
func Parts() []string { return []string{partSource, partLink, partTarget} }

// PartOf returns the part that c measured, "" if it is none.
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

// scratchParent returns the closest existing ancestor of the target that can hold a scratch
// dataset, "" if there is none.
func scratchParent(l *zfs.Listing) string {
	for i := len(l.Ancestors) - 1; i >= 0; i-- {
		if l.Ancestors[i].Type == zfs.Filesystem && l.Ancestors[i].Get("encryption") == "off" {
			return l.Ancestors[i].Name
		}
	}
	return ""
}

func largestStep(p *plan.Plan) (most plan.Step) {
	for _, st := range p.Streams() {
		if st.Bytes >= most.Bytes {
			most = *st
		}
	}
	return most
}
