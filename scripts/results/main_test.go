package main

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const measured = `1 CPU
result row=text contender=nc bytes=1000000 us=1000 cpu_ms=2
result row=text contender=zxfer_tls bytes=1000000 us=500 cpu_ms=1 own=3e9 note=network
result row=text contender=limit_iperf3 bytes=1000000 us=100 cpu_ms=1
result row=text contender=nc bytes=1000000 us=2000 cpu_ms=4
result row=text contender=nc bytes=1000000 us=1600 cpu_ms=4
`

// TestResults checks medians, ratios to the best rival, which exclude limits, and forwarded
// lines.
func TestResults(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "b")
	var table, rest strings.Builder
	require.NoError(t, run(strings.NewReader(measured), &table, &rest, "T <x>", "", out, 0))
	require.Equal(t, "1 CPU\n", rest.String())
	require.Equal(t, `T <x>

| data | contender | MB/s, whole command | MB/s, stream alone | CPU s/GB | ratio to the best rival | note |
| --- | --- | --- | --- | --- | --- | --- |
| text | nc | 625.0 | - | 4.00 | 1.00 | - |
| text | zxfer tls | 2000.0 | 3000.0 | 1.00 | 3.20 | network |
| text | limit iperf3 | 10000.0 | - | 1.00 | 16.00 | - |
`, table.String())
	raw, err := os.ReadFile(out + ".json")
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(raw, &r))
	require.Equal(t, []float64{1000, 500, 625}, r.Contenders[0].Rates)
	raw, err = os.ReadFile(out + ".svg")
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(raw, new(struct{})))
	require.Contains(t, string(raw), "T &lt;x&gt;")
}

func TestResultsAgainst(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	require.NoError(t, run(strings.NewReader(measured), &table, &strings.Builder{}, "", "limit_iperf3,nc", "", 0))
	require.Contains(t, table.String(), "| ratio to limit iperf3 | ratio to nc |")
	require.Contains(t, table.String(), "| 0.20 | 3.20 |")
}

// TestTimes checks that measurements without bytes compare times.
func TestTimes(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	require.NoError(t, run(strings.NewReader("result contender=syncoid us=3e6\nresult contender=zxfer us=5e5 note=12-processes\n"), &table, &strings.Builder{}, "", "", "", 0))
	require.Equal(t, `| contender | seconds | ratio to the best rival | note |
| --- | --- | --- | --- |
| syncoid | 3.0 | 1.00 | - |
| zxfer | 0.5 | 6.00 | 12-processes |
`, table.String())
}

func TestResultsThatAreNone(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":                                  "nothing was measured",
		"result contender=nc bytes=3":       "a contender and us are needed",
		"result contender=nc bytes=x us=3":  "invalid syntax",
		"result contender=nc bytes=1 wat=3": `unknown field "wat"`,
	} {
		require.ErrorContains(t, run(strings.NewReader(text), &strings.Builder{}, &strings.Builder{}, "", "", "", 0), says)
	}
}
