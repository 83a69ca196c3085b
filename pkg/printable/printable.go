// Package printable makes text from another host or program safe to show.
//
//   - Text: printable characters, line breaks and tabs.
//   - Line: text without line breaks and tabs.
//
// It does not write to a terminal.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text replaces every unprintable character of s with "?", because a terminal could
// execute it as a command. It keeps line breaks and tabs.
func Text(s string) string { return strings.Map(visible, s) }

// IsText reports whether Text would return s unchanged.
func IsText(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return visible(r) != r }) < 0
}

// Line returns Text on a single line. Each run of spaces, tabs and line breaks
// becomes one space.
func Line(s string) string { return strings.Join(strings.Fields(Text(s)), " ") }

// IsLine reports whether s is one printable line of valid UTF-8. It accepts the
// spaces of other scripts. It rejects U+FFFD, which decoders write for invalid
// bytes.
func IsLine(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) }) < 0
}

func visible(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' {
		return r
	}
	return '?'
}
