package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each sentence of docs/security.md has its tests, and there are those.
func TestEachPromiseOfSecurityHasItsTest(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	there := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			there[m[1]] = true
		}
		return err
	}))
	page, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	for _, m := range named.FindAllStringSubmatch(string(page), -1) {
		require.True(t, there[m[1]], "docs/security.md names %s, which is no test", m[1])
	}
	promises := regexp.MustCompile(`(?m)^- (?:.+\n)(?:  .+\n)*`).FindAllString(string(page), -1)
	require.Greater(t, len(promises), 40)
	for _, p := range promises {
		require.Regexp(t, named, p)
	}
}
