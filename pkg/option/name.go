package option

import "strings"

// A text that is for a person names an option as {{ID}}, or with a value as
// {{ID VALUE}}: the reader may have written a flag or the key of a file. Who shows
// the text writes the one or the other.
const opening, closing = "{{", "}}"

// Expand has every option that a text names written.
func Expand(text string, write func(id, value string) string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, opening)
		named, after, closed := strings.Cut(rest, closing)
		if !found || !closed {
			b.WriteString(text)
			return b.String()
		}
		id, value, _ := strings.Cut(named, " ")
		b.WriteString(before + write(id, value))
		text = after
	}
}

// Flags writes the options of a text as on a command line.
func Flags(text string) string {
	return Expand(text, func(id, value string) string {
		return strings.TrimSpace("--" + id + " " + value)
	})
}

// Name names an option in a text.
func Name(id, value string) string {
	return opening + strings.TrimSpace(id+" "+value) + closing
}
