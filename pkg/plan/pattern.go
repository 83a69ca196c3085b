package plan

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Expression begins a pattern that is a regular expression.
const Expression = "re:"

// A Pattern is a shell pattern (path.Match), which stands for a whole name, or
// behind "re:" a regular expression (package regexp), which is found anywhere in
// one that has no "^" or "$".
type Pattern struct {
	text string
	re   *regexp.Regexp // nil for a shell pattern
}

// ParsePattern reads a pattern.
func ParsePattern(s string) (Pattern, error) {
	if re, ok := strings.CutPrefix(s, Expression); ok {
		r, err := regexp.Compile(re)
		if err == nil && re == "" {
			err = errors.New("it is empty")
		}
		if err != nil {
			return Pattern{}, fmt.Errorf("%q is no regular expression: %w", s, err)
		}
		return Pattern{s, r}, nil
	}
	if _, err := path.Match(s, ""); err != nil || s == "" {
		return Pattern{}, fmt.Errorf("%q is not a pattern; it may hold *, ? and [a-z], or begin with re: as a regular expression", s)
	}
	return Pattern{s, nil}, nil
}

// Expression tells whether it is a regular expression.
func (p Pattern) Expression() bool { return p.re != nil }

// Match tells whether it stands for a name.
func (p Pattern) Match(name string) bool {
	if p.re != nil {
		return p.re.MatchString(name)
	}
	ok, err := path.Match(p.text, name)
	return ok && err == nil
}

// Patterns are any of several patterns.
type Patterns []Pattern

// ParsePatterns reads patterns. What is malformed whoever was given it refuses; here
// it stands for nothing.
func ParsePatterns(all []string) Patterns {
	var out Patterns
	for _, s := range all {
		if p, err := ParsePattern(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Match tells whether any of them stands for a name.
func (p Patterns) Match(name string) bool {
	return slices.ContainsFunc(p, func(one Pattern) bool { return one.Match(name) })
}

// Strings are the patterns as they were written.
func (p Patterns) Strings() []string {
	var out []string
	for _, one := range p {
		out = append(out, one.text)
	}
	return out
}

// Matches tells whether a name matches one of the patterns.
func Matches(patterns []string, name string) bool { return ParsePatterns(patterns).Match(name) }
