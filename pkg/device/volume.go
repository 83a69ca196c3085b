package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
)

// VolumeTarget is a device or image file that gets the contents of a volume's snapshot. Its record
// is correct at any time. Methods except Abort must not be called concurrently. Written data
// must not be changed again by the same copy.
//
// A copy writes the head of the target last. Until then, an interrupted full copy looks like no file
// system, and a write of another program to the head is detected.
type VolumeTarget struct {
	*Target
	task   VolumeTask
	ctx    context.Context
	cancel context.CancelFunc
	record volumeRecord
	resize int64 // of an existing file: the size to set at the start, 0 for none
	began  bool  // the record marks the copy as incomplete

	held    *dataMap // of the held snapshot, nil if the whole target may hold data
	data    dataMap  // of the new one
	head    []byte
	chunk   []byte // written data that is not stored yet
	chunkAt int64
	used    int // bytes in chunk
	written []writtenRange
	zeroed  []Range
	pending int64   // bytes in written and zeroed, which are not read back yet
	later   []Range // zeros that are not stored yet
	account Account

	// buffers holds the buffers that no write or read uses. A write that waits for the device uses one
	// of them, so that several are in flight.
	buffers  chan []byte
	inFlight sync.WaitGroup
	writeErr atomic.Pointer[error] // of a write in flight

	busy sync.Mutex // held by each method that writes
}

// writtenRange is a range of at most volumeChunk bytes with its mark.
type writtenRange struct {
	Range
	mark Mark
}

const (
	volumeChunk   = 1 << 20 // bytes of one write
	volumeBuffers = 8       // chunks that are written or read concurrently
	// Data is read back after this many bytes or ranges.
	verifyBytes  = 256 << 20
	verifyRanges = 1 << 14
	verifyZeros  = 1 << 10 // each write is compared with these ranges
	// Ranges of zeros from this length on are deferred, and stored in steps of this length. A device
	// without a command for zeros may need hours for them, in which the transfer would seem to stall.
	longZeros = 64 << 20
)

// maxVolume is the largest size of a volume in bytes.
const maxVolume = 1 << 50

func (s VolumeSnapshot) check() error {
	if s.GUID == 0 || s.Size <= 0 || s.Size > maxVolume {
		return fmt.Errorf("invalid request: snapshot %q of a volume with %d bytes and GUID %d", s, s.Size, s.GUID)
	}
	return nil
}

// OpenVolume opens the target of a copy. It creates a missing file, and otherwise changes nothing.
// ctx bounds the life of the VolumeTarget.
func OpenVolume(ctx context.Context, t VolumeTask) (_ *VolumeTarget, err error) {
	if err := t.Snapshot.check(); err != nil {
		return nil, err
	}
	now, err := Inspect(ctx, t.Target.Path)
	if err != nil {
		return nil, err
	}
	if !t.Target.Same(now) {
		return nil, fault.Refusef("inspect the device, then run the same command again", "%s is another device than the planned one", t.Target.Path)
	}
	t.Target = now
	if err := finding.Refusal(finding.Failed(t.CheckTarget())); err != nil {
		return nil, err
	}
	open := t.Snapshot.Size
	if now.Kind == KindFile {
		open = now.Size
	}
	dst, err := OpenTarget(ctx, now, open, true)
	if err != nil {
		return nil, err
	}
	v := &VolumeTarget{Target: dst, task: t, chunk: AlignedBuffer(volumeChunk), buffers: make(chan []byte, volumeBuffers)}
	for range volumeBuffers {
		v.buffers <- AlignedBuffer(volumeChunk)
	}
	v.ctx, v.cancel = context.WithCancel(ctx)
	if now.Kind == KindFile {
		v.resize = t.Snapshot.Size
		dst.size = t.Snapshot.Size
	}
	if err := v.prepareRecord(); err != nil {
		return nil, errors.Join(err, v.release())
	}
	return v, nil
}

// errVolumeChanged refuses a target that another copy changed after the checks.
func (v *VolumeTarget) errVolumeChanged() error {
	return fault.Refusef("run the same command again", "%s was changed after the copy was planned", v.task.Target.Path)
}

// readRecord reads the record under the lock of the target. Only now can no other copy change it. It
// returns nil if there is none, or if a full copy replaces a damaged one.
func (v *VolumeTarget) readRecord() (*volumeRecord, error) {
	t := &v.task
	r, err := readVolumeRecord(t.Target)
	if err != nil && (t.Base.GUID != 0 || !errors.Is(err, errBadRecord)) {
		return nil, err
	}
	var planned, now VolumeCopy
	if t.Target.Volume != nil {
		planned = *t.Target.Volume
		planned.Changed = ""
	}
	if r != nil {
		now = r.VolumeCopy
	}
	if now != planned {
		return nil, v.errVolumeChanged()
	}
	return r, nil
}

// prepareRecord prepares the record of the incomplete copy, the head and the map of the data.
func (v *VolumeTarget) prepareRecord() error {
	old, err := v.readRecord()
	if err != nil {
		return err
	}
	head, err := readHead(v.task.Target)
	if err != nil {
		return err
	}
	size, r := v.task.Snapshot.Size, &v.record
	v.head, v.data = head[:min(size, headSize)], newDataMap(size)
	switch {
	case v.task.Base.GUID == 0:
		r.Head = hashHead(v.head, size)
	case old == nil || !old.intact(head):
		return v.errVolumeChanged()
	default:
		*r = *old
		held := dataMap{old.Held.Size, old.Data}.resized(size)
		v.held, v.data = &held, held.resized(size)
		if from := old.Held.Size; from < size { // the volume has grown
			clear(v.head[min(from, int64(len(v.head))):])
			from = max(from, int64(len(v.head)))
			v.later = append(v.later, Range{from, size - from})
		}
	}
	r.Applying = v.task.Snapshot
	r.ModTime, r.Boot, r.Written = 0, "", 0
	if f := v.task.Target; !f.IsFile() {
		r.Device = f.identity()
	}
	return nil
}

// WriteAt writes a part of the snapshot. It may store it later.
func (v *VolumeTarget) WriteAt(p []byte, off int64) (int, error) {
	v.busy.Lock()
	defer v.busy.Unlock()
	if err := v.check(off, int64(len(p))); err != nil {
		return 0, err
	}
	done := 0
	if off < int64(len(v.head)) {
		done = copy(v.head[off:], p)
	}
	for done < len(p) {
		at := off + int64(done)
		if v.used > 0 && (at != v.chunkAt+int64(v.used) || v.used == len(v.chunk)) {
			if err := v.flush(); err != nil {
				return done, err
			}
		}
		if v.used == 0 {
			v.chunkAt = at
		}
		// Chunks end at multiples of their length, so that writes are aligned.
		room := int64(len(v.chunk)) - v.chunkAt%int64(len(v.chunk)) - int64(v.used)
		if room == 0 {
			if err := v.flush(); err != nil {
				return done, err
			}
			continue
		}
		n := copy(v.chunk[v.used:v.used+int(room)], p[done:])
		v.used, done = v.used+n, done+n
	}
	v.account.Data += int64(len(p))
	v.data.mark(off, int64(len(p)))
	return len(p), nil
}

// Zero makes a range read as zeros. It may do so later.
func (v *VolumeTarget) Zero(off, n int64) error {
	v.busy.Lock()
	defer v.busy.Unlock()
	if err := v.check(off, n); err != nil {
		return err
	}
	v.data.clear(off, n)
	if off < int64(len(v.head)) {
		k := min(n, int64(len(v.head))-off)
		clear(v.head[off : off+k])
		off, n = off+k, n-k
	}
	parts := []Range{{off, n}}
	if v.held != nil {
		parts = v.held.data(off, n)
	}
	for _, r := range parts {
		v.account.Zeros += r.Length
		if r.Length >= longZeros {
			v.later = append(v.later, r)
		} else if r.Length > 0 {
			if err := v.zero(r.Start, r.Length); err != nil {
				return err
			}
		}
	}
	return nil
}

// check returns an error if a range is not within the volume, or the copy was aborted. If the range
// overlaps earlier zeros, it stores and reads back those first.
func (v *VolumeTarget) check(off, n int64) error {
	if v.ctx.Err() != nil {
		return context.Cause(v.ctx)
	}
	if err := v.checkRange(off, n); err != nil {
		return err
	}
	overlaps := func(r Range) bool { return off < r.Start+r.Length && r.Start < off+n }
	if slices.ContainsFunc(v.later, overlaps) {
		if err := v.zeroLater(); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(v.zeroed, overlaps) {
		if err := v.flush(); err != nil {
			return err
		}
		return v.settle()
	}
	return nil
}

// zeroLater stores all deferred zeros.
func (v *VolumeTarget) zeroLater() error {
	for len(v.later) > 0 {
		if v.ctx.Err() != nil {
			return context.Cause(v.ctx)
		}
		if err := v.zeroStep(); err != nil {
			return err
		}
	}
	return nil
}

// zeroStep stores at most longZeros bytes of the deferred zeros.
func (v *VolumeTarget) zeroStep() error {
	r := &v.later[0]
	off, n := r.Start, min(r.Length, longZeros)
	r.Start, r.Length = r.Start+n, r.Length-n
	if r.Length == 0 {
		v.later = v.later[1:]
	}
	return v.zero(off, n)
}

func (v *VolumeTarget) zero(off, n int64) error {
	if err := v.flush(); err != nil {
		return err
	}
	if err := v.begin(); err != nil {
		return err
	}
	if err := v.Target.Zero(off, n); err != nil {
		return err
	}
	v.zeroed = append(v.zeroed, Range{off, n})
	return v.note(n)
}

// flush starts to write the chunk, and stores some of the deferred zeros.
func (v *VolumeTarget) flush() error {
	if err := v.writeErr.Load(); err != nil {
		return *err
	}
	if v.used == 0 {
		return nil
	}
	if err := v.begin(); err != nil {
		return err
	}
	p, at := v.chunk[:v.used], v.chunkAt
	v.chunk, v.used = <-v.buffers, 0
	v.inFlight.Go(func() {
		if _, err := v.Target.WriteAt(p, at); err != nil {
			v.writeErr.Store(&err)
		}
		v.buffers <- p[:volumeChunk]
	})
	v.written = append(v.written, writtenRange{Range{at, int64(len(p))}, MarkOf(p)})
	if err := v.note(int64(len(p))); err != nil || len(v.later) == 0 {
		return err
	}
	return v.zeroStep()
}

// begin marks the copy as incomplete in the record, before the first change of the target.
func (v *VolumeTarget) begin() error {
	if v.began {
		return nil
	}
	t := &v.task
	if t.Target.IsFile() {
		st, err := v.stat()
		if err != nil {
			return err
		}
		v.record.Inode = st.Ino
	}
	if err := v.record.write(t.Target); err != nil {
		return err
	}
	v.began = true
	if v.resize > 0 {
		if err := v.extend(); err != nil {
			return err
		}
	}
	return nil
}

// note counts stored bytes, and reads them back from time to time.
func (v *VolumeTarget) note(n int64) error {
	v.pending += n
	if v.pending < verifyBytes && len(v.written) < verifyRanges && len(v.zeroed) < verifyZeros {
		return nil
	}
	return v.settle()
}

// Commit stores the rest of the snapshot, and then records that the target holds it. The caller must
// have checked that the stream was complete. Commit releases the target.
func (v *VolumeTarget) Commit(ctx context.Context) error {
	stop := context.AfterFunc(ctx, v.cancel)
	defer stop()
	v.busy.Lock()
	err := v.commit()
	v.busy.Unlock()
	return errors.Join(err, v.release())
}

// commitSteps returns the steps of Commit. A copy that ends between two of them can be repeated.
func (v *VolumeTarget) commitSteps() []func() error {
	return []func() error{v.flush, v.begin, v.zeroLater, v.settle, v.Identity, v.writeHead, v.settle, v.Target.Commit, v.complete}
}

func (v *VolumeTarget) commit() error {
	for _, step := range v.commitSteps() {
		if v.ctx.Err() != nil {
			return context.Cause(v.ctx)
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// writeHead writes the head by units, each of which a killed process leaves old or new.
func (v *VolumeTarget) writeHead() error {
	v.record.NextHead = hashHead(v.head, v.task.Snapshot.Size)
	if err := v.record.write(v.task.Target); err != nil {
		return err
	}
	for off := 0; off < len(v.head); off += headUnit {
		p := v.head[off:min(off+headUnit, len(v.head))]
		if _, err := v.Target.WriteAt(p, int64(off)); err != nil {
			return err
		}
		v.written = append(v.written, writtenRange{Range{int64(off), int64(len(p))}, MarkOf(p)})
		v.pending += int64(len(p))
	}
	return nil
}

// complete records that the target holds the snapshot.
func (v *VolumeTarget) complete() error {
	r, f := &v.record, &v.task.Target
	next := volumeRecord{VolumeCopy: VolumeCopy{Held: r.Applying}, Head: r.NextHead, Data: v.data.bits, Device: r.Device}
	if f.IsFile() {
		st, err := v.stat()
		if err != nil {
			return err
		}
		next.ModTime = unix.TimespecToNsec(st.Mtim)
	} else if n, known := host().written(f.Name); known {
		next.Boot, next.Written = f.Boot, n
	}
	return next.write(*f)
}

// Abort ends the copy. Written data remains, and the record marks it as incomplete. Abort deletes a
// new file without data.
func (v *VolumeTarget) Abort() error {
	v.cancel()
	v.busy.Lock()
	defer v.busy.Unlock()
	return v.release()
}

// release closes the target. It may be called again.
func (v *VolumeTarget) release() error {
	v.cancel()
	v.inFlight.Wait()
	end := v.Close
	if !v.began {
		end = v.Discard
	}
	if err := end(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Account returns the statistics of the copy.
func (v *VolumeTarget) Account() Account {
	v.busy.Lock()
	defer v.busy.Unlock()
	a := v.account
	a.Size = v.task.Snapshot.Size
	return a
}
