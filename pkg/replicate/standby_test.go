package replicate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStandbyFaults covers a pair of jobs that both would not run.
func TestStandbyFaults(t *testing.T) {
	t.Parallel()
	job := func(name, source, to, key string) string {
		return "[[job]]\nname = \"" + name + "\"\nsource = \"" + source + "\"\nsnapshots = { take = \"{job}-%Y%m%dT%H%M%SZ\" }\n" + key +
			"[[job.target]]\nname = \"t\"\nto = \"" + to + "\"\n"
	}
	const standby = "standby = true\n"
	for text, want := range map[string]string{
		job("a", "tank/a", "b:vault/x", standby) + job("b", "b:vault/x", "tank/a", standby): `jobs "a" and "b" are the reverse of each other, and both are standby`,
		job("a", "tank/a", "b:vault/x", standby) + job("b", "b:vault/x", "tank/a", ""):      "",
		job("a", "tank/a", "b:vault/x", standby):                                            "",
		job("a", "tank/a", "b:vault/x", "") + job("b", "b:vault/x", "tank/a", ""):           "",
	} {
		_, err := Parse("x.toml", []byte(text))
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want)
		require.Equal(t, 1, strings.Count(err.Error(), "x.toml"), err)
	}
}
