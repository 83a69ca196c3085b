package report

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
)

// Error prints err as "zxfer: message", with each hint on its own line. It prints joined errors
// separately, each with its hints, and each hint once.
func Error(w io.Writer, err error) {
	var b strings.Builder
	hinted := map[string]bool{}
	for _, e := range parts(err) {
		message := strings.ReplaceAll(strings.TrimSpace(clean(option.Flags(e.Error()))), "\n", "\n  ")
		fmt.Fprintf(&b, "zxfer: %s\n", message)
		hints(&b, fault.HintOf(e), hinted)
	}
	// The joined error may have a hint that its parts lack.
	hints(&b, fault.HintOf(err), hinted)
	_ = writeString(w, b.String()) // the exit code reports the error too
}

func hints(b *strings.Builder, text string, seen map[string]bool) {
	for _, h := range lines(text) {
		if !seen[h] {
			seen[h] = true
			fmt.Fprintf(b, "hint: %s\n", h)
		}
	}
}

// parts splits joined errors, also inside an error that adds a class and hint but no text. An
// error that adds text is not split.
func parts(err error) []error {
	inner := err
	for {
		if many, ok := inner.(interface{ Unwrap() []error }); ok {
			joined := many.Unwrap()
			// An error of another host, of unknown kind, may join none.
			if len(joined) == 0 || inner.Error() != errors.Join(joined...).Error() {
				return []error{err}
			}
			if len(joined) == 1 {
				if within := parts(joined[0]); len(within) > 1 {
					return within
				}
				return []error{err} // keep what was added around a single error
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
