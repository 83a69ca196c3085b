package transfer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

// handshakeBytes is longer than a dialer's handshake, but shorter than any stream in these
// tests.
const handshakeBytes = 4 << 10

func TestTamperingProxy(t *testing.T) {
	t.Parallel()
	const size = 2 << 20
	stream := transfertest.Random(size)
	kinds := map[string]func(before, after []byte) ([]byte, bool){
		"flip": func(before, after []byte) ([]byte, bool) {
			after[0] ^= 1 << rand.IntN(8)
			return append(before, after...), false
		},
		"duplicate": func(before, after []byte) ([]byte, bool) {
			n := min(len(after), 1+rand.IntN(2000))
			return append(append(append([]byte{}, before...), after[:n]...), after...), false
		},
		"drop": func(before, after []byte) ([]byte, bool) {
			return append(before, after[min(len(after), 1+rand.IntN(2000)):]...), false
		},
		"truncate": func(before, _ []byte) ([]byte, bool) { return before, true },
	}
	for _, mode := range []tcp.Mode{tcp.Signed, tcp.TLS} {
		for name, kind := range kinds {
			for _, streams := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/%s/%d", mode, name, streams), func(t *testing.T) {
					t.Parallel()
					for round := range testenv.Rounds(3, 12, 24) {
						// Each connection should carry a fifth of the stream at least. The last
						// rounds hit the end of a single one.
						where := handshakeBytes + rand.Int64N(size/int64(streams)/5)
						if streams == 1 && round%3 == 2 {
							where = size - 1000 + rand.Int64N(1100)
						}
						var hit atomic.Bool
						via := transfertest.Proxied(t, func(connection int) transfertest.Tamper {
							if connection > 0 {
								return transfertest.Honest
							}
							return transfertest.At(where, func(before, after []byte) ([]byte, bool) {
								hit.Store(true)
								return kind(before, after)
							})
						})
						a, b := transfertest.Links(t, mode, streams, via)
						src, sink := transfertest.NewSource(stream), newSink()
						src.Chunk = 7000
						o := move(t, a, b, src, sink, transfer.Options{Block: 16 << 10, Stall: testenv.Timeout()})
						if !hit.Load() {
							require.NoError(t, o.sendErr) // that connection carried too little
							continue
						}
						require.Error(t, o.sendErr, "round %d, at %d", round, where)
						require.Error(t, o.receiveErr)
						if name == "truncate" {
							require.ErrorIs(t, o.receiveErr, tcp.ErrConnectionLost)
						} else if !errors.Is(o.receiveErr, tcp.ErrConnectionLost) { // an enlarged length cuts the connection
							require.ErrorIs(t, o.receiveErr, tcp.ErrTampered)
						}
						requireNoEffect(t, sink, stream)
						got, _ := sink.Stored()
						require.Equal(t, string(stream[:len(got)]), string(got), "a forged byte was passed on")
						for _, err := range []error{o.sendErr, o.receiveErr} { // neither end waited for a timeout
							require.NotErrorIs(t, err, transfer.ErrStall)
							require.NotContains(t, err.Error(), "no data")
						}
					}
				})
			}
		}
	}
}

// TestStalledConnectionAmongOthers expects that one stalled connection of several neither stops the
// others permanently nor lets the receiver exceed its ring.
func TestStalledConnectionAmongOthers(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			var once sync.Once
			via := transfertest.Proxied(t, func(connection int) transfertest.Tamper {
				return func(at int64, p []byte) ([]byte, bool) {
					if connection == 1 && at > handshakeBytes {
						once.Do(func() { time.Sleep(700 * time.Millisecond) })
					}
					return p, false
				}
			})
			a, b := transfertest.Links(t, mode, 4, via)
			stream := transfertest.Random(24 << 20)
			sink := newSink()
			o := move(t, a, b, transfertest.NewSource(stream), sink, transfer.Options{Block: 64 << 10, Buffer: 512 << 10})
			require.NoError(t, o.sendErr)
			require.NoError(t, o.receiveErr)
			got, committed := sink.Stored()
			require.True(t, committed)
			require.Equal(t, stream, got)
		})
	}
}

func TestInterruptedNetwork(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		for _, streams := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", mode, streams), func(t *testing.T) {
				t.Parallel()
				stream, sink := transfertest.Random(8<<20), newSink()
				via := transfertest.Proxied(t, func(int) transfertest.Tamper {
					return transfertest.At(1<<20, func(before, _ []byte) ([]byte, bool) {
						// The first frame may be late on another connection.
						waitStored(sink)
						return before, true
					})
				})
				a, b := transfertest.Links(t, mode, streams, via)
				o := move(t, a, b, transfertest.NewSource(stream), sink, transfer.Options{Block: 64 << 10})
				require.ErrorIs(t, o.receiveErr, tcp.ErrConnectionLost)
				require.Error(t, o.sendErr)
				requireNoEffect(t, sink, stream)
				got, _ := sink.Stored()
				require.NotEmpty(t, got, "data received before the interruption is kept for a resume")
				require.Equal(t, stream[:len(got)], got)
			})
		}
	}
}
