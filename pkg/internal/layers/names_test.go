package layers

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// byName holds the calls that change the mode, owner, times, size or attributes of a
// file by its name, with the number of their arguments. Methods of *os.File of the same
// name have fewer arguments.
func byName() map[string]int {
	return map[string]int{
		"Chmod": 2, "Fchmodat": 4, "Fchmodat2": 4,
		"Chown": 3, "Lchown": 3, "Fchownat": 5,
		"Chtimes": 3, "Utime": 2, "Utimes": 2, "UtimesNano": 2, "UtimesNanoAt": 4, "Futimesat": 3, "Lutimes": 2,
		"Truncate": 2,
		"Setxattr": 4, "Lsetxattr": 4, "Removexattr": 2, "Lremovexattr": 2,
	}
}

// throughDescriptor reports whether a call names no file except an open descriptor.
func throughDescriptor(call *ast.CallExpr) bool {
	is := func(e ast.Expr, text string) bool {
		literal, ok := e.(*ast.BasicLit)
		return ok && literal.Value == text
	}
	switch name := call.Fun.(*ast.SelectorExpr).Sel.Name; name {
	case "Fchownat":
		flag, ok := call.Args[4].(*ast.SelectorExpr)
		return is(call.Args[1], `""`) && ok && flag.Sel.Name == "AT_EMPTY_PATH"
	case "Chtimes", "UtimesNanoAt":
		at := call.Args[0]
		if name == "UtimesNanoAt" {
			at = call.Args[1]
		}
		path, ok := at.(*ast.CallExpr)
		return ok && len(path.Args) == 2 && is(path.Args[0], `"/proc/self/fd/%d"`)
	}
	return false
}

// changesByName returns the places in a source file that change a file by its name.
func changesByName(t *testing.T, name string, src any) (out []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, src, parser.SkipObjectResolution)
	require.NoError(t, err)
	harmless := map[*ast.SelectorExpr]bool{}
	found := func(s *ast.SelectorExpr) { out = append(out, fmt.Sprintf("%s: %s", set.Position(s.Pos()), s.Sel.Name)) }
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr: // it comes before the selector that it calls
			s, ok := n.Fun.(*ast.SelectorExpr)
			if ok && byName()[s.Sel.Name] > 0 {
				harmless[s] = true
				if len(n.Args) == byName()[s.Sel.Name] && !throughDescriptor(n) {
					found(s)
				}
			}
		case *ast.SelectorExpr: // a function that is passed on
			pkg, ok := n.X.(*ast.Ident)
			if ok && byName()[n.Sel.Name] > 0 && !harmless[n] && (pkg.Name == "os" || pkg.Name == "unix" || pkg.Name == "syscall") {
				found(n)
			}
		}
		return true
	})
	return out
}

// TestNoChangesByName forbids calls that set the mode, owner or times of a file by its name.
// The owner of the directory could replace the file first.
func TestNoChangesByName(t *testing.T) {
	t.Parallel()
	base, files := testenv.Root(t), 0
	for _, top := range []string{"cmd", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(base, top), func(name string, e os.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && (e.Name() == "testdata" || strings.HasSuffix(e.Name(), "test")): // zfstest and others
				return fs.SkipDir
			case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
				files++
				require.Empty(t, changesByName(t, name, nil), "use the descriptor")
			}
			return nil
		}))
	}
	require.Greater(t, files, 100)
}

func TestChangesByNameAreFound(t *testing.T) {
	t.Parallel()
	for line, found := range map[string]bool{
		`os.Chmod(f.Name(), 0o644)`:                               true,
		`set(os.Chmod)`:                                           true,
		`change := os.Lchown; change("a", 0, 0)`:                  true,
		`root.Chmod("a", 0o644)`:                                  true,
		`root().Chmod("a", 0o644)`:                                true,
		`unix.Fchmodat(fd, base, 0o700, 0)`:                       true,
		`unix.Fchownat(fd, base, 0, 0, unix.AT_SYMLINK_NOFOLLOW)`: true,
		`os.Chtimes(name, now, now)`:                              true,
		`unix.Lsetxattr(name, "user.a", nil, 0)`:                  true,
		`f.Chmod(0o644)`:                                          false,
		`open().Chown(0, 0)`:                                      false,
		`unix.Fchmod(fd, 0o644)`:                                  false,
		`unix.Fchownat(fd, "", 0, 0, unix.AT_EMPTY_PATH)`:         false,
		`unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), at, 0)`:          false,
		`unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), at, 0)`: true,
		`unix.UtimesNanoAt(fd, name, at, 0)`:                                                    true,
		`os.Chtimes(fmt.Sprintf("/proc/self/fd/%d", fd), now, now)`:                             false,
		`log.Chmod = 3`: false,
		`os.Chtimes(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name), now, now)`:     true,
		`func() { defer os.Chown("a", 0, 0) }()`:                                 true,
		`unix.Fchownat(fd, name, 0, 0, unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT)`: true,
	} {
		got := changesByName(t, "a.go", "package a\nfunc b() {\n"+line+"\n}\n")
		require.Equal(t, found, len(got) > 0, line)
	}
}
