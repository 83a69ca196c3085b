package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/size"
	"zxfer/pkg/way"
)

// parseSize reads a SIZE.
func parseSize(s string) (int64, error) { return size.Parse(s) }

// sizeValue is a flag that takes a SIZE.
type sizeValue struct {
	bytes *size.Size
	text  string
	kind  string // SIZE or RATE
}

func newSize(bytes *size.Size) *sizeValue { return &sizeValue{bytes: bytes, kind: "SIZE"} }

func newRate(bytes *size.Size) *sizeValue { return &sizeValue{bytes: bytes, kind: "RATE"} }

func (v *sizeValue) String() string { return v.text }
func (v *sizeValue) Type() string   { return v.kind }

func (v *sizeValue) Set(s string) error {
	digits := s
	if v.kind == "RATE" {
		digits = strings.TrimSuffix(s, "/s")
	}
	n, err := parseSize(digits)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("must be more than 0")
	}
	*v.bytes, v.text = size.Size(n), s
	return nil
}

// choiceValue is a flag that takes one of a few words.
type choiceValue struct {
	value   *string
	choices []string
}

func newChoice(value *string, choices ...string) *choiceValue {
	*value = choices[0]
	return &choiceValue{value: value, choices: choices}
}

func (v *choiceValue) String() string { return *v.value }
func (v *choiceValue) Type() string   { return strings.Join(v.choices, "|") }

func (v *choiceValue) Set(s string) error {
	for _, c := range v.choices {
		if s == c {
			*v.value = s
			return nil
		}
	}
	return fmt.Errorf("choose one of %s", strings.Join(v.choices, ", "))
}

// countValue is a flag that takes a whole number within bounds.
type countValue struct {
	n         *int
	low, high int
}

func newCount(n *int, value, low, high int) *countValue {
	*n = value
	return &countValue{n: n, low: low, high: high}
}

func (v *countValue) String() string {
	if v.n == nil || *v.n == 0 && v.low > 0 {
		return "" // chosen by zxfer
	}
	return strconv.Itoa(*v.n)
}

func (v *countValue) Type() string { return "N" }

func (v *countValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.low || n > v.high {
		return fmt.Errorf("must be a whole number from %d to %d", v.low, v.high)
	}
	*v.n = n
	return nil
}

// compressValue is auto, off, zstd or zstd:LEVEL.
type compressValue struct{ value *string }

func newCompress(value *string, initial string) *compressValue {
	*value = initial
	return &compressValue{value}
}

func (v *compressValue) String() string { return *v.value }
func (v *compressValue) Type() string   { return "auto|zstd[:N]|off" }

// Levels of zstd(1) without --ultra.
const minZstd, maxZstd = 1, 19

func (v *compressValue) Set(s string) error {
	level, isLevel := strings.CutPrefix(s, "zstd:")
	switch {
	case s == "auto", s == "off", s == "zstd":
	case isLevel:
		if n, err := strconv.Atoi(level); err != nil || n < minZstd || n > maxZstd {
			return fmt.Errorf("the level must be a whole number from %d to %d", minZstd, maxZstd)
		}
	default:
		return fmt.Errorf("write auto, off, zstd or zstd:N with N from %d to %d", minZstd, maxZstd)
	}
	*v.value = s
	return nil
}

// portsValue is a flag that takes a range of ports.
type portsValue struct{ *way.Ports }

func (v *portsValue) Type() string       { return "LOW-HIGH" }
func (v *portsValue) Set(s string) error { return v.UnmarshalText([]byte(s)) }

func (v *portsValue) String() string {
	if v.Ports == nil { // pflag asks a zero value
		return ""
	}
	return v.Ports.String()
}

// readNamed reads a file that the command line names.
func readNamed(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		err = fault.Usagef("", "there is no file %s", name)
	}
	return text, err
}
