// Command licences prints the licences of all modules built into zxfer, which must be
// distributed with the program. It fails if a module has no licence or one that is
// not allowed:
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

// allowed returns the SPDX identifiers of licences that only require that their text is kept.
func allowed() []string {
	return []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT"}
}

// known is the percentage of a licence file's words that must match an SPDX licence.
// The rest may list the files to which the licence applies.
const known = 80

const head = `zxfer is under the Apache License 2.0: see LICENSE. Built into it is work of others,
whose licences follow.

Made by: go run ./scripts/licences >THIRD_PARTY
`

// standard is the module whose section also covers the standard library, for which go
// list has no module. Both have the same authors and licence.
const standard = "golang.org/x/sys"

// module identifies a module built into zxfer.
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

// builtIn returns the modules built into pkg on amd64 and arm64, sorted by path.
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

// write writes a section for each module to w.
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

// licence returns the SPDX identifiers of m's licences, and their text with all notices.
func (m module) licence() (ids []string, terms string, err error) {
	for _, pattern := range []string{"LICEN[CS]E*", "COPYING*", "NOTICE*"} {
		files, err := filepath.Glob(filepath.Join(m.dir, pattern)) // the module cache has no special characters
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
