package transfer_test

import (
	"bytes"
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

func stalling(o *transfer.DeviceOptions) { o.Stall = stallLimit }

// Where the target holds all but the end of a device already, nothing crosses
// while the source is read.
func TestAResumedCopyWithNothingToSendIsNoStall(t *testing.T) {
	t.Parallel()
	data := random(stallBlocks * deviceBlock)
	dst, j := transfertest.NewDevice(make([]byte, len(data))), &transfertest.Journal{}
	dst.FailWrite = func(off int64) bool { return off == 0 } // which is written last
	require.ErrorIs(t, local(transfertest.NewDevice(data), dst, j, deviceOptions()).sendErr, transfertest.ErrDisk)
	require.GreaterOrEqual(t, j.Len(), stallBlocks-3)

	dst.FailWrite, dst.Closed = nil, false
	src := transfertest.NewDevice(data)
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
	data := random(stallBlocks * deviceBlock)
	src, dst := transfertest.NewDevice(data), transfertest.NewDevice(data)
	dst.FailRead = slowly
	o := moveDevice(t, wire.Signed, 1, nil, src, dst, nil, deviceOptions(stalling, func(o *transfer.DeviceOptions) { o.Delta = true }))
	require.NoError(t, o.receiveErr)
	require.NoError(t, o.sendErr)
	require.Zero(t, dst.Written)
}

func TestADeviceThatHangsIsNamed(t *testing.T) {
	t.Parallel()
	data := random(stallBlocks * deviceBlock)
	for name, c := range map[string]struct {
		source, target bool
		says           string
	}{
		"source": {source: true, says: "source gave nothing"},
		"target": {target: true, says: "target neither took nor gave anything"},
	} {
		for _, local := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", local"}[local], func(t *testing.T) {
				t.Parallel()
				src, dst := transfertest.NewDevice(data), transfertest.NewDevice(make([]byte, len(data)))
				src.Label, dst.Label = "source", "target"
				hang := func(off int64) bool {
					if off == 60*deviceBlock {
						time.Sleep(2 * stallLimit)
					}
					return false
				}
				if c.source {
					src.FailRead = hang
				} else {
					dst.FailWrite = hang
				}
				opt := deviceOptions(stalling)
				if local {
					_, err := transfer.CopyDevice(t.Context(), src, dst, nil, opt, nil)
					require.ErrorIs(t, err, transfer.ErrStall)
					require.ErrorContains(t, err, c.says)
					return
				}
				o := moveDevice(t, wire.Signed, 1, nil, src, dst, nil, opt)
				own := o.sendErr
				if c.target {
					own = o.receiveErr
				}
				require.ErrorIs(t, own, transfer.ErrStall)
				require.ErrorContains(t, own, c.says)
				require.NotErrorIs(t, own, wire.ErrCut)
			})
		}
	}
}
