package importer

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"zxfer/pkg/fault"
)

// value is a node of a YAML file. The zero value is one that is not there.
type value struct {
	*yaml.Node
	file string
}

// pair is one key of a mapping.
type pair struct {
	key string
	at  value // the key
	to  value
}

// parseYAML reads the only document of a file.
func parseYAML(file string, text []byte) (value, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		why := strings.TrimPrefix(err.Error(), "yaml: ")
		if m := regexp.MustCompile(`^line (\d+): (.*)$`).FindStringSubmatch(why); m != nil {
			return value{}, fault.Usagef("", "%s:%s: %s", file, m[1], m[2])
		}
		return value{}, fault.Usagef("", "%s: %s", file, why)
	}
	if len(doc.Content) == 0 {
		return value{}, fault.Usagef("", "%s is empty", file)
	}
	return value{doc.Content[0], file}.resolved(), nil
}

// resolved follows an alias.
func (v value) resolved() value {
	for n := 0; v.Node != nil && v.Kind == yaml.AliasNode && n < 10; n++ {
		v.Node = v.Alias
	}
	return v
}

func (v value) there() bool { return v.Node != nil && v.Tag != "!!null" }

func (v value) where() string {
	if v.Node == nil {
		return v.file
	}
	return fmt.Sprintf("%s:%d", v.file, v.Line)
}

// pairs are the keys of a mapping in the order of the file, merged ones ("<<")
// last; none where it is not there.
func (v value) pairs() ([]pair, error) { return v.pairsTo(8) }

func (v value) pairsTo(depth int) ([]pair, error) {
	if !v.there() {
		return nil, nil
	}
	if v.Kind != yaml.MappingNode || depth == 0 {
		return nil, fault.Usagef("", "%s: a mapping of keys to values is wanted", v.where())
	}
	var out, merged []pair
	for i := 0; i+1 < len(v.Content); i += 2 {
		key, to := value{v.Content[i], v.file}.resolved(), value{v.Content[i+1], v.file}.resolved()
		if key.Kind != yaml.ScalarNode {
			return nil, fault.Usagef("", "%s: a key is wanted", key.where())
		}
		if key.Tag == "!!merge" {
			more, err := to.pairsTo(depth - 1)
			if err != nil {
				return nil, err
			}
			merged = append(merged, more...)
			continue
		}
		out = append(out, pair{key.Value, key, to})
	}
	for _, m := range merged {
		if !slices.ContainsFunc(out, func(p pair) bool { return p.key == m.key }) {
			out = append(out, m)
		}
	}
	return out, nil
}

// get is the value of a key of a mapping.
func (v value) get(key string) (value, error) {
	all, err := v.pairs()
	for _, p := range all {
		if p.key == key {
			return p.to, err
		}
	}
	return value{file: v.file}, err
}

// list are the elements of a sequence; none where it is not there.
func (v value) list() ([]value, error) {
	if !v.there() {
		return nil, nil
	}
	if v.Kind != yaml.SequenceNode {
		return nil, fault.Usagef("", "%s: a list is wanted", v.where())
	}
	var out []value
	for _, n := range v.Content {
		out = append(out, value{n, v.file}.resolved())
	}
	return out, nil
}

// text is a scalar; "" where it is not there.
func (v value) text() (string, error) {
	if !v.there() {
		return "", nil
	}
	if v.Kind != yaml.ScalarNode {
		return "", fault.Usagef("", "%s: a single value is wanted", v.where())
	}
	return v.Value, nil
}

// textOf is a key's scalar.
func (v value) textOf(key string) (string, error) {
	k, err := v.get(key)
	if err != nil {
		return "", err
	}
	return k.text()
}

func (v value) boolean() (bool, error) {
	t, err := v.text()
	if err != nil {
		return false, err
	}
	switch strings.ToLower(t) {
	case "true", "yes", "on":
		return true, nil
	case "false", "no", "off", "":
		return false, nil
	}
	return false, fault.Usagef("", "%s: %q is neither true nor false", v.where(), t)
}

func (v value) number() (int, error) {
	t, err := v.text()
	if err != nil || t == "" {
		return 0, err
	}
	n, err := strconv.Atoi(t)
	if err != nil || n < 0 {
		return 0, fault.Usagef("", "%s: %q is no number", v.where(), t)
	}
	return n, nil
}

// texts are the elements of a list of scalars.
func (v value) texts() ([]string, error) {
	all, err := v.list()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range all {
		t, err := e.text()
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}
