package budget

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOf(t *testing.T) {
	t.Parallel()
	for text, many := range map[string][2]int{ // objects and arrays, commas
		`7`: {0, 0}, `{}`: {1, 0}, `[{},{}]`: {3, 1}, `{"a":[1,2],"b":3}`: {2, 2},
		`"{[,"`: {0, 0}, `"\"{"`: {0, 0}, `"\\",{`: {1, 1}, `"open {`: {0, 0}, `"\`: {0, 0}, ``: {0, 0},
	} {
		require.Equal(t, len(text)+many[0]*ObjectCost+many[1]*CommaCost, Cost([]byte(text)), text)
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	require.Equal(t, MinLimit, Limit(1<<30, 0))
	require.Equal(t, MinLimit+1000, Limit(1<<30, 100))
	require.Equal(t, 1<<20, Limit(1<<20, 1<<20))
}
