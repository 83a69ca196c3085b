package testenv

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRefusingAddress expects an address that refuses connections and on which no program can listen.
func TestRefusingAddress(t *testing.T) {
	t.Parallel()
	address := RefusingAddress(t)
	_, err := net.Dial("tcp", address)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = net.Listen("tcp", address)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
}
