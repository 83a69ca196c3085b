package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSecurityStatementsHaveTests expects a row in testdata/security.md for each list item and
// grant of docs/security.md. Each row must name existing tests.
func TestSecurityStatementsHaveTests(t *testing.T) {
	t.Parallel()
	statements := securityStatements(t)
	require.Greater(t, len(statements), 60)
	exists := testNames(t)
	table, err := os.ReadFile(filepath.Join("testdata", "security.md"))
	require.NoError(t, err)
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	covered := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.+) \| (.+) \|$`).FindAllStringSubmatch(string(table), -1) {
		if row[1] == "statement" {
			continue
		}
		at := slices.IndexFunc(statements, func(s string) bool { return strings.HasPrefix(s, row[1]) })
		require.GreaterOrEqual(t, at, 0, "docs/security.md has no list item or grant %q", row[1])
		require.Empty(t, covered[statements[at]], "%q is a second row of %q", row[1], statements[at])
		covered[statements[at]] = row[1]
		tests := named.FindAllStringSubmatch(row[2], -1)
		require.NotEmpty(t, tests, "%q has no test", row[1])
		for _, m := range tests {
			require.True(t, exists[m[1]], "%q names %s, which is not a test", row[1], m[1])
		}
	}
	for _, s := range statements {
		require.NotEmpty(t, covered[s], "testdata/security.md has no row for %q", s)
	}
}

// securityStatements returns the list items of docs/security.md and the first column of its
// table of grants.
func securityStatements(t *testing.T) (all []string) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "security.md"))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^- ((?:.+\n)(?:  .+\n)*)`).FindAllStringSubmatch(string(raw), -1) {
		all = append(all, strings.Join(strings.Fields(m[1]), " "))
	}
	_, grants, found := strings.Cut(string(raw), "| grant | permits |\n")
	require.True(t, found)
	grants, _, _ = strings.Cut(grants, "\n\n")
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|").FindAllStringSubmatch(grants, -1) {
		all = append(all, m[1])
	}
	return all
}

// testNames returns the names of all tests and fuzz targets in the repository.
func testNames(t *testing.T) map[string]bool {
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	require.NoError(t, filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return err
	}))
	return names
}
