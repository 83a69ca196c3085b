package importer

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBelowSource expects that the translated expression matches the same datasets below the
// source.
func TestBelowSource(t *testing.T) {
	t.Parallel()
	const source = "tank/vm"
	names := []string{"tank/vm/cache", "tank/vm/a", "tank/vm/a/cache", "tank/vm/a/cache2", "tank/vm/a/xcache/b", "tank/vm/scratch", "tank/vm/b/scratch",
		"tank/vm/scratch/x", "tank/vm/x", "tank/vm/y", "tank/vm/tmp-1", "tank/vm/tmp-1/y", "tank/vm/vm", "tank/vm/tank/vm/scratch", "tank/vm/CACHE", "tank/vm/b.c"}
	for expression, carried := range map[string]bool{
		"cache": true, "cache$": true, "/cache": true, "/cache$": true, "^tank/vm/scratch$": true, "^tank/vm/scratch": true, `^tank\/vm\/(x|y)`: true,
		"(x|y)$": true, "x|y": true, "tmp-[0-9]+": true, "(?i)cache": true, `b\.c`: true, "^tank/vm/.*/cache": true, `^tank/vm/[^/]+$`: true,
		"a.*cache": false, "vm": false, "^tank": false, "tank/b/(x|y)$": false, "[^x]y": false, `\bx`: false, "/a/cache": false, "a/": false,
		"^scratch": false, "(?!x)": false, "x(": false, ".*": false, "": false, "/": false, "^tank/vm/x|y": false, "(?i)/cache": false,
	} {
		got, ok := belowSource(expression, source)
		require.Equal(t, carried, ok, "%q", expression)
		if !ok {
			continue
		}
		was, is := regexp.MustCompile(expression), regexp.MustCompile(got)
		for _, n := range names {
			require.Equal(t, was.MatchString(n), is.MatchString(n[len(source)+1:]), "%q, now %q, of %s", expression, got, n)
		}
	}
}
