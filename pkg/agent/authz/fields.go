package authz

import (
	"reflect"
	"slices"
	"strings"
)

func fields(judged, harmless string) []string { return strings.Fields(judged + " " + harmless) }

// undecided names a field that is set and that nothing was decided about; ""
// where there is none.
func undecided(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return undecided(v.Elem())
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.String || k == reflect.Uint8 {
			return ""
		}
		for i := range v.Len() {
			if field := undecided(v.Index(i)); field != "" {
				return field
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			switch {
			case v.Field(i).IsZero():
			case !slices.Contains(checkedFields[v.Type()], name):
				return v.Type().String() + "." + name
			default:
				if field := undecided(v.Field(i)); field != "" {
					return field
				}
			}
		}
	case reflect.Map:
		if v.Type() != reflect.TypeFor[map[string]string]() {
			return v.Type().String()
		}
	case reflect.Interface:
		if !v.IsNil() {
			return undecided(v.Elem())
		}
	case reflect.Func, reflect.Chan, reflect.Array:
		return v.Type().String()
	}
	return ""
}
