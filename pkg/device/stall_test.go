package device

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/wire"
)

const (
	stallLimit  = 3 * time.Second // a busy machine may move nothing for a second
	stallBlocks = 300
)

// slowly makes every read of a device take a while: all of it takes longer
// than the limit allows the receiver to wait.
func slowly(int64) bool { time.Sleep(stallLimit * 3 / 2 / stallBlocks); return false }

func stalling(o *Options) { o.Stall = stallLimit }

// Where the target holds all but the end of a device already, nothing crosses
// while the source is read.
func TestAResumedCopyWithNothingToSendIsNoStall(t *testing.T) {
	t.Parallel()
	data := transfertest.Random(stallBlocks * deviceBlock)
	dst, j := newMemory(make([]byte, len(data))), &memoryJournal{}
	dst.FailWrite = func(off int64) bool { return off == 0 } // which is written last
	require.ErrorIs(t, local(newMemory(data), dst, j, deviceOptions()).sendErr, errDisk)
	require.GreaterOrEqual(t, j.Len(), stallBlocks-3)

	dst.FailWrite, dst.Closed = nil, false
	src := newMemory(data)
	src.FailRead = slowly
	o := moveDevice(t, wire.Signed, 1, nil, src, dst, j, deviceOptions(stalling))
	require.NoError(t, o.receiveErr)
	require.NoError(t, o.sendErr)
	require.True(t, bytes.Equal(data, dst.Bytes()))
	require.NotZero(t, o.received.Device.Resumed)
}

// A target that is hashed, slowly, gets on.
func TestADeltaOfEqualDevicesIsNoStall(t *testing.T) {
	t.Parallel()
	data := transfertest.Random(stallBlocks * deviceBlock)
	src, dst := newMemory(data), newMemory(data)
	dst.FailRead = slowly
	o := moveDevice(t, wire.Signed, 1, nil, src, dst, nil, deviceOptions(stalling, func(o *Options) { o.Delta = true }))
	require.NoError(t, o.receiveErr)
	require.NoError(t, o.sendErr)
	require.Zero(t, dst.Written)
}

// A device that hangs for good also hangs what uses it: the other end must
// hear of it nevertheless, and it is the device that is named.
func TestADeviceThatHangsIsTold(t *testing.T) {
	t.Parallel()
	data := transfertest.Random(stallBlocks * deviceBlock)
	for name, c := range map[string]struct {
		hang  func(src, dst *memory, f func(int64) bool)
		delta bool
		says  string
	}{
		"source":  {hang: func(src, _ *memory, f func(int64) bool) { src.FailRead = f }, says: "source gave nothing"},
		"target":  {hang: func(_, dst *memory, f func(int64) bool) { dst.FailWrite = f }, says: "target neither took nor gave anything"},
		"hashing": {hang: func(_, dst *memory, f func(int64) bool) { dst.FailRead = f }, delta: true, says: "target neither took nor gave anything"},
	} {
		prepare := func() (src, dst *memory, reached chan struct{}, free func()) {
			src, dst = newMemory(data), newMemory(make([]byte, len(data)))
			src.Label, dst.Label = "source", "target"
			hung, reached := make(chan struct{}), make(chan struct{})
			tell := sync.OnceFunc(func() { close(reached) })
			c.hang(src, dst, func(off int64) bool {
				if off == 60*deviceBlock {
					tell()
					<-hung
				}
				return false
			})
			return src, dst, reached, sync.OnceFunc(func() { close(hung) })
		}
		opt := deviceOptions(stalling, func(o *Options) { o.Delta = c.delta })
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src, dst, reached, free := prepare()
			defer free()
			sender, receiver := transfertest.Links(t, wire.Signed, 2, nil)
			sent, received := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := send(context.Background(), src, sender, opt, nil)
				sent <- err
			}()
			go func() {
				_, err := receive(context.Background(), receiver, dst, nil, int64(len(data)), opt, nil)
				received <- err
			}()
			own, other := received, sent
			if name == "source" {
				own, other = sent, received
			}
			<-reached
			select {
			case err := <-other:
				require.ErrorAs(t, err, new(*transfer.PeerError))
				require.ErrorContains(t, err, c.says)
			case <-time.After(10 * stallLimit):
				require.Fail(t, "the other end heard nothing")
			}
			free()
			err := <-own
			require.ErrorIs(t, err, transfer.ErrStall)
			require.ErrorContains(t, err, c.says)
			require.NotErrorIs(t, err, wire.ErrCut)
		})
		t.Run(name+", local", func(t *testing.T) {
			t.Parallel()
			src, dst, reached, free := prepare()
			go func() {
				<-reached
				time.Sleep(2 * stallLimit)
				free()
			}()
			_, err := copyWithin(t.Context(), src, dst, nil, opt, nil)
			require.ErrorIs(t, err, transfer.ErrStall)
			require.ErrorContains(t, err, c.says)
		})
	}
}
