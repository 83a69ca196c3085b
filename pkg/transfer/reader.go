package transfer

import (
	"errors"
	"io"
	"time"

	"github.com/zeebo/xxh3"

	"zxfer/pkg/transport/tcp"
)

// readTimeout is how long a block is filled while the next stage has nothing to
// do. A fast source fills blocks sooner; a trickle goes on after this time, or
// with the first bytes if those took longer.
const readTimeout = 5 * time.Millisecond

// maxEmptyReads in a row are taken for a Source that will never say more.
const maxEmptyReads = 100

// reader brings a Source into a ring.
type reader struct {
	src   Source
	ring  *ring
	block int
	meter meter
	full  tcp.WaitTimer // time that the ring had no room
	hash  *xxh3.Hasher128
	// prepare prepares a piece before it is put; nil where there is nothing to do.
	prepare func(*piece)

	pieces uint64
}

func newReader(src Source, r *ring, block int) *reader {
	d := &reader{src: src, ring: r, block: block, hash: xxh3.New128()}
	d.meter.name, d.meter.waitOut = StageRead, WaitTimers{&d.full}.mean
	return d
}

// run reads to the end. It closes the ring with the source's failure, if there
// is one, so that what was read before goes on first; other errors mean that
// the ring failed.
func (d *reader) run() error {
	for {
		b := d.ring.get()
		n, rerr := d.fill(b.Room()[:d.block])
		if n > 0 {
			b.SetLen(n)
			_, _ = d.hash.Write(b.Payload()) // never fails
			p := &piece{block: b, header: tcp.Header{Kind: tcp.Data, Position: d.pieces, Raw: uint32(n)}}
			if d.prepare != nil {
				d.prepare(p)
			}
			if err := d.ring.put(p, &d.full); err != nil {
				return err
			}
			d.pieces++
			d.meter.bytes.Add(int64(n))
		}
		if rerr != nil {
			d.full.Start() // from now on it waits for the rest to be done
			if errors.Is(rerr, io.EOF) {
				rerr = nil
			} else {
				rerr = &sourceError{rerr}
			}
			return d.ring.close(d.pieces, rerr)
		}
	}
}

// fill reads until room is full, or the next stage idles and has waited enough.
func (d *reader) fill(room []byte) (n int, err error) {
	var began time.Time
	empty := 0
	for n < len(room) && err == nil {
		idle := d.ring.starved()
		if idle && began.IsZero() {
			began = time.Now()
		}
		var k int
		k, err = d.src.Read(room[n:])
		n += k
		switch {
		case err != nil:
		case k == 0:
			if empty++; empty >= maxEmptyReads {
				err = io.ErrNoProgress
			}
		case n < len(room) && idle && time.Since(began) >= readTimeout:
			return n, nil
		}
	}
	return n, err
}

// digest is the xxh3-128 of all that was read.
func (d *reader) digest() [16]byte { return d.hash.Sum128().Bytes() }
