package statedir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"zxfer/pkg/budget"
)

// limits bound the memory that a record takes, in bytes.
type limits struct {
	file int64 // of the file
	cost int   // of the decoded record
}

// ownLimits returns the limits of files of root and of this user. The state of 100,000 datasets is below them.
func ownLimits() limits { return limits{4 * maxLog, 512 << 20} }

// foreignLimits returns the limits of files of other users, which root reads. The state of 20,000 datasets is below
// them.
func foreignLimits() limits { return limits{16 << 20, 128 << 20} }

// damagedError is the error of a record that zxfer did not write.
type damagedError struct{ error }

// errNull is the error of a record with null as a whole or as an element. A field may be null: it is not set then.
var errNull = errors.New("it contains null in place of a value")

// decode decodes a record. Another user may own its file: decode limits the memory, and refuses null, which would become
// a nil pointer, as an element of an array or object.
func decode(text []byte, limit int, into any) error {
	if cost := budget.Cost(text); cost > limit {
		return fmt.Errorf("it would need %d bytes of memory, more than %d", cost, limit)
	}
	if bytes.Equal(bytes.TrimSpace(text), []byte("null")) {
		return errNull
	}
	if err := json.Unmarshal(text, into); err != nil {
		return err
	}
	if hasNull(reflect.ValueOf(into).Elem()) {
		return errNull
	}
	return nil
}

// hasNull reports whether an element of a slice or map in v is a nil pointer.
func hasNull(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && hasNull(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && hasNull(v.Field(i)) {
				return true
			}
		}
	case reflect.Slice, reflect.Map:
		for _, e := range v.Seq2() {
			if e.Kind() == reflect.Pointer && e.IsNil() || hasNull(e) {
				return true
			}
		}
	}
	return false
}
