package zfsexec_test

import (
	"testing"

	"zxfer/pkg/zfs/zfsexec"
	"zxfer/pkg/zfs/zfstest"
)

func TestBackendCLI(t *testing.T) {
	zfstest.Require(t)
	c := zfsexec.New(nil)
	t.Cleanup(func() { _ = c.Close() })
	zfstest.Backend(t, c)
}
