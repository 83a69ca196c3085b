package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The flags recorded with a dataset, which any host may have written.
func FuzzParseFlags(f *testing.F) {
	for _, s := range []string{"none", "w", "Lec", "L", "", "LL", "x", "L\n", "noneL"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		flags, ok := parseFlags(s)
		require.Equal(t, ok, s == "none" || s != "" && strings.Trim(s, "wLec") == "")
		if ok {
			again, ok := parseFlags(flagString(flags))
			require.True(t, ok)
			if !flags.Raw {
				require.Equal(t, flags, again)
			}
			require.Equal(t, flags.Raw, again.Raw)
		}
	})
}
