package history

import (
	"maps"
	"slices"
	"time"
)

// A Series starts with slices of firstWidth. If it needs more than maxSlices, it
// merges pairs of slices.
const (
	firstWidth = 250 * time.Millisecond
	maxSlices  = 240
)

// Series holds the transferred bytes in time slices of equal width.
type Series struct {
	Width  time.Duration
	Slices []Slice
}

// Slice holds the transferred bytes of one time slice.
type Slice struct {
	Bytes float64
	// Limits maps each bottleneck to its weight; the key "" means no clear bottleneck.
	// The map is empty if no stream ran.
	Limits map[string]float64
}

// Limit returns the bottleneck with the largest weight. ok is false if no stream ran.
func (s Slice) Limit() (limit string, ok bool) {
	for _, l := range slices.Sorted(maps.Keys(s.Limits)) {
		if !ok || s.Limits[l] > s.Limits[limit] {
			limit, ok = l, true
		}
	}
	return limit, ok
}

// add distributes bytes evenly over the time between from and to.
func (s *Series) add(from, to time.Duration, bytes float64, limit string) {
	if s.Width == 0 {
		s.Width = firstWidth
	}
	to = max(to, 1)
	from = max(0, min(from, to))
	s.reach(to - 1)
	for at := from; ; {
		slice := &s.Slices[min(at, to-1)/s.Width]
		next := min((at/s.Width+1)*s.Width, to)
		share := 1.0
		if to > from {
			share = float64(next-at) / float64(to-from)
		}
		slice.Bytes += share * bytes
		if slice.Limits == nil {
			slice.Limits = map[string]float64{}
		}
		// Weigh concurrent streams by bytes, and stalls by seconds.
		slice.Limits[limit] += share*bytes + (next - at).Seconds()
		if at = next; at >= to {
			return
		}
	}
}

// reach extends s to the time to, and widens the slices if there would be too many.
func (s *Series) reach(to time.Duration) {
	for to/s.Width >= maxSlices {
		s.widen()
	}
	for len(s.Slices) <= int(to/s.Width) {
		s.Slices = append(s.Slices, Slice{})
	}
}

// widen merges each pair of slices.
func (s *Series) widen() {
	s.Width *= 2
	half := s.Slices[:0]
	for pair := range slices.Chunk(s.Slices, 2) {
		one := pair[0]
		for _, other := range pair[1:] {
			one.Bytes += other.Bytes
			if one.Limits == nil {
				one.Limits = other.Limits
				continue
			}
			for limit, weight := range other.Limits {
				one.Limits[limit] += weight
			}
		}
		half = append(half, one)
	}
	clear(s.Slices[len(half):])
	s.Slices = half
}

func (s *Series) clone() Series {
	c := Series{Width: s.Width, Slices: slices.Clone(s.Slices)}
	for i := range c.Slices {
		c.Slices[i].Limits = maps.Clone(c.Slices[i].Limits)
	}
	return c
}
