package hosts

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
)

// running is a Source of something that has not ended: who asks it why waits for ever.
type running struct{ transfer.Source }

func (running) Cause(error) error { panic("asked before its end") }

func TestWhatDidNotFailHasNoCause(t *testing.T) {
	t.Parallel()
	require.NoError(t, CauseOf(running{}, nil))
	cut := errors.New("cut")
	require.Equal(t, cut, CauseOf(struct{ transfer.Source }{}, cut))
}
