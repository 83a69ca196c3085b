// Command licences prints the licences of what is built into zxfer, whose texts have
// to go with the program. It fails where a module has none, or one that its users
// may not want:
//
//	go run ./scripts/licences >THIRD_PARTY
package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed are licences that ask of a program's users no more than to keep their text.
func allowed() []string {
	return []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT"}
}

// known is how much of a licence's words, in percent, must be those of one in SPDX's
// list: the rest may say which files it is for.
const known = 80

const head = `zxfer is under the Apache License 2.0: see LICENSE. Built into it is work of others,
whose licences follow.

Made by: go run ./scripts/licences >THIRD_PARTY
`

// standard names what go list has no module for: the standard library is of the same
// authors as this one, with the same licence.
const standard = "golang.org/x/sys"

// module is one of those that zxfer is built from.
type module struct{ path, version, dir string }

func main() {
	modules, err := builtIn(".", "./cmd/zxfer")
	if err == nil {
		err = write(os.Stdout, modules)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

// builtIn returns the modules that a package is built from, on either architecture.
func builtIn(dir, pkg string) (modules []module, err error) {
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.Command("go", "list", "-deps", "-f", `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}`, pkg)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		for l := range strings.Lines(string(out)) {
			if f := strings.SplitN(strings.TrimRight(l, "\n"), " ", 3); len(f) == 3 {
				modules = append(modules, module{f[0], f[1], cmp.Or(f[2], filepath.Join(dir, "vendor", f[0]))})
			}
		}
	}
	slices.SortFunc(modules, func(a, b module) int { return cmp.Compare(a.path, b.path) })
	return slices.Compact(modules), nil
}

// write prints a section for each module.
func write(w io.Writer, modules []module) error {
	text := head
	for _, m := range modules {
		ids, terms, err := m.licence()
		if err != nil {
			return err
		}
		name := m.path + " " + m.version
		if m.path == standard {
			name += ", and the standard library of Go"
		}
		text += "\n" + strings.Repeat("=", 80) + "\n" + name + "\n" + strings.Join(ids, ", ") + "\n\n" + strings.TrimSpace(terms) + "\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

// licence returns the licences of a module by their names of SPDX, and their text with
// the notices that belong to them.
func (m module) licence() (ids []string, terms string, err error) {
	for _, pattern := range []string{"LICEN[CS]E*", "COPYING*", "NOTICE*"} {
		files, err := filepath.Glob(filepath.Join(m.dir, pattern)) // of the module cache: without special characters
		if err != nil {
			return nil, "", err
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, "", err
			}
			terms += strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n")) + "\n\n"
			found := licensecheck.Scan(text)
			if found.Percent < known && !strings.HasPrefix(filepath.Base(name), "NOTICE") {
				return nil, "", fmt.Errorf("%s: of its %s only %.0f %% is text of a known licence", m.path, filepath.Base(name), found.Percent)
			}
			for _, part := range found.Match {
				if !slices.Contains(allowed(), part.ID) {
					return nil, "", fmt.Errorf("%s: its licence is %s, which is not allowed", m.path, part.ID)
				}
				ids = append(ids, part.ID)
			}
		}
	}
	if len(ids) == 0 {
		return nil, "", fmt.Errorf("%s: no licence in %s", m.path, m.dir)
	}
	slices.Sort(ids)
	return slices.Compact(ids), terms, nil
}
