package budget

import (
	"context"
	"hash/maphash"
	"sync/atomic"
)

// Approximate costs of rows of text in bytes. Programs such as zfs(8) print one row for each property,
// snapshot or hold.
const (
	byteCost  = 2   // while it arrives, and joined
	rowCost   = 64  // a value in a list or map
	groupCost = 512 // a map of values, for each first field that differs from the row before
)

// Meter limits the memory for all text that one request reads. It may be used by several goroutines. A nil
// Meter has no limit.
type Meter struct{ left atomic.Int64 }

// Take reports whether n more bytes are within the limit.
func (m *Meter) Take(n int) bool { return m == nil || m.left.Add(-int64(n)) >= 0 }

type meterKey struct{}

// WithMeter returns a context with a new Meter of a limit in bytes.
func WithMeter(ctx context.Context, limit int) context.Context {
	m := &Meter{}
	m.left.Store(int64(limit))
	return context.WithValue(ctx, meterKey{}, m)
}

// MeterOf returns the Meter of a context, or nil.
func MeterOf(ctx context.Context) *Meter {
	m, _ := ctx.Value(meterKey{}).(*Meter)
	return m
}

// Rows estimates the memory of parsed rows while their text arrives. Tabs separate the fields of a row. The
// zero Rows is ready to use.
type Rows struct {
	first maphash.Hash // of the first field of this row; its random seed permits no collisions by design
	last  uint64       // hash of the first field of the row before
	past  bool         // the first field has ended
}

// Cost returns the cost of the next bytes.
func (r *Rows) Cost(b []byte) int {
	cost := byteCost * len(b)
	for _, c := range b {
		if !r.past && (c == '\t' || c == '\n') {
			if hash := r.first.Sum64(); hash != r.last {
				r.last = hash
				cost += groupCost
			}
			r.past = true
			r.first.Reset()
		}
		switch {
		case c == '\n':
			cost += rowCost
			r.past = false
		case !r.past:
			_ = r.first.WriteByte(c) // never fails
		}
	}
	return cost
}
