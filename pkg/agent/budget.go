package agent

import (
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

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

// requestCost is the most that a request may cost. Most name snapshots, some
// 70 bytes each.
func requestCost(m *message) int {
	if m.Kind != call {
		return small
	}
	switch m.Op {
	case opList, opProperties, opSnapshot, opHold, opRelease, opHolds, opBookmark, opDestroy:
		return 3 * maxRequest
	case opEstimate, opDigest, opTransfer, opMeasure: // a stream names all snapshots in it
		return maxRequest
	}
	return small
}

// answerCost is the most that an answer may cost, by the question of so many
// bytes. An error repeats of it what it is about.
func answerCost(op string, args any, question int) int {
	cost := small + 4*question
	switch a := args.(type) {
	case site.ListQuery:
		cost += 6 * maxAnswer
	case propertiesArgs: // values have up to 8 KiB; without names it is those that are set
		cost += min(6*maxAnswer, len(a.Names)*(len(a.Properties)+8)*(10<<10))
	case []zfs.SendSpec:
		cost += len(a) * 2 * costOfOne
	case site.Task:
		if a.Device != nil {
			cost += 64 << 20 // what could not be read of it
		}
	}
	switch op {
	case opHolds:
		cost += 4 * question
	case opCapture:
		cost += 32 << 20
	}
	return cost
}

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
