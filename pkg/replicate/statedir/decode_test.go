package statedir

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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
			if decode(text, ownLimits().cost, into.Interface()) == nil {
				require.Empty(t, nils("", into), "%T %s", record, text)
			}
		})
		require.Positive(t, positions, "%T", record)
		require.ErrorIs(t, decode([]byte(" null\n"), ownLimits().cost, record), errNull, "%T", record)
	}
	for _, text := range []string{`{"gone":[null]}`, `{"datasets":{"tank/a":null}}`, `{"datasets":{"tank/a":{"targets":{"near":null}}}}`, `{"last_run":{"targets":[{},null]}}`} {
		require.ErrorIs(t, decode([]byte(text), ownLimits().cost, &State{}), errNull, text)
	}
	for _, text := range []string{`{"gone":null,"last_run":null}`, `{"last_run":{"targets":null}}`} { // fields without a value
		require.NoError(t, decode([]byte(text), ownLimits().cost, &State{}), text)
	}
}

// TestLogOfNewlines expects that a log of another user costs little memory and time. It is not parallel, because it
// measures the memory of the process.
func TestLogOfNewlines(t *testing.T) {
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "runs.jsonl"), []byte(`{"job":"a"}`+"\n"+`{"job":"b"}`+strings.Repeat("\n", 128<<20-100)+`{"job":"c"`), 0o600))
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
	require.Less(t, allocated, int64(2*blockSize))
}

// TestCostlyRecord expects that a record that costs too much memory is refused.
func TestCostlyRecord(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, decode([]byte(`{"gone":[`+strings.Repeat("{},", 4<<20)+`{}]}`), ownLimits().cost, &State{}), "bytes of memory")
}

// TestLinesBackward expects the lines of a file in reverse, wherever its blocks end.
func TestLinesBackward(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var want []string
		var text strings.Builder
		for range random.IntN(6) {
			line := strings.Repeat("x", random.IntN(2*blockSize))
			if line != "" && len(line) <= blockSize {
				want = append(want, line)
			}
			text.WriteString(line + strings.Repeat("\n", 1+random.IntN(2)))
		}
		text.WriteString("end")
		want = append(want, "end")
		slices.Reverse(want)
		var got []string
		require.NoError(t, linesBackward(strings.NewReader(text.String()), int64(text.Len()), blockSize, func(line []byte) bool {
			got = append(got, string(line))
			return true
		}))
		require.Equal(t, len(want), len(got))
		for i := range want {
			require.True(t, want[i] == got[i], "line %d", i)
		}
	}
}

// TestForeignRecords lets another user own the records that root reads. It expects that large ones are refused, and that a
// log of costly entries takes bounded memory.
func TestForeignRecords(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(s.file(name), []byte(text), 0o600))
		require.NoError(t, os.Chown(s.file(name), 65534, 65534))
	}
	write(stateFile, `{"job":"`+strings.Repeat("x", 17<<20)+`"}`)
	_, err = s.State()
	require.ErrorContains(t, err, "state.json is damaged: it has 17825802 bytes, more than 16777216")
	write(stateFile, `{"gone":[`+strings.Repeat("{},", 1<<20)+`{}]}`)
	_, err = s.State()
	require.ErrorContains(t, err, "state.json is damaged: it would need")
	entry := `{"job":"home","skipped":true,"notes":[` + strings.Repeat(`"",`, 1<<20) + `""]}` + "\n"
	write(runLog, strings.Repeat(entry, 8))
	runs, err := s.Runs(8)
	require.ErrorContains(t, err, "older entries would need too much memory")
	require.Len(t, runs, 3)
	_, err = s.LastRun()
	require.ErrorContains(t, err, "older entries would need too much memory")
	write(runLog, strings.Repeat("x\n", 64<<20)) // takes minutes to decode
	_, err = s.Runs(8)
	require.ErrorContains(t, err, "older entries would need too much memory")
	write("mail.json", strings.Repeat(" ", 17<<20))
	mailed, err := s.Mailed()
	require.NoError(t, err)
	require.Equal(t, &Mailed{}, mailed)
}
