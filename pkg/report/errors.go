package report

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
)

// Error prints err for a person, "zxfer: message" and its hints on lines of
// their own. An error that joins several is printed as several, each with
// its own hints; a hint is printed once.
func Error(w io.Writer, err error) {
	var b strings.Builder
	hinted := map[string]bool{}
	for _, e := range parts(err) {
		message := strings.ReplaceAll(strings.TrimSpace(clean(option.Flags(e.Error()))), "\n", "\n  ")
		fmt.Fprintf(&b, "zxfer: %s\n", message)
		hints(&b, fault.HintOf(e), hinted)
	}
	// A hint of the whole, where the parts have none of that text.
	hints(&b, fault.HintOf(err), hinted)
	_ = writeString(w, b.String()) // the exit code tells it too
}

func hints(b *strings.Builder, text string, seen map[string]bool) {
	for _, h := range lines(text) {
		if !seen[h] {
			seen[h] = true
			fmt.Fprintf(b, "hint: %s\n", h)
		}
	}
}

// parts takes errors.Join apart, also inside an error that adds a class and
// hint but no text. Wrapping that adds text keeps its errors together.
func parts(err error) []error {
	inner := err
	for {
		if many, ok := inner.(interface{ Unwrap() []error }); ok {
			joined := many.Unwrap()
			// None, of an error of another host that is of no known kind.
			if len(joined) == 0 || inner.Error() != errors.Join(joined...).Error() {
				return []error{err}
			}
			if len(joined) == 1 {
				if within := parts(joined[0]); len(within) > 1 {
					return within
				}
				return []error{err} // a lone error keeps what was added around it
			}
			var out []error
			for _, e := range joined {
				out = append(out, parts(e)...)
			}
			return out
		}
		next := errors.Unwrap(inner)
		if next == nil || next.Error() != inner.Error() {
			return []error{err}
		}
		inner = next
	}
}
