package hosts

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
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

// TestRestrictedHostLimitsMemory expects that a restricted agent refuses a stream whose options and
// connections need more memory than one client may use, before it starts a process.
func TestRestrictedHostLimitsMemory(t *testing.T) {
	t.Parallel()
	l := NewLocal("test", func(string) {})
	defer l.Close()
	l.Restrict([]string{"--allow", "receive=tank"})
	for name, ends := range map[string]func(tcp.Ticket, transfer.Options) Task{
		"receives": func(o tcp.Ticket, options transfer.Options) Task {
			return Task{From: Accept{Session: o.Session}, To: ReceiveStream{Options: options}}
		},
		"sends": func(o tcp.Ticket, options transfer.Options) Task {
			return Task{From: SendStream{Options: options}, To: Accept{Session: o.Session}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ticket, err := l.Offer(t.Context(), tcp.Offer{Mode: tcp.Plain, Address: "127.0.0.1", Streams: tcp.MaxStreams, Deadline: time.Minute})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			peer := make(chan *tcp.Link, 1)
			go func() {
				link, err := tcp.DialOn(ctx, l.stack, ticket)
				if err == nil {
					defer link.Close()
				}
				peer <- link
				<-ctx.Done()
			}()
			_, err = l.Transfer(ctx, ends(ticket, transfer.Options{Block: tcp.MaxRaw}), nil)
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, "need more than 1024 MiB of memory")
			require.NotNil(t, <-peer)
		})
	}
}
