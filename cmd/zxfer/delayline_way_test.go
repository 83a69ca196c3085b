package main

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// lineRecord is what one direction did.
type lineRecord struct {
	Packets, Dropped int64
	Bytes            int64 // as lineShape.Rate counts them, of Packets
	// Late is by how much a packet came too late at worst, as this process did
	// not get a processor in time, and LateBytes what came more than lineGrace too
	// late: that much of what was measured is not the link's.
	Late      time.Duration
	LateBytes int64
}

// lineGrace is a lateness that the sleep of a thread of an idle machine has.
const lineGrace = 2 * time.Millisecond

// LateShare is the part of the bytes that came too late, 0 to 1.
func (r lineRecord) LateShare() float64 { return float64(r.LateBytes) / float64(max(1, r.Bytes)) }

// lineWay carries packets in one direction.
type lineWay struct {
	from, to *tunDevice
	closed   atomic.Bool
	wire     []linePacket // in the order in which they are due, from next on
	next     int
	free     [][]byte // buffers

	mu     sync.Mutex
	shape  lineShape
	idle   time.Time // when the wire will have sent all it was given
	record lineRecord
}

// linePacket is one on its way.
type linePacket struct {
	data   []byte
	onWire int64
	due    time.Time // at the other end
}

func newLineWay(from, to *tunDevice, s lineShape) *lineWay {
	return &lineWay{from: from, to: to, shape: s}
}

func (w *lineWay) set(s lineShape) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shape, w.idle = s, time.Time{}
}

func (w *lineWay) take() lineRecord {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.record
	w.record = lineRecord{}
	return r
}

const (
	// linePatience bounds how long run does not notice that it is to end.
	linePatience = 20 * time.Millisecond
	// lineBurst is how many packets are taken before those that are due are handed
	// over.
	lineBurst = 8
)

// run carries packets until the way is closed. It does so in a thread of its
// own that comes before the machine's other work, as a wire does not wait for a
// processor; without the right to that it is as late as any other thread, and
// the record says so.
func (w *lineWay) run() {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	for !w.closed.Load() {
		w.deliver()
		wait := linePatience
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

// accept takes a packet from the device; an error means that there is none.
func (w *lineWay) accept() error {
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

// admit finds out when a packet arrives; false if the queue is full.
func (w *lineWay) admit(p *linePacket, now time.Time) bool {
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

// deliver hands over the packets that are due.
func (w *lineWay) deliver() {
	for ; w.next < len(w.wire); w.next++ {
		p := w.wire[w.next]
		late := time.Since(p.due)
		if late < 0 {
			break
		}
		// A device that is down or gone takes nothing: a cut wire.
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
