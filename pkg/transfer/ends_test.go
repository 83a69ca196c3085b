package transfer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport/tcp"
)

// TestSlowConnectionsAreNotCut joins a connection that has ended early with one that still brings data.
// It is cut only when it has brought nothing for explainTimeout.
func TestSlowConnectionsAreNotCut(t *testing.T) {
	t.Parallel()
	aborted := &PeerError{Text: "the disk fell off"}
	for name, end := range map[string]error{"all data arrives": aborted, "no data arrives": tcp.ErrConnectionLost} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const slow = 10 * explainTimeout
				ends := make(chan connEnd, 2)
				ends <- connEnd{err: aborted}
				began := time.Now()
				received := func() int64 { return int64(min(time.Since(began), slow)) }
				if end == aborted {
					time.AfterFunc(slow, func() { ends <- connEnd{err: end} })
				}
				wasCut := false
				_, early, err := joinEnds(t.Context(), 2, ends, received, func(error) {
					wasCut = true
					ends <- connEnd{err: end}
				})
				require.NoError(t, err)
				require.Equal(t, aborted, early)
				require.Equal(t, end != aborted, wasCut)
				require.LessOrEqual(t, time.Since(began), slow+2*explainTimeout)
			})
		})
	}
}
