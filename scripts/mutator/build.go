package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed switch.go.txt
var switches string

// listed holds the output of go list for a package.
type listed struct {
	Dir, ImportPath, Name, Export string
	GoFiles                       []string
	TestGoFiles, XTestGoFiles     []string
}

// list returns a package and, by import path, the export data of its dependencies.
func list(ctx context.Context, path string) (pkg listed, exports map[string]string, err error) {
	out, err := output(ctx, "go", "list", "-e=false", "-export", "-deps", "-json=Dir,ImportPath,Name,Export,GoFiles,TestGoFiles,XTestGoFiles", path)
	if err != nil {
		return pkg, nil, err
	}
	exports = map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkg, exports, nil
		} else if err != nil {
			return pkg, nil, fmt.Errorf("go list %s: %w", path, err)
		}
		exports[p.ImportPath], pkg = p.Export, p // the package itself comes last
	}
}

// output returns the standard output of a program. Its standard error is in the error.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("%s %s: %w: %s", name, args[0], err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

// mutatePackage writes the package's files with switches for mutants, and an overlay
// for go build, into a directory.
func mutatePackage(pkg listed, exports map[string]string, files *regexp.Regexp, dir string) (overlay string, mutants []mutant, err error) {
	fset, texts := token.NewFileSet(), map[string][]byte{}
	var parsed []*ast.File
	for _, name := range pkg.GoFiles {
		if texts[name], err = os.ReadFile(filepath.Join(pkg.Dir, name)); err != nil {
			return "", nil, err
		}
		f, err := parser.ParseFile(fset, name, texts[name], parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return "", nil, err
		}
		parsed = append(parsed, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	if _, err := config.Check(pkg.ImportPath, fset, parsed, info); err != nil {
		return "", nil, err
	}
	replace := map[string]string{}
	add := func(name string, text []byte) error {
		path := filepath.Join(dir, name)
		replace[filepath.Join(pkg.Dir, name)] = path
		return os.WriteFile(path, text, 0o600)
	}
	for i, f := range parsed {
		name := pkg.GoFiles[i]
		if !files.MatchString(name) {
			continue
		}
		m := &mutator{fset: fset, info: info, name: name, src: texts[name], mutants: &mutants}
		if err := add(name, m.mutate(f)); err != nil {
			return "", nil, err
		}
	}
	if err := add("zz_mutants.go", []byte(strings.Replace(switches, "PACKAGE", pkg.Name, 1))); err != nil {
		return "", nil, err
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", nil, err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, mutants, os.WriteFile(overlay, text, 0o600)
}

// compile builds the tests of packages with an overlay. It skips packages without tests
// and packages built before.
func compile(ctx context.Context, overlay, path, dir string) (binaries []binary, err error) {
	out, err := output(ctx, "go", "list", "-json=Dir,ImportPath,TestGoFiles,XTestGoFiles", path)
	if err != nil {
		return nil, err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return binaries, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list %s: %w", path, err)
		}
		b := binary{path: filepath.Join(dir, strings.ReplaceAll(p.ImportPath, "/", "+")+".test"), dir: p.Dir, pkg: p.ImportPath}
		if _, err := os.Stat(b.path); err == nil || len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue // built before, or without tests
		}
		if _, err := output(ctx, "go", "test", "-c", "-overlay", overlay, "-o", b.path, p.ImportPath); err != nil {
			return nil, err
		}
		binaries = append(binaries, b)
	}
}
