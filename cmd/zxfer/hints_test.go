package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/option"
	"zxfer/pkg/transport"
)

// TestMessagesUseOptionPlaceholders expects texts in pkg to name an option as {{ID}}, not as a
// flag, because the reader may have set it in a job file. Commands to paste may contain flags.
func TestMessagesUseOptionPlaceholders(t *testing.T) {
	t.Parallel()
	flags, short := map[string]bool{}, ""
	root := newRoot(&app{})
	for _, verb := range []string{"send", "restore", "dev", "doctor"} {
		cmd, err := find(root, []string{verb})
		require.NoError(t, err)
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags[f.Name] = true; short += f.Shorthand })
	}
	flag, letter := regexp.MustCompile(`--([a-z][a-z-]+)`), regexp.MustCompile(`(?:^|[ (])-[`+short+`](?:[ :;,.)]|$)`)
	command := regexp.MustCompile(`\b(zxfer (send|restore|heal|dev|doctor|replicate)|zfs|zpool|zstream|sysctl|nc|ssh|mbuffer|read|lsblk|mount|prune) [^;\n]*`)
	named := 0
	check := func(at, text string) {
		placeholder := regexp.MustCompile(`\{\{[a-z]`).MatchString(text)
		require.True(t, !placeholder || option.AllDeclared(strings.ReplaceAll(text, "%", "")), "%s: %q", at, text)
		option.Expand(text, func(id, _ string) string {
			named++
			require.True(t, flags[id], "%s: there is no option %q", at, id)
			return ""
		})
		for _, m := range flag.FindAllStringSubmatch(command.ReplaceAllString(text, ""), -1) {
			require.False(t, flags[m[1]] && text != m[0], "%s: write {{%s}}: %q", at, m[1], text)
		}
		if script := strings.Contains(text, "$"); !script && letter.FindString(text) != text {
			assert.NotRegexp(t, letter, command.ReplaceAllString(text, ""), "%s: write {{ID}}", at)
		}
	}
	pkg := filepath.Join("..", "..", "pkg")
	require.NoError(t, filepath.WalkDir(pkg, func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "testdata" || e.Name() == "importer" || strings.HasSuffix(e.Name(), "test")): // importer names flags of other tools
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
				check(files.Position(lit.Pos()).String(), text)
			}
			return true
		})
		return nil
	}))
	require.Greater(t, named, 40)
	for _, o := range transport.Options(transport.JobFile) {
		require.True(t, option.AllDeclared(option.Name(o.ID, "")), "texts cannot name option %s", o.ID)
	}
}

// TestHintCommandsExist parses the commands of all hints: verbs and flags of zxfer, and subcommands of
// zfs(8) and zpool(8), exist.
func TestHintCommandsExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "pkg", "internal", "messages", "testdata", "messages.txt"))
	require.NoError(t, err)
	zfs := strings.Fields("allow change-key create destroy get hold holds inherit list load-key mount promote receive release rename rewrite rollback send set snapshot unload-key unmount")
	zpool := strings.Fields("clear export get history import list scrub set status")
	command := regexp.MustCompile(`(?:^hint: |: |\\n)(zfs|zpool|zxfer) ([a-z-]+(?: [a-z-]+)?)((?: --?[A-Za-z][a-z-]*=?)*)`)
	root, found := newRoot(&app{}), map[string]int{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "error: ") {
			continue
		}
		text, _ := strings.CutPrefix(strings.TrimSpace(line), "text: ") // only a hint starts with a command
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			words := strings.Fields(m[2])
			found[m[1]]++
			switch m[1] {
			case "zfs":
				require.Contains(t, zfs, words[0], line)
			case "zpool":
				require.Contains(t, zpool, words[0], line)
			default:
				cmd, err := find(root, words[:1])
				if words[0] == "replicate" && len(words) > 1 {
					cmd, err = find(root, words)
				}
				if err != nil && !(strings.HasPrefix(line, "hint: ") && strings.HasPrefix(m[0], ": ")) {
					continue // a sentence about zxfer
				}
				require.NoError(t, err, line)
				cmd.InitDefaultHelpFlag()
				for flag := range strings.FieldsSeq(m[3]) {
					flag = strings.TrimSuffix(flag, "=")
					name, long := strings.CutPrefix(flag, "--")
					require.True(t, long && cmd.Flags().Lookup(name) != nil || !long && cmd.Flags().ShorthandLookup(flag[1:]) != nil, "%s: %s", flag, line)
				}
			}
		}
	}
	require.Greater(t, found["zfs"]+found["zpool"], 5)
	require.Greater(t, found["zxfer"], 20)
}
