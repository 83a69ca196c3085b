package testenv

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fixtureRow is a row of a table in testdata/README.md.
type fixtureRow struct {
	pattern string
	readers []string // packages
}

// fixtureRows returns the rows whose first cell is a pattern for fixtures.
func fixtureRows(t *testing.T) (rows []fixtureRow) {
	t.Helper()
	text, err := os.ReadFile(Data(t, "README.md"))
	require.NoError(t, err)
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		require.Len(t, cells, 4, line)
		row := fixtureRow{pattern: quoted.FindStringSubmatch(cells[0])[1]}
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			row.readers = append(row.readers, m[1])
		}
		require.NotEmpty(t, row.readers, line)
		rows = append(rows, row)
	}
	return rows
}

func TestEveryFixtureIsInTheREADME(t *testing.T) {
	t.Parallel()
	rows := fixtureRows(t)
	found := map[string]int{}
	err := fs.WalkDir(os.DirFS(Data(t)), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || name == "README.md" {
			return err
		}
		listed := false
		for _, row := range rows {
			match, err := path.Match(row.pattern, name)
			require.NoError(t, err, row.pattern)
			if match {
				listed = true
				found[row.pattern]++
			}
		}
		require.True(t, listed, "testdata/README.md has no row for %s", name)
		return nil
	})
	require.NoError(t, err)
	for _, row := range rows {
		require.NotZero(t, found[row.pattern], "no file matches the row %s of testdata/README.md", row.pattern)
	}
}

func TestREADMENamesThePackagesThatReadFixtures(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, row := range fixtureRows(t) {
		for _, pkg := range row.readers {
			named[pkg] = true
		}
	}
	readers := map[string]bool{}
	root := os.DirFS(Root(t))
	for _, top := range []string{"cmd", "pkg"} {
		err := fs.WalkDir(root, top, func(name string, e fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(name, "_test.go") {
				return err
			}
			text, err := fs.ReadFile(root, name)
			if strings.Contains(string(text), "testenv.Data(") {
				readers[path.Dir(name)] = true
			}
			return err
		})
		require.NoError(t, err)
	}
	delete(readers, "pkg/testenv")
	require.Equal(t, readers, named)
}

func TestDataIsBelowRoot(t *testing.T) {
	t.Parallel()
	require.FileExists(t, filepath.Join(Root(t), "go.mod"))
	require.Equal(t, filepath.Join(Root(t), "testdata", "a", "*.txt"), Data(t, "a", "*.txt"))
}
