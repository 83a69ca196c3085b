// Package layers checks rules about the source of production code: which package may import which,
// and which calls are forbidden. It contains only tests, and does not check the imports of packages
// outside this module.
package layers

import (
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

const module = "zxfer/"

// pure returns the packages that only parse, plan and decide. They need no system to be tested, and
// the same input always gives the same output.
func pure() []string {
	return []string{"pkg/plan", "pkg/preflight", "pkg/zfs", "pkg/sysinfo", "pkg/endpoint", "pkg/budget", "pkg/fault", "pkg/finding",
		"pkg/outcome", "pkg/printable", "pkg/remedy", "pkg/retry", "pkg/size", "pkg/option", "pkg/transport", "pkg/replicate", "pkg/replicate/calendar", "pkg/replicate/decide", "pkg/replicate/retention", "pkg/replicate/decision", "pkg/replicate/jobfile", "pkg/replicate/importer", "pkg/freeze"}
}

// effectful reports whether a package of the standard library, or a third-party module, accesses
// the operating system.
func effectful(pkg string) bool {
	if pkg == "net/netip" || pkg == "net/url" {
		return false // they only parse
	}
	first, _, _ := strings.Cut(pkg, "/")
	return first == "os" || first == "net" || first == "syscall" || pkg == "plugin" || pkg == "unsafe" ||
		strings.HasPrefix(pkg, "golang.org/x/sys/") || strings.HasPrefix(pkg, "golang.org/x/term")
}

// imports returns the imports of each package's files, excluding tests.
func imports(t *testing.T) map[string][]string {
	base := testenv.Root(t)
	out := map[string][]string{}
	for _, top := range []string{"cmd", "pkg"} {
		err := filepath.WalkDir(filepath.Join(base, top), func(name string, e os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if e.IsDir() && e.Name() == "testdata" {
				return filepath.SkipDir
			}
			if e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(base, name)
			if err != nil {
				return err
			}
			pkg := path.Dir(filepath.ToSlash(rel))
			out[pkg] = slices.Clip(out[pkg]) // adds packages without imports too
			for _, spec := range file.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					return err
				}
				if !slices.Contains(out[pkg], imported) {
					out[pkg] = append(out[pkg], imported)
				}
			}
			return nil
		})
		require.NoError(t, err)
	}
	return out
}

// TestPurePackages expects that pure packages access neither the system nor the network, not even
// through another package of this module.
func TestPurePackages(t *testing.T) {
	t.Parallel()
	all := imports(t)
	for _, pkg := range pure() {
		require.Contains(t, all, pkg, "%s does not exist: was it renamed?", pkg)
		for _, imported := range all[pkg] {
			require.False(t, effectful(imported), "%s is pure, and imports %s", pkg, imported)
			if ours, ok := strings.CutPrefix(imported, module); ok {
				require.Contains(t, pure(), ours, "%s is pure, and imports %s, which is not", pkg, imported)
			}
		}
	}
}

// TestForbiddenImports expects that some packages do not import others, directly or indirectly.
func TestForbiddenImports(t *testing.T) {
	t.Parallel()
	all := imports(t)
	for pkg, not := range map[string][]string{
		"pkg/transport/tcp": {"pkg/transfer", "pkg/device", "pkg/zfs"},
		"pkg/transfer":      {"pkg/device", "pkg/zfs"},
		"pkg/device":        {"pkg/zfs", "pkg/hosts", "pkg/job/ends"},
	} {
		require.NotEmpty(t, all[pkg], "%s does not exist: was it renamed?", pkg)
		reached := map[string]bool{}
		for next := []string{pkg}; len(next) > 0; next = next[1:] {
			for _, imported := range all[next[0]] {
				if ours, ok := strings.CutPrefix(imported, module); ok && !reached[ours] {
					reached[ours] = true
					next = append(next, ours)
				}
			}
		}
		for _, other := range not {
			require.NotContains(t, reached, other, "%s must not import %s", pkg, other)
		}
	}
}

func TestEffectful(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"os", "os/exec", "net", "net/http", "syscall", "unsafe", "golang.org/x/sys/unix"} {
		require.True(t, effectful(pkg), pkg)
	}
	for _, pkg := range []string{"io", "io/fs", "net/netip", "path", "strings", "zxfer/pkg/zfs", "slices"} {
		require.False(t, effectful(pkg), pkg)
	}
}
