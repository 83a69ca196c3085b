package testenv

import (
	"encoding"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Golden compares got with a file. UPDATE_GOLDEN=1 writes the file first.
func Golden(t testing.TB, file, got string) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run: UPDATE_GOLDEN=1 go test . -run '^%s$'", t.Name())
	require.Equal(t, string(want), got, "if this change is intended, run: UPDATE_GOLDEN=1 go test . -run '^%s$'", t.Name())
}

// JSONFields returns one line for each field that the JSON of a value can have: its path and kind, such as
// ".jobs[].name string". "[]" is an element of an array, "{}" a value of an object with free names, "?" a field that may be
// missing. A recursive type ends with "...".
func JSONFields(value any) string {
	var b strings.Builder
	describeJSON(&b, "", reflect.TypeOf(value), nil)
	return b.String()
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// describeJSON writes the fields of a type below a path. above are the structs that contain it.
func describeJSON(b *strings.Builder, path string, t reflect.Type, above []reflect.Type) {
	leaf := func(kind string) { b.WriteString(strings.TrimSpace(path+" "+kind) + "\n") }
	if t == nil {
		leaf("any")
		return
	}
	is := func(i reflect.Type) bool { return t.Implements(i) || reflect.PointerTo(t).Implements(i) }
	switch {
	case is(marshaler):
		text, _ := json.Marshal(reflect.Zero(t).Interface())
		leaf("custom, empty " + string(text))
		return
	case is(textMarshaler):
		leaf("string")
		return
	}
	switch t.Kind() {
	case reflect.Pointer:
		describeJSON(b, path, t.Elem(), above)
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			leaf("base64")
			return
		}
		describeJSON(b, path+"[]", t.Elem(), above)
	case reflect.Map:
		describeJSON(b, path+"{}", t.Elem(), above)
	case reflect.Interface:
		leaf("any")
	case reflect.Struct:
		for _, outer := range above {
			if outer == t {
				leaf("...")
				return
			}
		}
		describeStruct(b, path, t, append(above[:len(above):len(above)], t))
	default:
		leaf(t.Kind().String())
	}
}

func describeStruct(b *strings.Builder, path string, t reflect.Type, above []reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && name == "":
			describeJSON(b, path, f.Type, above)
		default:
			if name == "" {
				name = f.Name
			}
			if strings.Contains(options, "omit") {
				name += "?"
			}
			describeJSON(b, path+"."+name, f.Type, above)
		}
	}
}
