package connect

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/transfer"
)

// Progress joins the progress of both ends.
type Progress struct {
	Bytes     uint64        `json:"bytes"`           // received, including earlier attempts; read, if only some blocks are sent
	Total     uint64        `json:"total,omitempty"` // estimate, 0 = unknown; may be below Bytes
	Rate      uint64        `json:"rate"`            // bytes per second over the last few seconds
	Elapsed   time.Duration `json:"elapsed_ns"`
	LimitedBy string        `json:"limited_by,omitempty"` // over the same seconds
}

// monitor joins the progress of both ends.
type monitor struct {
	count Count
	// device is set for device copies. Their sender counts from the start of the device,
	// including blocks that need no transfer. The receiver counts only blocks stored now.
	device  bool
	started time.Time
	limit   func(string) string
	report  func(Progress) // may be nil

	mu      sync.Mutex
	send    transfer.Progress
	receive transfer.Progress
	recent  []sample // samples of the last rateWindow
}

type sample struct {
	at            time.Time
	send, receive transfer.Progress
}

// rateWindow is the averaging time for the rate and the bottleneck.
const rateWindow = 5 * time.Second

// Watch joins the progress of two ends that do the same work without moving data between them.
func Watch(total uint64, report func(Progress)) (source, target func(transfer.Progress)) {
	v := &monitor{count: Count{Total: total}, started: time.Now(), limit: func(limit string) string { return limit }, report: report}
	return v.sent, v.received
}

func (v *monitor) sent(p transfer.Progress) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.send = p
}

func (v *monitor) received(p transfer.Progress) {
	v.mu.Lock()
	if v.device {
		p.Bytes = max(p.Bytes, v.send.Bytes-int64(v.count.Done))
	}
	v.receive = p
	now := time.Now()
	v.recent = append(v.recent, sample{now, v.send, p})
	for len(v.recent) > 2 && now.Sub(v.recent[0].at) > rateWindow {
		v.recent = v.recent[1:]
	}
	joined := Progress{Bytes: v.count.Done + uint64(amount(v.send, p)), Total: v.count.Total, Elapsed: now.Sub(v.started)}
	first, send, receive := v.recent[0], v.send, p
	if dt := now.Sub(first.at).Seconds(); dt > 0 {
		joined.Rate = uint64(float64(max(0, amount(v.send, p)-amount(first.send, first.receive))) / dt)
		send, receive = send.Since(first.send), receive.Since(first.receive)
	}
	joined.LimitedBy = v.limitedBy(send, receive)
	v.mu.Unlock()
	if v.report != nil {
		v.report(joined)
	}
}

// amount returns the bytes that the sender's transfer.WorkingSource processed, otherwise the received
// bytes.
func amount(send, receive transfer.Progress) int64 { return cmp.Or(send.Worked, receive.Bytes) }

// limitedBy returns the bottleneck of both ends. If a host has no idle processor, only a
// bandwidth limit or a measured network limit still counts: other stages wait for processors.
// With ssh, which shares them, not even the network counts.
func (v *monitor) limitedBy(send, receive transfer.Progress) string {
	limit := v.limit(transfer.LimitedBy(send.Stages, receive.Stages, send.Network))
	cpu := transfer.ExhaustedCPU(send, receive)
	if cpu == "" || limit == "" || limit == transfer.LimitBandwidth || strings.Contains(limit, transfer.LimitNetwork) && limit != LimitShell {
		return limit
	}
	return cpu
}

// both reports the progress of a transfer within one process.
func (v *monitor) both(p transfer.Progress) {
	v.sent(p)
	if v.device {
		p.Bytes = 0 // received takes it from the sender's progress
	}
	v.received(p)
}

// arrived returns the bytes received in this attempt.
func (v *monitor) arrived() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return uint64(max(0, v.receive.Bytes))
}
