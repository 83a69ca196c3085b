// Package option defines the options of the command line and of job files.
//
//   - Value: a typed, bounded variable that an option sets.
//   - Name: a placeholder for an option in a text, {{ID}} or {{ID VALUE}}. It is
//     shown as a flag or a key.
//
// It does not parse command lines or files.
package option

import (
	"regexp"
	"strings"
	"sync"
)

// Texts for people name an option as {{ID}} or {{ID VALUE}}, because the reader may
// use flags or a job file. The program that shows a text expands the names
// accordingly.
const opening, closing = "{{", "}}"

// noValue is the value of an option that is given without one: --snapshot=.
const noValue = "="

// ids lists the options that a text may name. Declare adds more. Other names in braces are
// left unchanged.
var ids = "bookmark|bs|carry|confirm|decrypt|delta|digest|dry-run|exclude|exclude-snaps|first|include-snaps|key-file|lvm-snapshot|" +
	"map|mount|no-resume|no-verify|overwrite|props|recursive|rollback|rotate|set|skip-check|skip-errors|snapshot|sparse|verify|verify-only"

// Declare lets texts name another option. Only init functions call it.
func Declare(id string) { ids += "|" + id }

// namePattern matches the name of an option. It must start a word of prose, or of prose
// in JSON.
var namePattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(^|\\n|[\s("])\{\{(` + ids + `)( [^{}"\n]*)?\}\}`)
})

// Expand replaces the names of options in a text with the results of write.
func Expand(text string, write func(id, value string) string) string {
	if !strings.Contains(text, opening) {
		return text
	}
	return namePattern().ReplaceAllStringFunc(text, func(found string) string {
		prefix, name, _ := strings.Cut(found, opening)
		id, value, _ := strings.Cut(strings.TrimSuffix(name, closing), " ")
		return prefix + write(id, value)
	})
}

// AllDeclared reports whether Expand would replace every name in a text.
func AllDeclared(text string) bool {
	return !strings.Contains(Expand(text, func(string, string) string { return "" }), opening)
}

// Flags expands the names of options to flags.
func Flags(text string) string {
	return Expand(text, func(id, value string) string {
		if value == noValue {
			return "--" + id + noValue
		}
		return strings.TrimSpace("--" + id + " " + value)
	})
}

// Name returns the name of an option for use in a text.
func Name(id, value string) string {
	return opening + strings.TrimSpace(id+" "+value) + closing
}
