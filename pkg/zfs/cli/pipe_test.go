package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTakesLargePipe(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"": false, "0.8.4-1": false, "2.0.3-9": false, "2.1.11-1+deb12u1": false,
		"2.2.0-1": true, "2.3.9-0+deb13u1": true, "2.10.0": true, "3.0.0": true,
	} {
		require.Equal(t, want, takesLargePipe(version), version)
	}
}
