// Package option holds what options are made of, on a command line and in a
// file: values that are parsed and bounded in one place, and the way a text names
// an option whoever reads it.
package option

import (
	"encoding"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/size"
)

// Value is a variable that an option sets: a pflag.Value. Set refuses what is out
// of bounds and then changes nothing; what String returns, Set takes.
type Value interface {
	Set(string) error
	String() string
	Type() string // what help writes in place of a value
}

// Word is one of a few words; the first stands for a variable that is empty.
func Word(p *string, words ...string) Value { return &word{p, words} }

type word struct {
	p     *string
	words []string
}

func (v *word) Type() string { return strings.Join(v.words, "|") }

func (v *word) String() string {
	if *v.p == "" {
		return v.words[0]
	}
	return *v.p
}

func (v *word) Set(s string) error {
	if !slices.Contains(v.words, s) {
		return fmt.Errorf("choose one of %s", strings.Join(v.words, ", "))
	}
	*v.p = s
	return nil
}

// Count is a whole number from low to high. Where 0 is below, it says that none
// was given.
func Count(p *int, low, high int) Value { return &count{p, low, high} }

type count struct {
	p         *int
	low, high int
}

func (v *count) Type() string { return "N" }

func (v *count) String() string {
	if *v.p == 0 && v.low > 0 {
		return ""
	}
	return strconv.Itoa(*v.p)
}

func (v *count) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.low || n > v.high {
		return fmt.Errorf("must be a whole number from %d to %d", v.low, v.high)
	}
	*v.p = n
	return nil
}

// Size is a number of bytes, more than 0; of more than most only that counts.
func Size(p *size.Size, most size.Size) Value { return &bytes{p: p, most: most, kind: "SIZE"} }

// Rate is a number of bytes per second, more than 0.
func Rate(p *size.Size) Value { return &bytes{p: p, most: size.Max, kind: "RATE"} }

type bytes struct {
	p    *size.Size
	most size.Size
	kind string
}

func (v *bytes) Type() string { return v.kind }

func (v *bytes) String() string {
	if *v.p == 0 {
		return ""
	}
	return v.p.String()
}

func (v *bytes) Set(s string) error {
	if v.kind == "RATE" {
		s = strings.TrimSuffix(s, "/s")
	}
	n, err := size.Parse(s)
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("must be more than 0")
	}
	*v.p = min(n, v.most)
	return nil
}

// Switch is on or off.
func Switch(p *bool) Value { return (*toggle)(p) }

type toggle bool

func (v *toggle) Type() string     { return "bool" }
func (v *toggle) String() string   { return strconv.FormatBool(bool(*v)) }
func (v *toggle) IsBoolFlag() bool { return true }

func (v *toggle) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err == nil {
		*v = toggle(b)
	}
	return err
}

// Text is any text that check does not refuse.
func Text(p *string, kind string, check func(string) error) Value { return &text{p, kind, check} }

type text struct {
	p     *string
	kind  string
	check func(string) error
}

func (v *text) Type() string   { return v.kind }
func (v *text) String() string { return *v.p }

func (v *text) Set(s string) error {
	if err := v.check(s); err != nil {
		return err
	}
	*v.p = s
	return nil
}

// Parsed is a variable of a type that reads and writes itself.
func Parsed(p Parser, kind string) Value { return &parsed{p, kind} }

// Parser is such a type. What UnmarshalText refuses changes nothing.
type Parser interface {
	encoding.TextUnmarshaler
	fmt.Stringer
}

type parsed struct {
	Parser
	kind string
}

func (v *parsed) Type() string       { return v.kind }
func (v *parsed) Set(s string) error { return v.UnmarshalText([]byte(s)) }
