package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMany(t *testing.T) {
	t.Parallel()
	require.NoError(t, run(t.Context(), []string{"5", "3"}))
	require.NoError(t, run(t.Context(), []string{"1", "1"}))
	require.Error(t, run(t.Context(), []string{"5"}))
	require.Error(t, run(t.Context(), []string{"five", "3"}))
	require.Error(t, run(t.Context(), []string{"0", "1"}), "no dataset to send")
}
