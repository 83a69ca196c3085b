package replicate

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"open a port: {{port-range LOW-HIGH}}": `open a port: transfer.ports = "LOW-HIGH"`,
		"leave {{dial}} out":                   "leave transfer.dial out",
		"{{streams 4}}":                        "transfer.streams = 4",
		"{{trusted-link}}":                     "transfer.trusted_link = true",
		"{{skip-check space}}":                 `transfer.skip_checks = ["space"]`,
		"{{snapshot =}} takes one":             "snapshots.take takes one",
		"{{set}} used: no":                     "properties.set used: no",
		"{{exclude}}":                          "properties.exclude",
		"{{props}}":                            "properties.carry = true",
		"{{decrypt}}":                          "transfer.decrypt = true",
		"by hand: {{rollback}}":                "by hand: zxfer send --rollback",
	} {
		require.Equal(t, want, Keys(text))
	}
	require.NoError(t, InKeys(nil))
	err := InKeys(fault.Refusef("name it: {{data-address ADDRESS}}", "{{wire ssh}}: %w", context.Canceled))
	require.EqualError(t, fmt.Errorf("job: %w", err), `job: transfer.wire = "ssh": context canceled`)
	require.Equal(t, `name it: transfer.data_address = "ADDRESS"`, fault.HintOf(err))
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorIs(t, err, context.Canceled)
}
