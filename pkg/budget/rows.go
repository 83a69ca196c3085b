package budget

import (
	"context"
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
	hash, last uint64 // of the first field of this row and of the row before
	past       bool   // the first field has ended
}

// Cost returns the cost of the next bytes.
func (r *Rows) Cost(b []byte) int {
	cost := byteCost * len(b)
	for _, c := range b {
		if !r.past && (c == '\t' || c == '\n') {
			if r.past = true; r.hash != r.last {
				cost += groupCost
			}
			r.last, r.hash = r.hash, 0
		}
		switch {
		case c == '\n':
			cost += rowCost
			r.past = false
		case !r.past:
			r.hash = (r.hash ^ uint64(c) ^ 1<<8) * 1099511628211 // FNV-1a; collisions only lower the estimate
		}
	}
	return cost
}
