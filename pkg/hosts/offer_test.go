package hosts

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transport/tcp"
)

// Whoever asks for listeners does not get all ports of the host, and those that
// nobody came to are forgotten.
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
	require.ErrorContains(t, err, "listeners wait")
	for id := range l.offers { // as one that nobody came to
		require.NoError(t, l.offers[id].Close())
		break
	}
	_, err = l.Offer(t.Context(), offer)
	require.NoError(t, err)
	require.Len(t, l.offers, maxOffers)
}
