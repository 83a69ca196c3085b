package agent

import (
	"zxfer/pkg/budget"
	"zxfer/pkg/zfs"
)

// requestsOf splits the estimates of many streams into requests that an agent accepts.
func requestsOf(streams []zfs.SendSpec) [][]zfs.SendSpec {
	const most = 4 << 20
	var out [][]zfs.SendSpec
	first, cost := 0, 0
	for i, s := range streams {
		own := 1<<10 + len(s.Token)
		for _, t := range s.Through {
			own += len(t) + 2*budget.One
		}
		if i > first && cost+own > most {
			out, first, cost = append(out, streams[first:i]), i, 0
		}
		cost += own
	}
	return append(out, streams[first:])
}
