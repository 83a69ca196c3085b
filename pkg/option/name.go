package option

import (
	"regexp"
	"strings"
)

// A text that is for a person names an option as {{ID}}, or with a value as
// {{ID VALUE}}: the reader may have written a flag or the key of a file. Who shows
// the text writes the one or the other.
const opening, closing = "{{", "}}"

// Expand has every option that a text names written. Nothing else is changed, not
// in text of other hosts, and not in JSON, as no value has quotes.
func Expand(text string, write func(id, value string) string) string {
	if !strings.Contains(text, opening) {
		return text
	}
	named := regexp.MustCompile(`\{\{[a-z][a-z-]*( [^{}"\n]*)?\}\}`)
	return named.ReplaceAllStringFunc(text, func(name string) string {
		id, value, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(name, opening), closing), " ")
		return write(id, value)
	})
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
