package printable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ text, line string }{
		"tank/a b":             {"tank/a b", "tank/a b"},
		"\x1b[2J\tgrün\r\n":    {"?[2J\tgrün?\n", "?[2J grün?"},
		"a\n\n hint: b\u202e!": {"a\n\n hint: b?!", "a hint: b?!"},
		"\x00\u009b31m":        {"??31m", "??31m"},
	} {
		require.Equal(t, want.text, Text(text))
		require.Equal(t, want.line, Line(text))
		require.Equal(t, want.text == text, IsText(text), "%q", text)
	}
}

func TestIsLine(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "a b", "grün", "日本\u3000語", `"quoted" = x`} {
		require.True(t, IsLine(s), "%q", s)
	}
	for _, s := range []string{"a\nb", "a\tb", "a\r", "\x00", "\x1b[m", "\xff", "\ufffd", "a\u2028b", "a\u0085b", "\u202e", "\x7f"} {
		require.False(t, IsLine(s), "%q", s)
	}
}
