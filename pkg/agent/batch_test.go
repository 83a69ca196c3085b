package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// writes is what each call of Write was given.
type writes chan string

func (w writes) Write(b []byte) (int, error) {
	w <- string(b)
	return len(b), nil
}

// What waits is written at once: through a remote shell each write is a packet.
func TestWritesWhatWaitsAtOnce(t *testing.T) {
	t.Parallel()
	c := newSession(t.Context(), nil, nil)
	for _, m := range []string{"progress", "result", "pong"} {
		c.queue <- []byte(m)
	}
	out := make(writes, 3)
	go c.write(out)
	require.Equal(t, "progressresultpong", <-out)
	close(c.gone)
}
