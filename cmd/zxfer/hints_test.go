package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/option"
)

// Texts below the command line name an option as {{ID}}, as who reads them may
// have written a job file: what they name there is, and none names a flag, but
// within a command of zxfer that is to be pasted.
func TestTextsNameOptionsNotFlags(t *testing.T) {
	t.Parallel()
	flags := map[string]bool{}
	root := newRoot(&app{})
	for _, verb := range []string{"send", "dev", "doctor"} {
		cmd, err := find(root, []string{verb})
		require.NoError(t, err)
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
	}
	flag, command := regexp.MustCompile(`--([a-z][a-z-]+)`), regexp.MustCompile(`zxfer (send|dev|doctor|replicate) [^;\n]*`)
	named := 0
	judge := func(at, text string) {
		option.Expand(text, func(id, _ string) string {
			named++
			require.True(t, flags[id], "%s: there is no option %q", at, id)
			return ""
		})
		for _, m := range flag.FindAllStringSubmatch(command.ReplaceAllString(text, ""), -1) {
			require.False(t, flags[m[1]] && text != m[0], "%s: write {{%s}}: %q", at, m[1], text)
		}
	}
	pkg := filepath.Join("..", "..", "pkg")
	require.NoError(t, filepath.WalkDir(pkg, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "testdata" || e.Name() == "importer"): // which speaks of other tools' flags
			return filepath.SkipDir
		case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, err := strconv.Unquote(lit.Value)
				require.NoError(t, err)
				judge(files.Position(lit.Pos()).String(), text)
			}
			return true
		})
		return nil
	}))
	require.Greater(t, named, 40)
}
