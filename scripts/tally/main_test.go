package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTally(t *testing.T) {
	t.Parallel()
	host := `{"Action":"output","Package":"p","Test":"A","Output":"    a_test.go:1: needs ZFS\n"}
{"Action":"skip","Package":"p","Test":"A"}
{"Action":"output","Package":"p","Test":"B","Output":"    b_test.go:1: needs root\n"}
{"Action":"skip","Package":"p","Test":"B"}
{"Action":"pass","Package":"p","Test":"C"}
{"Action":"pass","Package":"p"}
`
	guest := `{"Action":"pass","Package":"p","Test":"A"}
{"Action":"pass","Package":"p"}
`
	failing := `{"Action":"output","Package":"p","Test":"C","Output":"boom\n"}
{"Action":"fail","Package":"p","Test":"C"}
{"Action":"fail","Package":"p"}
`
	noBuild := `{"Action":"build-output","ImportPath":"q [q.test]","Output":"q.go:1: syntax error\n"}
{"Action":"fail","Package":"q"}
`
	tests := []struct {
		name string
		runs []string
		ok   bool
		want []string
	}{
		{"a pass anywhere beats a skip", []string{host, guest}, true, []string{"2 passed, 0 failed, 1 skipped\n", "SKIP p B: b_test.go:1: needs root"}},
		{"a failure anywhere counts", []string{host, failing}, false, []string{"0 passed, 1 failed, 2 skipped\n", "boom"}},
		{"a package that does not build fails", []string{guest, noBuild}, false, []string{"1 passed, 1 failed, 0 skipped\n", "syntax error"}},
		{"no test at all fails", []string{""}, false, []string{"0 passed, 0 failed, 0 skipped\n"}},
		{"stray output fails", []string{guest, "panic: no JSON\n"}, false, []string{"panic: no JSON", "1 failed"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ta := newTally()
			for _, r := range tt.runs {
				require.NoError(t, ta.read(strings.NewReader(r), ""))
			}
			var out strings.Builder
			require.Equal(t, tt.ok, ta.report(&out))
			for _, w := range tt.want {
				require.Contains(t, out.String(), w)
			}
		})
	}
}

// What another version does is counted apart.
func TestTallyOfLabels(t *testing.T) {
	t.Parallel()
	ta := newTally()
	pass := `{"Action":"pass","Package":"p","Test":"A"}` + "\n"
	require.NoError(t, ta.read(strings.NewReader(pass), ""))
	require.NoError(t, ta.read(strings.NewReader(pass), ""))
	require.NoError(t, ta.read(strings.NewReader(strings.Replace(pass, "pass", "fail", 1)), "ZFS 2.1"))
	var out strings.Builder
	require.False(t, ta.report(&out))
	require.Equal(t, "FAIL p A (ZFS 2.1)\n1 passed, 1 failed, 0 skipped\n", out.String())
}
