package importer

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
)

func TestGlobs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		re   string
		want []string // nil: none match exactly
	}{
		{"^zrepl_.*", []string{"zrepl_*"}},
		{"^zrepl_", []string{"zrepl_*"}},
		{"zrepl_.*", []string{"*zrepl_*"}},
		{"^(zrepl|manual)_.*", []string{"zrepl_*", "manual_*"}},
		{"_daily$", []string{"*_daily"}},
		{"^a.c$", []string{"a?c"}},
		{"^v[0-9]$", []string{"v[0-9]"}},
		{"^a?b$", []string{"ab", "b"}},
		{".*", []string{"*"}},
		{"^a+$", nil},
		{"^[^a]$", nil},
		{"(?i)abc", nil},
		{"a^b", nil},
		{"^$", nil},
		{"(", nil},
		{`\bword`, nil},
	}
	for _, tt := range tests {
		got, ok := globs(tt.re)
		require.Equal(t, tt.want != nil, ok, tt.re)
		if ok {
			require.Equal(t, tt.want, got, tt.re)
		}
	}
}

// FuzzGlobs holds that the patterns of an expression match what it finds, and
// nothing else.
func FuzzGlobs(f *testing.F) {
	for _, re := range []string{"^zrepl_.*", "a|b$", "^(x|y).[0-9]?$", "a.*b", `\*a`, "", "[a-c_]", "^a(b|c)*"} {
		f.Add(re, "zrepl_2026")
		f.Add(re, "ab")
	}
	f.Fuzz(func(t *testing.T, re, name string) {
		odd := func(r rune) bool { return r < ' ' || r == '/' || r >= 0x7f }
		if !utf8.ValidString(re) || name == "" || strings.ContainsFunc(name, odd) || strings.ContainsFunc(re, func(r rune) bool { return r < ' ' }) {
			return // no part of a name
		}
		patterns, ok := globs(re)
		if !ok {
			return
		}
		matched := slices.ContainsFunc(patterns, func(p string) bool {
			ok, err := path.Match(p, name)
			require.NoError(t, err, p)
			return ok
		})
		require.Equal(t, regexp.MustCompile(re).MatchString(name), matched, "%q as %q of %q", re, patterns, name)
	})
}

// What an expression of syncoid finds, the patterns leave out; below what they
// leave out everything goes.
func TestDatasetPatterns(t *testing.T) {
	t.Parallel()
	const source = "tank/vm"
	names := []string{"tank/vm", "tank/vm/swap", "tank/vm/swap1", "tank/vm/a/swap", "tank/vm/a/swap/b", "tank/vm/cache", "tank/vm/mycache/x", "tank/vm/a", "tank/vm/b/cached"}
	tests := []struct {
		re    string
		ok    bool
		whole bool
	}{
		{"swap", true, true}, {"/swap", true, true}, {"/swap$", true, false}, {"cache", true, true}, {"^tank/vm/a", true, true},
		{"^tank/vm/a/swap$", true, false}, {"tank/vm/a/", true, true}, {"(swap|cache)", true, true}, {"[ab]$", true, false},
		{"vm", false, false}, {"^other", false, false}, {"a/swap", false, false}, {"s.ap", false, false}, {"a.*b", false, false}, {"(", false, false},
	}
	for _, tt := range tests {
		patterns, whole, ok := datasetPatterns(tt.re, source)
		require.Equal(t, tt.ok, ok, tt.re)
		if !ok {
			continue
		}
		require.Equal(t, tt.whole, whole, tt.re)
		j := replicate.Job{Source: source, Recursive: true, Exclude: patterns}
		r := regexp.MustCompile(tt.re)
		for _, n := range names {
			found := r.MatchString(n)
			if !whole { // also what is below something found
				for p := n; strings.HasPrefix(p, source+"/"); p = path.Dir(p) {
					found = found || r.MatchString(p)
				}
			}
			require.Equal(t, !found, j.Selects(source, n), "%s of %s as %q", n, tt.re, patterns)
		}
	}
}
