package statedir

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/decide"
)

// fill gives each pointer, slice and map one element, down to a depth.
func fill(v reflect.Value, depth int) {
	if _, isTime := v.Interface().(time.Time); isTime || depth == 0 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth-1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), depth)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth-1)
	case reflect.Map:
		e := reflect.New(v.Type().Elem()).Elem()
		fill(e, depth-1)
		v.Set(reflect.MakeMap(v.Type()))
		key := reflect.New(v.Type().Key()).Elem()
		if key.Kind() == reflect.String {
			key.SetString("name")
		}
		v.SetMapIndex(key, e)
	}
}

// nils returns the paths of nil elements of slices and maps.
func nils(path string, v reflect.Value) (found []string) {
	element := func(path string, e reflect.Value) {
		if e.Kind() == reflect.Pointer && e.IsNil() {
			found = append(found, path)
		}
		found = append(found, nils(path, e)...)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return nils(path, v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			found = append(found, nils(path+"."+v.Type().Field(i).Name, v.Field(i))...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			element(path+"[]", v.Index(i))
		}
	case reflect.Map:
		for _, e := range v.Seq2() {
			element(path+"{}", e)
		}
	}
	return found
}

// withNulls returns texts of a JSON value in which one element each is null.
func withNulls(v any, emit func()) {
	replace := func(set func(any), e any) {
		set(nil)
		emit()
		set(e)
		withNulls(e, emit)
	}
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			replace(func(to any) { v[name] = to }, e)
		}
	case []any:
		for i, e := range v {
			replace(func(to any) { v[i] = to }, e)
		}
	}
}

// TestNullAnywhere expects that null in any position of a record leaves no nil pointer, because another user may own
// the record that root reads.
func TestNullAnywhere(t *testing.T) {
	t.Parallel()
	for _, record := range []any{&State{}, &Run{}, &Drill{}, &DrillState{}, &UnchangedCache{}, &Mailed{}, &decide.Pause{}, &map[string]ScheduleStart{}} {
		fill(reflect.ValueOf(record).Elem(), 6)
		text, err := json.Marshal(record)
		require.NoError(t, err)
		var whole any
		require.NoError(t, json.Unmarshal(text, &whole))
		positions := 0
		withNulls(whole, func() {
			positions++
			text, err := json.Marshal(whole)
			require.NoError(t, err)
			into := reflect.New(reflect.TypeOf(record).Elem())
			if decode(text, into.Interface()) == nil {
				require.Empty(t, nils("", into), "%T %s", record, text)
			}
		})
		require.Positive(t, positions, "%T", record)
	}
}

// TestLogOfNewlines expects that a log of another user costs little memory and time.
func TestLogOfNewlines(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "runs.jsonl"), []byte(`{"job":"a"}`+"\n"+`{"job":"b"}`+strings.Repeat("\n", 4<<20)+`{"job":"c"`), 0o600))
	var runs []*Run
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			runs, err = s.Runs(5)
		}
	}).AllocedBytesPerOp()
	require.NoError(t, err)
	require.Len(t, runs, 2)
	require.Equal(t, []string{"a", "b"}, []string{runs[0].Job, runs[1].Job})
	require.Less(t, allocated, int64(40<<20)) // io.ReadAll grows its buffer; a slice of lines would take 100 MB more
}

// TestCostlyRecord expects that a record that costs too much memory is refused.
func TestCostlyRecord(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, decode([]byte(`{"gone":[`+strings.Repeat("{},", 4<<20)+`{}]}`), &State{}), "bytes of memory")
}
