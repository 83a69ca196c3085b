package report

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

// childless is an error that could join others, and joins none, as are those
// that came from another host.
type childless struct{}

func (childless) Error() string   { return "beta: no" }
func (childless) Unwrap() []error { return nil }

func TestErrorThatJoinsNone(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	Error(&b, &fault.Error{Class: fault.Refused, Hint: "ask", Err: childless{}})
	require.Equal(t, "zxfer: beta: no\nhint: ask\n", b.String())
}
