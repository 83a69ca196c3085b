package option

import (
	"regexp"
	"strings"
	"sync"
)

// A text that is for a person names an option as {{ID}}, or with a value as
// {{ID VALUE}}: the reader may have written a flag or the key of a file. Who shows
// the text writes the one or the other.
const opening, closing = "{{", "}}"

// unnamed is the value of an option that is given, but with none: --snapshot=.
const unnamed = "="

// ids are the options that a text may name. What looks like one and is not, such
// as a name from elsewhere, stays as it is.
const ids = "bookmark|bs|buffer|bwlimit|carry|compress|compress-threads|confirm|congestion|data-address|decrypt|delta|dial|digest|dry-run|" +
	"exclude|exclude-snaps|first|include-snaps|key-file|lvm-snapshot|map|mount|no-bootstrap|no-resume|no-verify|overwrite|port-range|props|" +
	"recursive|rollback|rotate|rsh|set|skip-check|skip-errors|snapshot|sparse|streams|trusted-link|verify|verify-only|window|wire"

// named is how an option is named: it stands by itself, as in prose, also in JSON.
var named = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(^|\\n|[\s("])\{\{(` + ids + `)( [^{}"\n]*)?\}\}`)
})

// Expand has every option that a text names written. Nothing else is changed.
func Expand(text string, write func(id, value string) string) string {
	if !strings.Contains(text, opening) {
		return text
	}
	return named().ReplaceAllStringFunc(text, func(found string) string {
		before, name, _ := strings.Cut(found, opening)
		id, value, _ := strings.Cut(strings.TrimSuffix(name, closing), " ")
		return before + write(id, value)
	})
}

// Named tells whether Expand would write all that a text seems to name.
func Named(text string) bool {
	return !strings.Contains(Expand(text, func(string, string) string { return "" }), opening)
}

// Flags writes the options of a text as on a command line.
func Flags(text string) string {
	return Expand(text, func(id, value string) string {
		if value == unnamed {
			return "--" + id + unnamed
		}
		return strings.TrimSpace("--" + id + " " + value)
	})
}

// Name names an option in a text.
func Name(id, value string) string {
	return opening + strings.TrimSpace(id+" "+value) + closing
}
