package jobfile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFreezeKeys expects that errors in a freeze contain its name and key.
func TestFreezeKeys(t *testing.T) {
	t.Parallel()
	head := "[[job]]\nname = \"db\"\nsource = \"tank/db\"\nrecursive = true\nsnapshots = { take = \"a%Y-%m-%dT%H%M%S\" }\nretention = { last = 1 }\n"
	f, err := Parse("x", []byte(head+"[[job.freeze]]\nkind = \"postgresql\"\ndatasets = [\"pg\"]\ntimeout = \"5s\"\n[[job.freeze]]\nkind = \"guest-agent\"\nname = \"vm\"\nsocket = \"/run/a\"\n"))
	require.NoError(t, err)
	first, second := f.Jobs[0].Freeze[0], f.Jobs[0].Freeze[1]
	require.Equal(t, 5*time.Second, first.Request().Timeout)
	require.Equal(t, 30*time.Second, second.Request().Timeout)
	require.True(t, first.Covers("tank/db", "tank/db/pg/wal"))
	require.False(t, first.Covers("tank/db", "tank/db"))
	require.True(t, second.Covers("tank/db", "tank/db"))
	for keys, why := range map[string]string{
		"kind = \"oracle\"": `freeze "oracle": kind = "oracle": write one of postgresql`,
		"kind = \"mysql\"\n[[job.freeze]]\nkind = \"mysql\"": `freeze "mysql": two entries have this`,
		"kind = \"mysql\"\ntimeout = \"1h\"":                 "timeout = 1h0m0s: write up to 10m",
		"kind = \"mysql\"\non_failure = \"go\"":              `on_failure = "go": write one of stop, continue`,
		"kind = \"mysql\"\ndatasets = [\"[\"]":               "datasets: ",
		"kind = \"mysql\"\npasswort = \"x\"":                 `unknown key "job.freeze.passwort"`,
	} {
		_, err := Parse("x", []byte(head+"[[job.freeze]]\n"+keys+"\n"))
		require.ErrorContains(t, err, why)
	}
	_, err = Parse("x", []byte("[[job]]\nname = \"db\"\nsource = \"tank/db\"\nretention = { last = 1 }\n[[job.freeze]]\nkind = \"mysql\"\n"))
	require.ErrorContains(t, err, "freeze has no effect without snapshots.take")
}
