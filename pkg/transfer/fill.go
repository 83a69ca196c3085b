package transfer

import (
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"

	"zxfer/pkg/wire"
)

// sourceError marks an error of the Source itself.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// fill brings a whole Source into a queue of frames. A frame goes on when it
// is full, or with what there is as soon as the next stage would idle. It
// returns the number of frames and the digest of the stream.
func fill(src Source, q *queue, block int, m *meter) (frames int64, digest string, err error) {
	hash := xxh3.New128()
	t := startTimer()
	for {
		f := q.frame()
		room := f.Room()[:block]
		n := 0
		var rerr error
		for n < len(room) && rerr == nil {
			var k int
			k, rerr = src.Read(room[n:])
			n += k
			if n > 0 && n < len(room)/2 && rerr == nil && q.empty() {
				break
			}
		}
		t.add(&m.in)
		if n > 0 {
			f.SetLen(n)
			_, _ = hash.Write(f.Payload()) // never fails
			f.Kind, f.Flags, f.Raw, f.Seq = wire.Data, 0, uint32(n), uint64(frames)
			t.add(&m.busy)
			if err := q.put(f); err != nil {
				return frames, "", err
			}
			frames++
			m.bytes.Add(int64(n))
			t.add(&m.out)
		}
		if errors.Is(rerr, io.EOF) {
			q.close(uint64(frames))
			sum := hash.Sum128().Bytes()
			return frames, fmt.Sprintf("%x", sum[:]), nil
		}
		if rerr != nil {
			return frames, "", &sourceError{rerr}
		}
	}
}
