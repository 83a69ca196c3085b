// Package option holds what options are made of, on a command line and in a
// file: values that are parsed and bounded in one place, and the way a text names
// an option whoever reads it.
package option

import (
	"cmp"
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

// Of is a variable that text reads and set sets; kind is its Type.
func Of(kind string, text func() string, set func(string) error) Value {
	return &value{kind, text, set}
}

type value struct {
	kind string
	text func() string
	set  func(string) error
}

func (v *value) Type() string       { return v.kind }
func (v *value) String() string     { return v.text() }
func (v *value) Set(s string) error { return v.set(s) }

// Word is one of a few words; the first stands for a variable that is empty.
func Word(p *string, words ...string) Value {
	return Of(strings.Join(words, "|"), func() string { return cmp.Or(*p, words[0]) }, func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("choose one of %s", strings.Join(words, ", "))
		}
		*p = s
		return nil
	})
}

// Count is a whole number from low to high. Where 0 is below, it says that none
// was given.
func Count(p *int, low, high int) Value {
	text := func() string {
		if *p == 0 && low > 0 {
			return ""
		}
		return strconv.Itoa(*p)
	}
	return Of("N", text, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return fmt.Errorf("must be a whole number from %d to %d", low, high)
		}
		*p = n
		return nil
	})
}

// Size is a number of bytes, more than 0; of more than most only that counts.
func Size(p *size.Size, most size.Size) Value { return bytes(p, "SIZE", most) }

// Rate is a number of bytes per second, more than 0.
func Rate(p *size.Size) Value { return bytes(p, "RATE", size.Max) }

func bytes(p *size.Size, kind string, most size.Size) Value {
	text := func() string {
		if *p == 0 {
			return ""
		}
		return p.String()
	}
	return Of(kind, text, func(s string) error {
		if kind == "RATE" {
			s = strings.TrimSuffix(s, "/s")
		}
		n, err := size.Parse(s)
		switch {
		case err != nil:
			return err
		case n == 0:
			return errors.New("must be more than 0")
		}
		*p = min(n, most)
		return nil
	})
}

// Switch is on or off.
func Switch(p *bool) Value {
	return Of("bool", func() string { return strconv.FormatBool(*p) }, func(s string) error {
		b, err := strconv.ParseBool(s)
		if err == nil {
			*p = b
		}
		return err
	})
}

// Text is any text that check does not refuse.
func Text(p *string, kind string, check func(string) error) Value {
	return Of(kind, func() string { return *p }, func(s string) error {
		err := check(s)
		if err == nil {
			*p = s
		}
		return err
	})
}

// Parsed is a variable of a type that reads and writes itself.
func Parsed(p Parser, kind string) Value {
	return Of(kind, p.String, func(s string) error { return p.UnmarshalText([]byte(s)) })
}

// Parser is such a type. What UnmarshalText refuses changes nothing.
type Parser interface {
	encoding.TextUnmarshaler
	fmt.Stringer
}
