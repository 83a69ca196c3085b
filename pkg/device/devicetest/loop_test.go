package devicetest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestImage expects that an image has the requested size and no allocated space, and that Sum
// hashes its contents.
func TestImage(t *testing.T) {
	t.Parallel()
	image := Image(t, 1<<20)
	info, err := os.Stat(image)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, info.Size())
	require.Equal(t, "0", Run(t, "stat", "-c", "%b", image), "blocks")
	// From head -c 1M /dev/zero | sha256sum
	require.Equal(t, "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58", Sum(t, image))
	require.NoError(t, os.WriteFile(image, []byte("x"), 0o600))
	require.NotEqual(t, "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58", Sum(t, image))
}

func TestScratchIsRemoved(t *testing.T) {
	t.Parallel()
	var dir string
	t.Run("made", func(t *testing.T) { //nolint:paralleltest // its end is waited for
		dir = Scratch(t)
		require.DirExists(t, dir)
	})
	require.NoDirExists(t, dir)
}
