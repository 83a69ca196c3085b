package hoststest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// preface is longer than the data that a dialer sends before its first frame.
const preface = 4 << 10

// tampering is the change that a network attacker makes to the stream from one byte on.
func tampering() map[string]func(before, after []byte) ([]byte, bool) {
	return map[string]func(before, after []byte) ([]byte, bool){
		"one bit flipped": func(before, after []byte) ([]byte, bool) {
			after[0] ^= 1 << 3
			return append(before, after...), false
		},
		"tail dropped": func(before, _ []byte) ([]byte, bool) { return before, true },
	}
}

// testTampered expects that a change of the stream is detected before zfs receive has all of it.
// Then no snapshot is created, regardless of the position of the change.
func (s *suite) testTampered(t *testing.T, p testPool) {
	ds := p.Create("a")
	p.Write(ds, "file", 1<<20, 1)
	p.Snapshot(ds, "x")
	spec := zfs.SendSpec{Dataset: ds, To: "x", Flags: packed()}
	n := 0
	for _, mode := range []tcp.Mode{tcp.Signed, tcp.TLS} {
		for _, streams := range []int{1, 3} {
			// A run through an honest proxy shows the length of the first connection's part.
			var length atomic.Int64
			n++
			s.move(t, stream{send: spec, receive: zfs.ReceiveSpec{Target: p.Dataset(fmt.Sprint("clean", n))}, mode: mode, streams: streams,
				via: transfertest.Proxied(t, func(connection int) transfertest.Tamper {
					return func(at int64, b []byte) ([]byte, bool) {
						if connection == 0 {
							length.Store(at + int64(len(b)))
						}
						return b, false
					}
				})})
			for name, change := range tampering() {
				for where, at := range map[string]int64{
					"begin": preface, "middle": length.Load() / 2,
					// In the last 312 bytes of the stream, in its END record, or in the
					// authentication of the end.
					"end": length.Load() - 300,
				} {
					if streams > 1 && where != "begin" {
						continue // the amount of data on a connection differs
					}
					t.Run(fmt.Sprintf("%s/%d/%s/%s", mode, streams, name, where), func(t *testing.T) {
						// The first of several connections that gets so far.
						var hit atomic.Bool
						target := p.Dataset(fmt.Sprint("b", n))
						n++
						o := s.start(t.Context(), t, stream{send: spec, receive: zfs.ReceiveSpec{Target: target}, mode: mode, streams: streams,
							via: transfertest.Proxied(t, func(int) transfertest.Tamper {
								return transfertest.At(at, func(before, after []byte) ([]byte, bool) {
									if !hit.CompareAndSwap(false, true) {
										return append(before, after...), false
									}
									return change(before, after)
								})
							})})()
						require.True(t, hit.Load(), "the stream was not tampered with")
						require.Error(t, o.sendErr)
						require.Error(t, o.receiveErr)
						if name == "tail dropped" {
							require.ErrorIs(t, o.receiveErr, tcp.ErrConnectionLost)
						} else if !errors.Is(o.receiveErr, tcp.ErrConnectionLost) { // a changed length may end it first
							require.ErrorIs(t, o.receiveErr, tcp.ErrTampered)
						}
						require.False(t, exists(t, p, target+"@x"), "a forged stream created a snapshot")
						requireEnded(t, p)
					})
				}
			}
		}
	}
}
