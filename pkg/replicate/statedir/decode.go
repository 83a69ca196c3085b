package statedir

import (
	"encoding/json"
	"fmt"
	"reflect"

	"zxfer/pkg/budget"
)

// maxCost limits the memory of a decoded record, in bytes. The state of 100,000 datasets needs less.
const maxCost = 512 << 20

// decode decodes a record. Another user may own its file, and root reads it: decode limits the memory, and drops
// each null element of an array or object, which would become a nil pointer.
func decode(text []byte, into any) error {
	if cost := budget.Cost(text); cost > maxCost {
		return fmt.Errorf("it would need %d bytes of memory, more than %d", cost, maxCost)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return err
	}
	dropNulls(reflect.ValueOf(into).Elem())
	return nil
}

func dropNulls(v reflect.Value) {
	null := func(e reflect.Value) bool { return e.Kind() == reflect.Pointer && e.IsNil() }
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			dropNulls(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				dropNulls(v.Field(i))
			}
		}
	case reflect.Slice:
		kept := 0
		for i := range v.Len() {
			if e := v.Index(i); !null(e) {
				dropNulls(e)
				v.Index(kept).Set(e)
				kept++
			}
		}
		v.SetLen(kept)
	case reflect.Map:
		for key, e := range v.Seq2() {
			if null(e) {
				v.SetMapIndex(key, reflect.Value{})
				continue
			}
			own := reflect.New(e.Type()).Elem() // a value in a map cannot be changed in place
			own.Set(e)
			dropNulls(own)
			v.SetMapIndex(key, own)
		}
	}
}
