package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

// FuzzReadFacts reads untrusted facts files. It expects a result of bounded size or a usage
// error.
func FuzzReadFacts(f *testing.F) {
	f.Add([]byte(factsHead + "\nsource a\ntarget b\n-- source/proc/meminfo --\nMemTotal: 1 kB\n-- target/x --\ny\n"))
	f.Add([]byte(factsHead + "\nsource a\nsource b\n-- source/x --\n"))
	f.Add([]byte(factsHead + "\n\n"))
	f.Add([]byte("something else\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		name := filepath.Join(t.TempDir(), "facts")
		require.NoError(t, os.WriteFile(name, b, 0o600))
		archives, err := readFacts(name)
		if err != nil {
			require.Equal(t, fault.Usage, fault.ClassOf(err))
			return
		}
		require.NotEmpty(t, archives)
		size, roles := 0, map[string]bool{}
		for _, a := range archives {
			require.False(t, roles[a.Role], a.Role)
			roles[a.Role] = true
			size += len(a.Text)
		}
		require.LessOrEqual(t, size, 2*len(b)*(1+len(archives)))
	})
}
