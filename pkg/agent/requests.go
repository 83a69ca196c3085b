package agent

import "zxfer/pkg/zfs"

// What a message costs whoever takes it in is known before it is decoded, and
// bounded by what its operation can need: "{}" is three bytes of JSON and
// hundreds of memory.

// Costs in bytes of memory, as near as it matters.
const (
	costOfMany = 128 // of an object or array: a structure, a map
	costOfOne  = 32  // of whatever follows a comma
)

// costOf is what a text costs: its bytes, and what they become.
func costOf(text []byte) int {
	cost := len(text)
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			cost += costOfMany
		case ',':
			cost += costOfOne
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++ // what is escaped
				}
			}
		}
	}
	return cost
}

// small is what every message may cost: logs, errors, facts.
const small = 1 << 20

// within is the most that a message of n bytes may cost, of what its operation
// may: a small factor of them, which nothing but padding exceeds.
func within(most, n int) int { return min(most, small+10*n) }

// requestsOf cuts streams to be estimated into requests that an agent takes.
func requestsOf(streams []zfs.SendSpec) [][]zfs.SendSpec {
	const most = 4 << 20
	var out [][]zfs.SendSpec
	first, cost := 0, 0
	for i, s := range streams {
		own := 1<<10 + len(s.Token)
		for _, t := range s.Through {
			own += len(t) + 2*costOfOne
		}
		if i > first && cost+own > most {
			out, first, cost = append(out, streams[first:i]), i, 0
		}
		cost += own
	}
	return append(out, streams[first:])
}
