package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

const (
	// firstStall is the first stall limit that a test tries, see testenv.Widen.
	firstStall  = 400 * time.Millisecond
	stallBlocks = 300
)

// readDelay delays each read of a device, so that reading all of it takes longer than
// stall.
func readDelay(stall time.Duration) func(int64) bool {
	return func(int64) bool { time.Sleep(stall * 3 / 2 / stallBlocks); return false }
}

func withStall(stall time.Duration) func(*Options) { return func(o *Options) { o.Stall = stall } }

// TestResumeWithNothingToSendDoesNotStall reads a source whose blocks the target already holds,
// except the last ones, and expects no stall.
func TestResumeWithNothingToSendDoesNotStall(t *testing.T) {
	t.Parallel()
	data := transfertest.Random(stallBlocks * deviceBlock)
	testenv.Widen(t, firstStall, func(stall time.Duration) error {
		dst, j := newMemoryDevice(make([]byte, len(data))), &memoryJournal{}
		dst.FailWrite = func(off int64) bool { return off == 0 } // written last
		require.ErrorIs(t, local(newMemoryDevice(data), dst, j, deviceOptions()).sendErr, errDisk)
		require.GreaterOrEqual(t, j.Len(), stallBlocks-3)

		dst.FailWrite, dst.Closed = nil, false
		src := newMemoryDevice(data)
		src.FailRead = readDelay(stall)
		o := copyOverLink(t, tcp.Signed, 1, nil, src, dst, j, deviceOptions(withStall(stall)))
		if err := errors.Join(o.receiveErr, o.sendErr); err != nil {
			return err
		}
		require.True(t, bytes.Equal(data, dst.Bytes()))
		require.NotZero(t, o.received.Device.Resumed)
		return nil
	})
}

// TestDeltaOfEqualDevicesDoesNotStall hashes a slow target, and expects no stall.
func TestDeltaOfEqualDevicesDoesNotStall(t *testing.T) {
	t.Parallel()
	data := transfertest.Random(stallBlocks * deviceBlock)
	testenv.Widen(t, firstStall, func(stall time.Duration) error {
		src, dst := newMemoryDevice(data), newMemoryDevice(data)
		dst.FailRead = readDelay(stall)
		o := copyOverLink(t, tcp.Signed, 1, nil, src, dst, nil, deviceOptions(withStall(stall), func(o *Options) { o.Delta = true }))
		require.Zero(t, dst.Written)
		return errors.Join(o.receiveErr, o.sendErr)
	})
}

// TestHungDeviceIsReported uses a device that hangs permanently, together with its host. It
// expects the other host to report an error that names the device.
func TestHungDeviceIsReported(t *testing.T) {
	t.Parallel()
	data := transfertest.Random(stallBlocks * deviceBlock)
	for name, c := range map[string]struct {
		hang  func(src, dst *memoryDevice, f func(int64) bool)
		delta bool
		says  string
	}{
		"source":  {hang: func(src, _ *memoryDevice, f func(int64) bool) { src.FailRead = f }, says: "source sent no data"},
		"target":  {hang: func(_, dst *memoryDevice, f func(int64) bool) { dst.FailWrite = f }, says: "target transferred no data"},
		"hashing": {hang: func(_, dst *memoryDevice, f func(int64) bool) { dst.FailRead = f }, delta: true, says: "target transferred no data"},
	} {
		prepare := func() (src, dst *memoryDevice, reached chan struct{}, free func()) {
			src, dst = newMemoryDevice(data), newMemoryDevice(make([]byte, len(data)))
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
		opt := func(stall time.Duration) Options {
			return deviceOptions(withStall(stall), func(o *Options) { o.Delta = c.delta })
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Widen(t, firstStall, func(stall time.Duration) error {
				src, dst, reached, free := prepare()
				defer free()
				sender, receiver := transfertest.Links(t, tcp.Signed, 2, nil)
				sent, received := make(chan error, 1), make(chan error, 1)
				go func() {
					_, err := send(context.Background(), src, sender, opt(stall), nil)
					sent <- err
				}()
				go func() {
					_, err := receive(context.Background(), receiver, dst, nil, int64(len(data)), opt(stall), nil)
					received <- err
				}()
				own, other := received, sent
				if name == "source" {
					own, other = sent, received
				}
				var reported error
				select {
				case reported = <-other:
				case <-time.After(testenv.Timeout()):
					require.Fail(t, "the other end heard nothing")
				}
				select {
				case <-reached:
				default: // it stalled before
					return reported
				}
				free()
				err := <-own
				if !errors.Is(err, transfer.ErrStall) || errors.Is(err, tcp.ErrConnectionLost) || !strings.Contains(err.Error(), c.says) {
					return err
				}
				if !errors.As(reported, new(*transfer.PeerError)) || !strings.Contains(reported.Error(), c.says) {
					return reported
				}
				return nil
			})
		})
		t.Run(name+", local", func(t *testing.T) {
			t.Parallel()
			testenv.Widen(t, firstStall, func(stall time.Duration) error {
				src, dst, _, free := prepare()
				defer time.AfterFunc(3*stall, free).Stop()
				_, err := copyLocal(t.Context(), src, dst, nil, opt(stall), nil)
				if err == nil || !errors.Is(err, transfer.ErrStall) || !strings.Contains(err.Error(), c.says) {
					return fmt.Errorf("%w instead of a stall", err)
				}
				return nil
			})
		})
	}
}
