package fault

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClassAndHint(t *testing.T) {
	t.Parallel()
	refused := Refusef("load the key", "no key for %s", "tank/a")
	tests := []struct {
		name  string
		err   error
		class Class
		hint  string
	}{
		{"unclassified", errors.New("x"), Failed, ""},
		{"usage", Usagef("read the manual", "x"), Usage, "read the manual"},
		{"wrapped", fmt.Errorf("beta: %w", refused), Refused, "load the key"},
		{"joined", errors.Join(errors.New("x"), refused), Refused, "load the key"},
		{"the outermost class counts", Interrupt("run it again", fmt.Errorf("y: %w", refused)), Interrupted, "run it again"},
		{"an inner hint if the outer has none", Interrupt("", refused), Interrupted, "load the key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.class, ClassOf(tt.err))
			require.Equal(t, tt.hint, HintOf(tt.err))
		})
	}
	require.Empty(t, HintOf(nil))
}
