package importer

import (
	"fmt"
	"strings"

	"zxfer/pkg/fault"
)

// section is one of a sanoid.conf: a dataset or a template.
type section struct {
	file string
	name string
	line int
	keys []setting // in the order of the file
}

// setting is one key of a section.
type setting struct {
	key, value string
	where      string // FILE:LINE
	line       int
}

func (s *section) where() string { return fmt.Sprintf("%s:%d", s.file, s.line) }

// get is the value of a key; the last one counts.
func (s *section) get(key string) (setting, bool) {
	for i := len(s.keys) - 1; i >= 0; i-- {
		if s.keys[i].key == key {
			return s.keys[i], true
		}
	}
	return setting{}, false
}

// parseINI reads the sections of a file of the form that Config::IniFiles,
// which sanoid uses, has: "[section]", "key = value", comments behind "#" or
// ";" on lines of their own. A section that comes again is continued. Values of
// several lines ("<<") are not supported; no setting of sanoid has any.
func parseINI(file, text string) ([]*section, error) {
	var out []*section
	var current *section
	byName := map[string]*section{}
	n := 0
	for raw := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		n++
		l := strings.TrimSpace(raw)
		if l == "" || l[0] == '#' || l[0] == ';' {
			continue
		}
		if name, ok := strings.CutPrefix(l, "["); ok {
			name, closed := strings.CutSuffix(name, "]")
			if name = strings.TrimSpace(name); !closed || name == "" {
				return nil, fault.Usagef("write [POOL/DATASET] or [template_NAME]", "%s:%d: %q is no section", file, n, l)
			}
			if current = byName[name]; current == nil {
				current = &section{file: file, name: name, line: n}
				byName[name], out = current, append(out, current)
			}
			continue
		}
		key, value, ok := strings.Cut(l, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, fault.Usagef("write KEY = VALUE", "%s:%d: %q is neither a section nor a setting", file, n, l)
		}
		if current == nil {
			return nil, fault.Usagef("write [POOL/DATASET] above it", "%s:%d: the setting %q belongs to no section", file, n, key)
		}
		current.keys = append(current.keys, setting{key: key, value: strings.TrimSpace(value), where: fmt.Sprintf("%s:%d", file, n), line: n})
	}
	return out, nil
}
