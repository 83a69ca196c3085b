package main

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// lineRecord holds the counters of one direction.
type lineRecord struct {
	Packets, Dropped int64
	Bytes            int64 // total size of Packets, headers included
	// Late is the largest delay beyond a packet's due time, caused by a busy processor.
	// LateBytes counts the bytes of packets that were late by more than lineGrace. They
	// distort a measurement.
	Late      time.Duration
	LateBytes int64
}

// lineGrace is a typical lateness of a sleeping thread on an idle machine.
const lineGrace = 2 * time.Millisecond

// LateShare returns the share of late bytes, 0 to 1.
func (r lineRecord) LateShare() float64 { return float64(r.LateBytes) / float64(max(1, r.Bytes)) }

// lineDirection carries packets in one direction.
type lineDirection struct {
	from, to *tunDevice
	closed   atomic.Bool
	wire     []linePacket // in order of due time, pending from index next
	next     int
	free     [][]byte // buffers

	mu     sync.Mutex
	shape  lineShape
	idle   time.Time // when the wire will have sent all accepted packets
	record lineRecord
}

// linePacket is a packet on the wire.
type linePacket struct {
	data   []byte
	onWire int64
	due    time.Time // arrival time at the other end
}

func newLineDirection(from, to *tunDevice, s lineShape) *lineDirection {
	return &lineDirection{from: from, to: to, shape: s}
}

func (w *lineDirection) set(s lineShape) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shape, w.idle = s, time.Time{}
}

func (w *lineDirection) take() lineRecord {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.record
	w.record = lineRecord{}
	return r
}

const (
	// linePoll limits the time until run notices Close.
	linePoll = 20 * time.Millisecond
	// lineBurst is the number of packets that run accepts before it delivers due packets.
	lineBurst = 8
)

// run carries packets until the direction is closed. It runs in a locked thread with real-time
// priority, since a wire does not wait for a processor. Without permission for that priority,
// packets can be late. The record then counts them.
func (w *lineDirection) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	for !w.closed.Load() {
		w.deliver()
		wait := linePoll
		if w.next < len(w.wire) {
			wait = min(wait, max(0, time.Until(w.wire[w.next].due)))
		}
		timeout := unix.NsecToTimespec(int64(wait))
		ready, err := unix.Ppoll([]unix.PollFd{{Fd: int32(w.from.fd), Events: unix.POLLIN}}, &timeout, nil)
		for n := 0; err == nil && ready > 0 && n < lineBurst; n++ {
			err = w.accept()
		}
	}
}

// accept reads a packet from the device. It returns an error if no packet is available.
func (w *lineDirection) accept() error {
	var b []byte
	if last := len(w.free) - 1; last >= 0 {
		b, w.free = w.free[last], w.free[:last]
	} else {
		b = make([]byte, largestPacket)
	}
	n, err := unix.Read(w.from.fd, b)
	if p := (linePacket{data: b[:max(n, 0)]}); n > tunHeader && w.admit(&p, time.Now()) {
		w.wire = append(w.wire, p)
	} else {
		w.free = append(w.free, b)
	}
	return err
}

// admit computes the arrival time of a packet. It returns false if the queue is full.
func (w *lineDirection) admit(p *linePacket, now time.Time) bool {
	p.onWire = onWire(p.data)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle.Before(now) {
		w.idle = now
	}
	if wait := w.idle.Sub(now); int64(wait.Seconds()*float64(w.shape.Rate)/8) > w.shape.Queue {
		w.record.Dropped++
		return false
	}
	w.idle = w.idle.Add(time.Duration(float64(p.onWire) * 8 / float64(w.shape.Rate) * float64(time.Second)))
	p.due = w.idle.Add(w.shape.Delay)
	return true
}

// deliver writes the due packets to the other device.
func (w *lineDirection) deliver() {
	for ; w.next < len(w.wire); w.next++ {
		p := w.wire[w.next]
		late := time.Since(p.due)
		if late < 0 {
			break
		}
		// A missing or disabled device behaves like a cut wire: the packet is lost.
		_, _ = unix.Write(w.to.fd, p.data)
		w.free = append(w.free, p.data[:cap(p.data)])
		w.mu.Lock()
		w.record.Packets++
		w.record.Bytes += p.onWire
		if w.record.Late = max(w.record.Late, late); late > lineGrace {
			w.record.LateBytes += p.onWire
		}
		w.mu.Unlock()
	}
	if 2*w.next >= len(w.wire) {
		w.wire, w.next = append(w.wire[:0], w.wire[w.next:]...), 0
	}
}
