package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
)

// TestDocsListLackingOperations expects the documentation to list what zxfer cannot do on a host
// without zxfer, in the words of the errors.
func TestDocsListLackingOperations(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/howto/limited-hosts.md")
	require.NoError(t, err)
	for _, text := range hosts.Lacking() {
		require.Contains(t, string(page), "\n- "+text+"\n")
	}
}
