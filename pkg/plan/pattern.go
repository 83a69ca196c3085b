package plan

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// RegexpPrefix starts a regular-expression pattern.
const RegexpPrefix = "re:"

// Pattern matches names. It is a shell pattern (path.Match) for the whole name or, after "re:",
// a regular expression (package regexp) that is not anchored.
type Pattern struct {
	text string
	re   *regexp.Regexp // nil for a shell pattern
}

func ParsePattern(s string) (Pattern, error) {
	if re, ok := strings.CutPrefix(s, RegexpPrefix); ok {
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

// IsRegexp reports whether the pattern is a regular expression.
func (p Pattern) IsRegexp() bool { return p.re != nil }

// Match reports whether the pattern matches a name.
func (p Pattern) Match(name string) bool {
	if p.re != nil {
		return p.re.MatchString(name)
	}
	ok, err := path.Match(p.text, name)
	return ok && err == nil
}

// Patterns match a name if any of them does.
type Patterns []Pattern

// ParsePatterns parses patterns and ignores malformed ones. Callers have refused those before.
func ParsePatterns(all []string) Patterns {
	var out Patterns
	for _, s := range all {
		if p, err := ParsePattern(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Match reports whether any pattern matches a name.
func (p Patterns) Match(name string) bool {
	return slices.ContainsFunc(p, func(one Pattern) bool { return one.Match(name) })
}

// Strings returns the patterns as written.
func (p Patterns) Strings() []string {
	var out []string
	for _, one := range p {
		out = append(out, one.text)
	}
	return out
}

// Matches reports whether any pattern matches a name.
func Matches(patterns []string, name string) bool { return ParsePatterns(patterns).Match(name) }
