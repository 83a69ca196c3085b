// Package printable makes text that another host or program wrote safe to show.
// It does not write to a terminal.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text replaces every character of s that a terminal could take for a command with
// "?". Line breaks and tabs stay.
func Text(s string) string { return strings.Map(visible, s) }

// IsText reports whether Text would leave s as it is.
func IsText(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return visible(r) != r }) < 0
}

// Line is Text on a single line: any run of spaces, tabs and line breaks becomes one
// space.
func Line(s string) string { return strings.Join(strings.Fields(Text(s)), " ") }

// IsLine reports whether s is one printable line of valid UTF-8. Spaces of other
// scripts count as printable. U+FFFD does not: a decoder writes it for bytes that are
// not text.
func IsLine(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) }) < 0
}

func visible(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' {
		return r
	}
	return '?'
}
