package replicate

import (
	"context"
	"fmt"
	"testing"

	toml "github.com/pelletier/go-toml/v2"
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
		"take one first: {{snapshot =}}":       "take one first: snapshots.take",
		"{{set}} used: no":                     "properties.set used: no",
		"{{exclude}}":                          "properties.exclude",
		"{{props}}":                            "properties.carry = true",
		"{{decrypt}}":                          "transfer.decrypt = true",
		"by hand: {{rollback}}":                "by hand: zxfer send --rollback SRC TARGET",
	} {
		require.Equal(t, want, Keys(text))
	}
	require.NoError(t, InKeys(nil))
	err := InKeys(fault.Refusef("name the address: {{data-address ADDRESS}}", "{{wire ssh}}: %w", context.Canceled))
	require.EqualError(t, fmt.Errorf("job: %w", err), `job: transfer.wire = "ssh": context canceled`)
	require.Equal(t, `name the address: transfer.data_address = "ADDRESS"`, fault.HintOf(err))
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorIs(t, err, context.Canceled)
}

// TestKeysAreTOML expects that the settings in hints are valid in a [[job.target]] and have the
// given value.
func TestKeysAreTOML(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text, want string
		get        func(Target) any
		value      any
	}{
		{"{{set mountpoint=/PATH}}", `properties.set = { "mountpoint" = "/PATH" }`,
			func(t Target) any { return t.Properties.Set }, map[string]string{"mountpoint": "/PATH"}},
		{"{{set readonly=off}}", `properties.set = { "readonly" = "off" }`,
			func(t Target) any { return t.Properties.Set }, map[string]string{"readonly": "off"}},
		{"{{set NAME=VALUE}}", `properties.set = { "NAME" = "VALUE" }`,
			func(t Target) any { return t.Properties.Set }, map[string]string{"NAME": "VALUE"}},
		{`{{set org.example:note=a=b\d}}`, `properties.set = { "org.example:note" = "a=b\\d" }`,
			func(t Target) any { return t.Properties.Set }, map[string]string{"org.example:note": `a=b\d`}},
		{"{{exclude quota}}", `properties.exclude = ["quota"]`,
			func(t Target) any { return t.Properties.Exclude }, []string{"quota"}},
		{"{{carry org.example:note}}", `properties.carry = ["org.example:note"]`,
			func(t Target) any { return t.Properties.Carry }, []any{"org.example:note"}},
		{"{{skip-check space}}", `transfer.skip_checks = ["space"]`,
			func(t Target) any { return t.Transfer.SkipChecks }, []string{"space"}},
	} {
		written := Keys(tt.text)
		require.Equal(t, tt.want, written)
		var target Target
		require.NoError(t, toml.Unmarshal([]byte(written+"\n"), &target), written)
		require.EqualValues(t, tt.value, tt.get(target), written)
	}
}
