package importer

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/fault"
)

// section is a section of sanoid.conf: a dataset or a template.
type section struct {
	name  string
	where string    // FILE:LINE
	keys  []setting // in the order of the file
}

// setting is one key of a section.
type setting struct {
	key, value string
	where      string // FILE:LINE
}

// get returns the last value of a key.
func (s *section) get(key string) (setting, bool) {
	for _, k := range slices.Backward(s.keys) {
		if k.key == key {
			return k, true
		}
	}
	return setting{}, false
}

// parseINI parses the format of Config::IniFiles, which sanoid uses: "[section]", "key = value",
// and comments on lines that start with "#" or ";". A repeated section is continued. Multi-line
// values ("<<") are not supported, because no setting of sanoid needs them.
func parseINI(file, text string) ([]*section, error) {
	var out []*section
	var current *section
	byName := map[string]*section{}
	n := 0
	for raw := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		n++
		l, where := strings.TrimSpace(raw), fmt.Sprintf("%s:%d", file, n)
		if l == "" || l[0] == '#' || l[0] == ';' {
			continue
		}
		if name, ok := strings.CutPrefix(l, "["); ok {
			name, closed := strings.CutSuffix(name, "]")
			if name = strings.TrimSpace(name); !closed || name == "" {
				return nil, fault.Usagef("write [POOL/DATASET] or [template_NAME]", "%s: %q is not a section", where, l)
			}
			if current = byName[name]; current == nil {
				current = &section{name: name, where: where}
				byName[name], out = current, append(out, current)
			}
			continue
		}
		key, value, ok := strings.Cut(l, "=")
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, fault.Usagef("write KEY = VALUE", "%s: %q is neither a section nor a setting", where, l)
		}
		if current == nil {
			return nil, fault.Usagef("write [POOL/DATASET] above it", "%s: the setting %q belongs to no section", where, key)
		}
		current.keys = append(current.keys, setting{key, strings.TrimSpace(value), where})
	}
	return out, nil
}
