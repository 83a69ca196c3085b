package job

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
)

// liarHost is a host that says what it likes of its devices, beside this one.
type liarHost struct {
	site.Site
	t       *testing.T
	facts   site.Facts
	device  device.Facts
	results []transfer.Result // of halves, the sender's first
}

func (h *liarHost) Open(_ context.Context, host string) (site.Site, error) {
	if host == "" {
		return site.NewLocal("test", func(string) {}), nil
	}
	return h, nil
}

func (h *liarHost) Relay(context.Context, string, string) (string, error) { return "", nil }
func (h *liarHost) Close() error                                          { return nil }

func (h *liarHost) HostFacts(context.Context) (site.Facts, error) { return h.facts, nil }

func (h *liarHost) Capture(context.Context, bool) ([]byte, error) { return nil, errors.New("no") }

func (h *liarHost) InspectDevice(_ context.Context, path string) (device.Facts, error) {
	h.device.Path, h.device.Real = path, path
	return h.device, nil
}

func (h *liarHost) Offer(_ context.Context, o wire.Offer) (wire.Ticket, error) {
	return wire.Ticket{}, errors.New("it was believed")
}

func (h *liarHost) Transfer(_ context.Context, t site.Task, _ func(transfer.Progress)) (transfer.Result, error) {
	if t.Send != nil || t.Device != nil && t.Device.Read {
		return h.results[0], nil
	}
	return h.results[1], nil
}

type quiet struct{ mute }

func (quiet) DevicePlanned(*DevReport)   {}
func (quiet) Progress(int, StepProgress) {}

// A size that another host made up was a panic, after an empty target file was
// made.
func TestASizeThatThereCannotBeIsRefusedBeforeATargetIsMade(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, size := range []int64{-1, math.MinInt64, math.MaxInt64, 1 << 62, 1 << 52} {
		image := filepath.Join(t.TempDir(), "image")
		h := &liarHost{t: t, facts: site.Facts{SSHLocal: "127.0.0.1"}, device: device.Facts{Kind: device.KindFile, Size: size}}
		req := Dev{Source: endpoint.Endpoint{Host: "beta", Name: "/srv/disk"}, Target: endpoint.Endpoint{Name: image}, Sparse: true}
		req.Options.Block = wire.MaxRaw
		_, err := RunDev(t.Context(), req, h, quiet{})
		require.Error(t, err, size)
		require.ErrorContains(t, err, "beta", size)
		require.Equal(t, fault.Refused, fault.ClassOf(err), size)
		require.NoFileExists(t, image)

		// Nor does the end that writes rely on the plan.
		local := site.NewLocal("test", func(string) {})
		task := site.DeviceTask{Source: h.device, Target: device.Facts{Path: image, Real: image, Kind: device.KindMissing}, Write: true, Options: req.Options}
		_, err = local.DeviceState(t.Context(), task)
		require.Error(t, err, size)
		_, err = local.Transfer(t.Context(), site.Task{Device: &task}, nil)
		require.Error(t, err, size)
		_, err = local.DigestDevice(t.Context(), site.DigestQuery{Device: h.device, Options: req.Options}, nil)
		require.Error(t, err, size)
		require.NoFileExists(t, image)
		require.NoError(t, local.Close())
	}
}

// A host that says it was reached at loopback would have this one connect to
// itself, and another host to itself.
func TestAnAddressThatLeadsToNoOtherHostIsRefused(t *testing.T) {
	t.Parallel()
	near, far := &end{role: "source"}, &end{role: "target", host: "beta"}
	for _, address := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"} {
		there := site.Facts{SSHLocal: address, SSHPeer: address, Boot: "2"}
		_, err := chooseLink(way.Way{}, near, far, site.Facts{Boot: "1"}, there, 0)
		require.Equal(t, fault.Refused, fault.ClassOf(err), address)
		require.ErrorContains(t, err, "beta", address)
		_, err = chooseLink(way.Way{DataAddress: address}, near, far, site.Facts{Boot: "1"}, there, 0)
		require.NoError(t, err, "asked for: a tunnel")
		there.Boot = "1"
		_, err = chooseLink(way.Way{}, near, far, site.Facts{Boot: "1"}, there, 0)
		require.NoError(t, err, "another container of this machine")
	}
}

// Both ends call it done, and say that it was something else.
func TestAStreamOfWhichBothEndsTellAnotherDigestIsNoSuccess(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	for _, c := range []struct {
		sent, received string
		same           bool
	}{{a, a, true}, {a, "", true}, {"", b, true}, {a, b, false}} {
		h := &liarHost{results: []transfer.Result{{Digest: c.sent}, {Digest: c.received}}}
		source, target := &end{role: "source", host: "alpha", open: h}, &end{role: "target", host: "beta", open: h}
		send, receive := site.Task{Device: &site.DeviceTask{Read: true}}, site.Task{}
		_, _, err := halves(t.Context(), source, target, send, receive, nil, nil)
		if c.same {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, transfer.ErrMiscounted)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
	}
	d := &copier{req: Dev{Source: endpoint.Endpoint{Name: "/a"}, Target: endpoint.Endpoint{Host: "beta", Name: "/b"}}}
	require.Error(t, d.agree(&DevResult{DeviceResult: transfer.DeviceResult{SourceDigest: a, TargetDigest: b}}))
	require.NoError(t, d.agree(&DevResult{DeviceResult: transfer.DeviceResult{SourceDigest: a, TargetDigest: a}}))
	require.NoError(t, d.agree(&DevResult{DeviceResult: transfer.DeviceResult{SourceDigest: a}}))
}
