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

// Value is a variable that an option sets, as a pflag.Value. If a value is out of
// bounds, Set returns an error and changes nothing. Set accepts the results of
// String.
type Value interface {
	Set(string) error
	String() string
	Type() string // the placeholder in help
}

// New returns a Value. text formats the variable, set parses it, and kind is its
// Type.
func New(kind string, text func() string, set func(string) error) Value {
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

// Word accepts one of the words. The first is the default for an empty variable.
func Word(p *string, words ...string) Value {
	return New(strings.Join(words, "|"), func() string { return cmp.Or(*p, words[0]) }, func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("choose one of %s", strings.Join(words, ", "))
		}
		*p = s
		return nil
	})
}

// Count accepts a whole number from low to high. If low is positive, 0 means unset.
func Count(p *int, low, high int) Value {
	text := func() string {
		if *p == 0 && low > 0 {
			return ""
		}
		return strconv.Itoa(*p)
	}
	return New("N", text, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return fmt.Errorf("must be a whole number from %d to %d", low, high)
		}
		*p = n
		return nil
	})
}

// Size accepts a positive number of bytes. It reduces numbers above most to most.
func Size(p *size.Size, most size.Size) Value { return bytes(p, "SIZE", most) }

// Rate accepts a positive number of bytes per second.
func Rate(p *size.Size) Value { return bytes(p, "RATE", size.Max) }

func bytes(p *size.Size, kind string, most size.Size) Value {
	text := func() string {
		if *p == 0 {
			return ""
		}
		return p.String()
	}
	return New(kind, text, func(s string) error {
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

// Bool accepts a boolean.
func Bool(p *bool) Value {
	return New("bool", func() string { return strconv.FormatBool(*p) }, func(s string) error {
		b, err := strconv.ParseBool(s)
		if err == nil {
			*p = b
		}
		return err
	})
}

// Text accepts any text for which check returns nil.
func Text(p *string, kind string, check func(string) error) Value {
	return New(kind, func() string { return *p }, func(s string) error {
		err := check(s)
		if err == nil {
			*p = s
		}
		return err
	})
}

// Parsed accepts the texts that p parses.
func Parsed(p Parser, kind string) Value {
	return New(kind, p.String, func(s string) error { return p.UnmarshalText([]byte(s)) })
}

// Parser parses and formats itself. If UnmarshalText fails, it must change nothing.
type Parser interface {
	encoding.TextUnmarshaler
	fmt.Stringer
}
