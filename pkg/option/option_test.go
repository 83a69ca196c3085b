package option

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/size"
)

func TestValues(t *testing.T) {
	t.Parallel()
	var n int
	var bytes size.Size
	var w, s string
	var b bool
	for name, c := range map[string]struct {
		value     Value
		unset     string // initial text
		good, bad []string
	}{
		"word":   {Word(&w, "auto", "source"), "auto", []string{"source", "auto"}, []string{"", "Source", "x"}},
		"count":  {Count(&n, 1, 64), "", []string{"1", "64"}, []string{"", "0", "65", "-1", "x", "1.5"}},
		"size":   {Size(&bytes, size.Max), "", []string{"1MiB", "4097", "3GiB"}, []string{"", "0", "-1", "1M/s"}},
		"switch": {Bool(&b), "false", []string{"true", "false"}, []string{"", "yes"}},
		"text":   {Text(&s, "COMMAND", func(s string) error { return Count(new(int), 1, 9).Set(s) }), "", []string{"7"}, []string{"", "10"}},
	} {
		require.Equal(t, c.unset, c.value.String(), name)
		for _, text := range c.good {
			require.NoError(t, c.value.Set(text), "%s %q", name, text)
			require.Equal(t, text, c.value.String(), name)
		}
		for _, text := range c.bad {
			prefix := c.value.String()
			require.Error(t, c.value.Set(text), "%s %q", name, text)
			require.Equal(t, prefix, c.value.String(), "an invalid value changes nothing")
		}
	}
	r := Rate(&bytes)
	require.NoError(t, r.Set("100MiB/s"))
	require.Equal(t, size.Size(100<<20), bytes)
	require.NoError(t, Size(&bytes, 1<<20).Set("64G"))
	require.Equal(t, size.Size(1<<20), bytes, "the value is limited")
}

func init() {
	Declare("dial")
	Declare("wire")
}

func TestExpand(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                 "",
		"leave {{dial}} out":               "leave --dial out",
		"{{wire ssh}}, or {{dial source}}": "--wire ssh, or --dial source",
		"{job} and {{":                     "{job} and {{",
		"}} {{bs 16M}}: no":                "}} --bs 16M: no",
		`"hint":"a\n{{verify}}"`:           `"hint":"a\n--verify"`,
		"open /tmp/{{wire nc}}: no":        "open /tmp/{{wire nc}}: no", // a file name
		"{{other}}, and {{}}":              "{{other}}, and {{}}",
	} {
		require.Equal(t, want, Flags(text))
	}
	require.True(t, AllDeclared("leave {{dial}} out"))
	require.False(t, AllDeclared("leave {{dial}} out, or {{other}}"))
	require.Equal(t, "--dial", Flags(Name("dial", "")))
	require.Equal(t, "--dial source", Flags(Name("dial", "source")))
	require.Equal(t, "take one first: --snapshot=", Flags("take one first: {{snapshot =}}"))
}
