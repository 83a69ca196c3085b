package runner

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestBusyOf(t *testing.T) {
	t.Parallel()
	busy := func(s string) error { return &zfs.Error{Kind: zfs.Busy, Subject: s} }
	err := fmt.Errorf("beta: %w", errors.Join(busy("a@1"), &zfs.Error{Kind: zfs.NotFound, Subject: "a@2"}, fmt.Errorf("more: %w", busy("a@3"))))
	require.Equal(t, map[string]bool{"a@1": true, "a@3": true}, busyOf(err))
	require.Empty(t, busyOf(errors.New("no")))
}
