package history

import (
	"maps"
	"slices"
	"time"
)

// What a Series begins with, and how many slices it has at most: where they do
// not suffice, two become one.
const (
	firstWidth = 250 * time.Millisecond
	maxSlices  = 240
)

// Series is what was moved, in slices of time of one width.
type Series struct {
	Width  time.Duration
	Slices []Slice
}

// Slice is what was moved in one slice of time.
type Slice struct {
	Bytes float64
	// Limits tells what limited that, each with a weight, "" for nothing that
	// stood out. It is empty where no stream ran.
	Limits map[string]float64
}

// Limit is what limited most of a slice; ok is false where no stream ran.
func (s Slice) Limit() (limit string, ok bool) {
	for _, l := range slices.Sorted(maps.Keys(s.Limits)) {
		if !ok || s.Limits[l] > s.Limits[limit] {
			limit, ok = l, true
		}
	}
	return limit, ok
}

// add spreads what a stream moved between two times evenly over that time.
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
		// By bytes, where streams ran beside each other; of a stall by time.
		slice.Limits[limit] += share*bytes + (next - at).Seconds()
		if at = next; at >= to {
			return
		}
	}
}

// reach makes slices that a time is in, wider ones where there would be too many.
func (s *Series) reach(to time.Duration) {
	for to/s.Width >= maxSlices {
		s.widen()
	}
	for len(s.Slices) <= int(to/s.Width) {
		s.Slices = append(s.Slices, Slice{})
	}
}

// widen makes one slice of each two.
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
