// Package messages lists the texts that zxfer can print, so that people can read them in one place,
// and checks rules about their form. It contains only tests, and does not check help texts.
package messages

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// Kinds of messages.
const (
	failure = "error"
	hint    = "hint"
	other   = "text" // warnings, notes, progress, reports
)

// message is a text of the production code. Parts that are known only at run time are "…".
type message struct{ kind, text string }

// prose matches a text of at least two words. Other literals are names, patterns and formats.
var prose = regexp.MustCompile(`[A-Za-z]{2,}[ ,:;]+[A-Za-z%'"(…{]`)

// code matches a text for another program, such as a script, a query or a list of words.
var code = regexp.MustCompile(`^([A-Z]\w+ )+[A-Z]\w+$|\$[A-Z{(1?@]|[;&|]{2}|^exec |\[\^|\(\?|^[a-z_]+(,[a-z_]+)+$|^SELECT|^SET |^<|://`)

// collect returns the messages of a source file.
func collect(file *ast.File) (out []message) {
	seen := map[ast.Node]bool{}
	add := func(kind string, n ast.Expr) {
		text, ok := literal(n)
		if seen[n] || !ok {
			return
		}
		ast.Inspect(n, func(n ast.Node) bool { seen[n] = true; return true })
		if prose.MatchString(text) && !code.MatchString(text) {
			out = append(out, message{kind, text})
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			return n.Tag == nil
		case *ast.KeyValueExpr:
			switch key, _ := n.Key.(*ast.Ident); {
			case key == nil:
			case slices.Contains([]string{"Use", "Short", "Long", "Example", "Annotations"}, key.Name):
				return false // help of a verb
			case key.Name == "Hint" || key.Name == "Remedy":
				add(hint, n.Value)
			}
		case *ast.CallExpr:
			name := called(n)
			switch {
			case isHelp(name):
				return false
			case name == "flagGroup": // its title belongs to the help
				seen[n.Args[1]] = true
			case slices.Contains([]string{"errors.New", "fmt.Errorf"}, name) && len(n.Args) > 0:
				add(failure, n.Args[0])
			case name == "f.addf" && len(n.Args) > 1: // after the key of the job file
				seen[n.Args[0]] = true
				add(failure, n.Args[1])
			case strings.HasPrefix(name, "fault.") && len(n.Args) > 1:
				add(hint, n.Args[0])
				add(failure, n.Args[1])
			}
		case ast.Expr:
			add(other, n)
		}
		return true
	})
	return out
}

// called returns the name of a called function as written, such as "fmt.Errorf".
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
		return "." + f.Sel.Name
	}
	return ""
}

// isHelp reports whether a function defines a flag, or compiles a pattern.
func isHelp(name string) bool {
	return regexp.MustCompile(`^(f|fs|flags|p)\.(Var|VarP|VarPF|[A-Z][A-Za-z0-9]*VarP?)$|^regexp\.`).MatchString(name)
}

// literal returns the text of a string literal, or of a concatenation with at least one string
// literal.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			left, isLeft := literal(e.X)
			right, isRight := literal(e.Y)
			if !isLeft {
				left = "…"
			}
			if !isRight {
				right = "…"
			}
			return left + right, isLeft || isRight
		}
	case *ast.ParenExpr:
		return literal(e.X)
	}
	return "", false
}

// messages returns the messages of all packages with production code, by package.
func messages(t *testing.T) map[string][]message {
	t.Helper()
	base, out := testenv.Root(t), map[string][]message{}
	for _, top := range []string{"cmd", "pkg"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(base, top), func(name string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case e.IsDir() && (e.Name() == "testdata" || e.Name() == "internal" || e.Name() == "testenv" || e.Name() == "zfsmem" || strings.HasSuffix(e.Name(), "test")):
				return filepath.SkipDir
			case e.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(base, name)
			if err != nil {
				return err
			}
			pkg := path.Dir(filepath.ToSlash(rel))
			out[pkg] = append(out[pkg], collect(file)...)
			return nil
		}))
	}
	return out
}

// TestMessages compares the messages of all packages with testdata/messages.txt, which lists them
// for readers. Their order does not depend on the source file. This command updates the list:
//
//	UPDATE_GOLDEN=1 go test ./pkg/internal/messages
func TestMessages(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	all := messages(t)
	for _, pkg := range slices.Sorted(func(yield func(string) bool) {
		for pkg := range all {
			if len(all[pkg]) > 0 && !yield(pkg) {
				return
			}
		}
	}) {
		fmt.Fprintf(&b, "# %s\n", pkg)
		var lines []string
		for _, m := range all[pkg] {
			lines = append(lines, m.kind+": "+strings.ReplaceAll(m.text, "\n", `\n`)+"\n")
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(slices.Compact(lines), "") + "\n")
	}
	const name = "testdata/messages.txt"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(name, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err, "UPDATE_GOLDEN=1 go test ./pkg/internal/messages writes it")
	require.Equal(t, string(want), b.String(), "read the new messages, then UPDATE_GOLDEN=1 go test ./pkg/internal/messages")
}

// TestFormOfErrors expects each error to be one line in lower case, without a full stop.
func TestFormOfErrors(t *testing.T) {
	t.Parallel()
	n := 0
	for pkg, all := range messages(t) {
		for _, m := range all {
			if m.kind != failure {
				continue
			}
			n++
			require.NotContains(t, m.text, "\n", pkg)
			require.NotRegexp(t, `[^.]\.$`, m.text, pkg)
			require.NotRegexp(t, `^[A-Z][a-z]+ `, strings.TrimPrefix(m.text, "OpenZFS"), pkg)
		}
	}
	require.Greater(t, n, 500)
}

// TestFormOfHints expects a hint to have at most three lines of at most 100 characters, without the
// values of its verbs.
func TestFormOfHints(t *testing.T) {
	t.Parallel()
	n := 0
	for pkg, all := range messages(t) {
		for _, m := range all {
			if m.kind != hint {
				continue
			}
			n++
			lines := strings.Split(m.text, "\n")
			require.LessOrEqual(t, len(lines), 3, "%s: %q", pkg, m.text)
			for _, line := range lines {
				require.LessOrEqual(t, len([]rune(line)), 100, "%s: %q", pkg, line)
				require.NotRegexp(t, `[^.]\.$`, line, pkg)
			}
		}
	}
	require.Greater(t, n, 200)
}

func TestCollect(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
var c = Command{Short: "Do a thing"}
func f(name string) error {
	f.StringVar(&x, "flag", "", "name the thing")
	log("reading " + name + " now")
	run("exec zfs list")
	return fault.Usagef("zxfer help", "no such %s", name)
}`, parser.SkipObjectResolution)
	require.NoError(t, err)
	require.Equal(t, []message{{other, "reading … now"}, {hint, "zxfer help"}, {failure, "no such %s"}}, collect(file))
}
