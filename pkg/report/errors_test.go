package report

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

// emptyJoin is an error that could join others but joins none, like errors from another host.
type emptyJoin struct{}

func (emptyJoin) Error() string   { return "beta: no" }
func (emptyJoin) Unwrap() []error { return nil }

func TestErrorWithEmptyJoin(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	Error(&b, &fault.Error{Class: fault.Refused, Hint: "ask", Err: emptyJoin{}})
	require.Equal(t, "zxfer: beta: no\nhint: ask\n", b.String())
}

// TestNestedJoinedErrors expects that each joined error keeps its hints, even if other errors wrap it.
func TestNestedJoinedErrors(t *testing.T) {
	t.Parallel()
	run := &fault.Error{Class: fault.Failed, Err: errors.Join(fault.Failf("ask a", "no a"), fault.Failf("ask b", "no b"))}
	var b bytes.Buffer
	Error(&b, errors.Join(run))
	require.Equal(t, "zxfer: no a\nhint: ask a\nzxfer: no b\nhint: ask b\n", b.String())
}
