package testenv

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// numbered returns a map of n numbers.
func numbered(n int) map[int]int {
	all := map[int]int{}
	for i := range n {
		all[i] = i
	}
	return all
}

// TestLinear expects Linear to accept a walk over a map, and to fail for a search of a list for
// each of its items.
func TestLinear(t *testing.T) { //nolint:paralleltest // it measures processor time
	Linear(t, 3000, func(n int) func() {
		return func() { require.Len(t, slices.Collect(maps.Keys(numbered(n))), n) }
	})
	f := &fatal{TB: t}
	require.Panics(t, func() {
		Linear(f, 2000, func(n int) func() {
			all, found := make([]int, n), 0
			return func() {
				for i := range all {
					found += slices.Index(all, i+1)
				}
			}
		})
	})
	require.True(t, f.failed)
}
