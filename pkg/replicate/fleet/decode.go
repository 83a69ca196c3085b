package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"
	"time"

	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
	"zxfer/pkg/printable"
	"zxfer/pkg/replicate/status"
)

// MaxAnswer is the maximum size of an answer in bytes, enough for about 20,000 copies.
const MaxAnswer = 8 << 20

// maxCost is the maximum memory in bytes of a decoded answer. An answer of MaxAnswer that lists
// copies takes less.
const maxCost = 32 << 20

// Limits of an answer: jobs, bytes per string, and the value of a number.
const (
	maxJobs   = 1000
	maxText   = 4096
	maxNumber = 1e10
)

// decode decodes the answer of a host. It replaces unknown states with the worst one, and each
// state with the worst of its parts. The result has no nil parts, no control characters except line breaks and
// tabs, and no string longer than maxText.
func decode(answer []byte) (*status.Status, error) {
	if len(answer) > MaxAnswer {
		return nil, fmt.Errorf("its answer is longer than %d bytes", MaxAnswer)
	}
	if cost, most := budget.Cost(answer), budget.Limit(maxCost, len(answer)); cost > most {
		return nil, fmt.Errorf("its answer would take %d bytes of memory, more than %d", cost, most)
	}
	at := bytes.Index(answer, []byte(`{"schema":"`))
	if at < 0 || at > 0 && answer[at-1] != '\n' { // a login shell may print text first
		return nil, fault.Failf("for a restricted key, use another key made with zxfer replicate authorize --allow status", "its answer is not a job status: %s", excerpt(answer))
	}
	var head struct{ Schema, Host string }
	s := &status.Status{}
	d := json.NewDecoder(bytes.NewReader(answer[at:]))
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return nil, fmt.Errorf("its answer is not a job status: %w", err)
	}
	if err := json.Unmarshal(raw, &head); err == nil && head.Schema != status.Schema {
		return nil, fault.Failf("install the same zxfer on all hosts", "its answer has the format %s, expected %s", excerpt([]byte(head.Schema)), status.Schema)
	}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("its answer is not a job status: %s", excerpt([]byte(err.Error())))
	}
	if len(s.Jobs) > maxJobs {
		return nil, fmt.Errorf("its answer has %d jobs, more than %d", len(s.Jobs), maxJobs)
	}
	if err := sanitize(reflect.ValueOf(s)); err != nil {
		return nil, fmt.Errorf("its answer is not a job status: %w", err)
	}
	for _, j := range s.Jobs {
		if !jobName.MatchString(j.Job) {
			return nil, fmt.Errorf("its answer has a job with the name %q", j.Job)
		}
		j.Normalize()
	}
	return s, nil
}

var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,47}$`)

var errNull = errors.New("it contains null")

// sanitize limits all strings and numbers of a value and removes control characters.
func sanitize(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return sanitize(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return nil
		}
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			if err := sanitize(v.Field(i)); err != nil {
				return err
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if e := v.Index(i); e.Kind() == reflect.Pointer && e.IsNil() {
				return errNull
			}
			if err := sanitize(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			if err := sanitize(e); err != nil {
				return err
			}
			v.SetMapIndex(k, e)
		}
	case reflect.String:
		v.SetString(clean(v.String()))
	}
	switch {
	case v.CanFloat() && (!(v.Float() >= 0) || v.Float() > maxNumber):
		v.SetFloat(math.Min(math.Max(v.Float(), 0), maxNumber))
	case v.CanInt() && (v.Int() < 0 || v.Int() > maxNumber):
		v.SetInt(min(max(v.Int(), 0), math.MaxInt32))
	}
	return nil
}

// clean truncates a string and replaces unprintable characters, except line breaks and tabs.
func clean(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "..."
	}
	return printable.Text(strings.ToValidUTF8(s, "?"))
}

// excerpt returns the start of an answer, quoted.
func excerpt(answer []byte) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(answer[:min(len(answer), 80)]), "?"))
	if text == "" {
		return "empty answer"
	}
	return fmt.Sprintf("%q", text)
}
