package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPorts(t *testing.T) {
	t.Parallel()
	var p Ports
	require.Empty(t, p.String())
	require.NoError(t, p.UnmarshalText([]byte("9000-9010")))
	require.Equal(t, "9000-9010", p.String())
	require.NoError(t, p.UnmarshalText([]byte("22")))
	require.Equal(t, Ports{22, 22}, p)
	require.Equal(t, "22", p.String())
	for _, s := range []string{"", "-", "1-", "-1", "0", "0-5", "1-65536", "2-1", "a-b"} {
		require.Error(t, p.UnmarshalText([]byte(s)), "%q", s)
	}
	require.Equal(t, Ports{22, 22}, p, "a wrong value changes nothing")
}
