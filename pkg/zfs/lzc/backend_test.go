package lzc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs/lzc"
	"zxfer/pkg/zfs/zfstest"
)

func TestBackendLZC(t *testing.T) {
	zfstest.Require(t)
	c, err := lzc.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	zfstest.Backend(t, c)
}
