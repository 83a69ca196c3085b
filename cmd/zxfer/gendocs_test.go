package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/cli is made from the code; a change of a flag or text must be followed
// by: go run ./cmd/zxfer gendocs docs/cli
func TestDocsAreCurrent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "docs", "cli")
	pages := pagesOf(newRoot(&app{}), "markdown")
	for name, want := range pages {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, string(got), "%s is stale", name)
	}
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range files {
		require.Contains(t, pages, f.Name(), "%s describes nothing", f.Name())
	}
}

func TestManPages(t *testing.T) {
	t.Parallel()
	for name, text := range pagesOf(newRoot(&app{}), "man") {
		require.True(t, strings.HasPrefix(text, ".TH "), name)
		require.Contains(t, text, "(1)", "%s: no other page is named", name)
		for l := range strings.Lines(text) {
			if strings.HasPrefix(l, "'") {
				t.Errorf("%s: line is a roff request by accident: %q", name, l)
			}
		}
	}
	require.Equal(t, "\\&.x\n\\&'y\na\\-b \\e", roff(".x\n'y\na-b \\"))
	require.Equal(t, "A list:\n.PP\n.nf\n  a  one\n  b  two\n.fi\n.PP\nThe end.", roffParagraphs("A list:\n\n  a  one\n  b  two\n\nThe end."))
}
