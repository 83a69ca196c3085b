package hosts

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// running is a Source that is still running, so its cause is not known yet.
type running struct{ transfer.Source }

func (running) Cause(error) error { panic("asked before its end") }

func TestCauseOfWithoutFailure(t *testing.T) {
	t.Parallel()
	require.NoError(t, CauseOf(running{}, nil))
	cut := errors.New("cut")
	require.Equal(t, cut, CauseOf(struct{ transfer.Source }{}, cut))
}

// TestOffersAreBounded expects that the number of listeners is limited. Unused ones are removed
// after their deadline.
func TestOffersAreBounded(t *testing.T) {
	t.Parallel()
	l := NewLocal("test", func(string) {})
	defer l.Close()
	offer := tcp.Offer{Mode: tcp.Plain, Address: "127.0.0.1", Deadline: time.Hour}
	for range maxOffers {
		_, err := l.Offer(t.Context(), offer)
		require.NoError(t, err)
	}
	_, err := l.Offer(t.Context(), offer)
	require.ErrorContains(t, err, "listeners already wait")
	for id := range l.offers { // simulates the deadline
		require.NoError(t, l.offers[id].Close())
		break
	}
	_, err = l.Offer(t.Context(), offer)
	require.NoError(t, err)
	require.Len(t, l.offers, maxOffers)
}
