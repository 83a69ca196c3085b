package jobfile

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	toml "github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// decode decodes TOML. Unknown keys are errors.
func decode(text []byte, into any) error {
	d := toml.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	d.EnableUnmarshalerInterface()
	return d.Decode(into)
}

// syntaxError converts an error of the decoder to a usage error with line and key.
func syntaxError(name string, err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		var errs []error
		var hints []string
		for i := range unknown.Errors {
			e := &unknown.Errors[i]
			line, _ := e.Position()
			key := e.Key()
			errs = append(errs, fmt.Errorf("%s:%d: unknown key %q", name, line, strings.Join(key, ".")))
			if meant := suggest(key); meant != "" {
				hints = append(hints, fmt.Sprintf("line %d: did you mean %s?", line, meant))
			}
		}
		return fault.Usagef(strings.Join(hints, "\n"), "%w", errors.Join(errs...))
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		line, _ := bad.Position()
		key := ""
		if len(bad.Key()) > 0 {
			key = strings.Join(bad.Key(), ".") + ": "
		}
		return fault.Usagef("", "%s:%d: %s%s", name, line, key, typeMessage(bad.Key(), strings.TrimPrefix(bad.Error(), "toml: ")))
	}
	return fault.Usagef("", "%s: %w", name, err)
}

// typeMessage rewrites the decoder's message about a wrong type, without Go's field and type names.
func typeMessage(key []string, message string) string {
	is, ok := strings.CutPrefix(message, "cannot decode TOML ")
	is, field, found := strings.Cut(is, " into struct field ")
	_, goType, typed := strings.Cut(field, " of type ")
	if !ok || !found || !typed {
		return message
	}
	must := "a table"
	switch goType {
	case "string", "replicate.Secret", "plan.First":
		must = "a string in quotes"
	case "int":
		must = "a whole number without quotes"
	case "bool":
		must = "true or false without quotes"
	case "[]string":
		must = "an array of strings"
	default:
		if strings.HasPrefix(goType, "[]") {
			must = "a list of tables"
			if len(key) > 0 {
				must += fmt.Sprintf(": write [[%s]] above its keys, or %s = [{ ... }]", strings.Join(key, "."), key[len(key)-1])
			}
		}
	}
	if is == "integer" {
		is = "whole number"
	}
	return fmt.Sprintf("must be %s, not %s", must, article(is))
}

// article returns a noun with its indefinite article.
func article(noun string) string {
	if noun != "" && strings.Contains("aeiou", noun[:1]) {
		return "an " + noun
	}
	return "a " + noun
}

// suggest returns a similar key of the same table, or a table of a job that has the key, or "".
func suggest(path []string) string {
	if len(path) == 0 {
		return ""
	}
	tables, typed := tableKeys(), path[len(path)-1]
	keys := tables[strings.Join(path[:len(path)-1], ".")]
	known := slices.Contains(keys, typed)        // the decoder's path omits inline tables
	for most := 1; most <= 2 && !known; most++ { // with more changes it is another word
		for _, k := range keys {
			if most < len(k) && similar(typed, k, most) {
				return k
			}
		}
	}
	if other := otherName(typed); slices.Contains(keys, other) {
		return other
	}
	for _, where := range []string{"job", "job.snapshots", "job.retention", "job.target", "job.transfer", "job.drill", "job.target.properties"} {
		if keys != nil && slices.Contains(tables[where], typed) {
			return typed + " of [" + where + "]"
		}
	}
	return ""
}

// otherName returns the key that other programs call by that name, or "".
func otherName(name string) string {
	switch name {
	case "keep", "prune", "pruning", "policy":
		return "retention"
	case "interval", "cron", "timer":
		return "schedule"
	case "src", "dataset", "filesystem", "filesystems":
		return "source"
	case "dst", "dest", "destination", "address":
		return "to"
	}
	return ""
}

// tableKeys returns the keys of each table of a job file, by table name.
func tableKeys() map[string][]string {
	out := map[string][]string{}
	var add func(table string, t reflect.Type)
	add = func(table string, t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return
		}
		for _, f := range reflect.VisibleFields(t) {
			if key, _, _ := strings.Cut(f.Tag.Get("toml"), ","); key != "" {
				out[table] = append(out[table], key)
				add(strings.TrimPrefix(table+"."+key, "."), f.Type)
			}
		}
	}
	add("", reflect.TypeFor[replicate.File]())
	return out
}

// similar reports whether at most so many changes turn a into b. A change inserts, deletes or
// replaces a letter, or swaps neighbors.
func similar(a, b string, changes int) bool {
	for a != "" && b != "" && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	switch {
	case changes == 0 || a == "" || b == "":
		return len(a)+len(b) <= changes
	case len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] && similar(a[2:], b[2:], changes-1):
		return true
	}
	return similar(a[1:], b, changes-1) || similar(a, b[1:], changes-1) || similar(a[1:], b[1:], changes-1)
}

// headers returns the lines of the headers [[job]], [[host]] and [[template]] in valid TOML, and of
// the keys of each job: "schedule", "snapshots.take", "target[0]", "target[0].to".
func headers(text []byte) (lines map[string][]int, keys []map[string]int) {
	lines = map[string][]int{}
	table, target := []string(nil), -1
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		e := p.Expression()
		var path []string
		line := 0
		for key := e.Key(); key.Next(); {
			if path = append(path, string(key.Node().Data)); line == 0 {
				line = p.Shape(key.Node().Raw).Start.Line
			}
		}
		switch {
		case e.Kind == unstable.KeyValue:
			path = append(slices.Clone(table), path...)
		case e.Kind == unstable.ArrayTable && len(path) == 1:
			lines[path[0]] = append(lines[path[0]], line)
			if target = -1; path[0] == "job" {
				keys = append(keys, map[string]int{})
			}
		case e.Kind == unstable.ArrayTable && len(path) == 2 && path[1] == "target":
			target++
		}
		if e.Kind != unstable.KeyValue {
			table = path
		}
		if len(path) < 2 || path[0] != "job" || len(keys) == 0 {
			continue
		}
		if target >= 0 && path[1] == "target" {
			path[1] = fmt.Sprintf("target[%d]", target)
		}
		for n := 2; n <= len(path); n++ { // a.b = 1 also defines the table a
			if name := strings.Join(path[1:n], "."); keys[len(keys)-1][name] == 0 {
				keys[len(keys)-1][name] = line
			}
		}
	}
	return lines, keys
}

// locations holds line numbers of a job file for messages. The zero value has none.
type locations struct {
	name     string
	lines    []int            // of the job headers, or of other headers, from 1
	keys     []map[string]int // of the keys of each job, from 1
	suffixes []string         // suffixes with template and host, by job
}

func (p locations) job(i int) string {
	if i >= len(p.lines) { // jobs in an inline array have no headers
		return p.file()
	}
	return fmt.Sprintf("%s:%d: ", p.name, p.lines[i])
}

// line returns the line of a key of job i, or of the innermost table that has it, or 0.
func (p locations) line(i int, key string) int {
	if i >= len(p.lines) {
		return 0
	}
	for i < len(p.keys) && key != "" {
		if line := p.keys[i][key]; line != 0 {
			return line
		}
		key = key[:max(0, strings.LastIndexByte(key, '.'))]
	}
	return p.lines[i]
}

// key returns the place of a key of job i as the prefix of a message.
func (p locations) key(i int, key string) string {
	if line := p.line(i, key); line != 0 {
		return fmt.Sprintf("%s:%d: ", p.name, line)
	}
	return p.job(i)
}

// suffix returns the suffix for a job's name.
func (p locations) suffix(i int) string {
	if i >= len(p.suffixes) {
		return ""
	}
	return p.suffixes[i]
}

func (p locations) file() string {
	if p.name == "" {
		return ""
	}
	return p.name + ": "
}
