package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// Root returns the top directory of the repository: the nearest directory with a
// go.mod, from the working directory upwards.
func Root(t testing.TB) string {
	t.Helper()
	start, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no go.mod in %s or above", start)
		}
	}
}

// Data returns the path of a fixture, or of a pattern for several, below testdata of
// the repository. testdata/README.md lists the fixtures.
func Data(t testing.TB, elem ...string) string {
	t.Helper()
	return filepath.Join(Root(t), "testdata", filepath.Join(elem...))
}
