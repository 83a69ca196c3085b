package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestForecasts(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "f")
	var table, rest strings.Builder
	require.NoError(t, forecasts(strings.NewReader(`BenchmarkForecast
forecast row=100mbit expected=12000000 expected_limit=network measured=10000000 measured_limit=network-(send-buffer)
forecast row=1gbit failed=1
forecast row=cured expected=2e6 expected_limit=- measured=1e6 measured_limit=source
forecast row=tiny expected=1e6 expected_limit= measured=1e6 measured_limit=
`), &table, &rest, out))
	require.Equal(t, "BenchmarkForecast\n", rest.String())
	require.Equal(t, `| scenario | forecast, MB/s | forecast limit | measured, MB/s | measured limit | ratio |
| --- | --- | --- | --- | --- | --- |
| 100mbit | 12.0 | network | 10.0 | network (send buffer) | 1.20 |
| 1gbit | - | - | failed | - | - |
| cured | 2.0 | - | 1.0 | source | 2.00 |
| tiny | 1.0 | nothing | 1.0 | nothing | 1.00 |
`, table.String())
	raw, err := os.ReadFile(out + ".json")
	require.NoError(t, err)
	var rows []prediction
	require.NoError(t, json.Unmarshal(raw, &rows))
	require.Len(t, rows, 4)
	require.True(t, rows[1].Failed)

	for _, bad := range []string{"", "forecast row=a expected=1 measured=0", "forecast row=a expected=x", "forecast failed=1", "forecast row=a colour=red"} {
		require.Error(t, forecasts(strings.NewReader(bad), &table, &rest, ""), bad)
	}
}
