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
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/transport/tcp"
)

// liarHost is a host that says what it likes of its devices, beside this one.
type liarHost struct {
	hosts.FullHost
	t      *testing.T
	facts  hosts.Facts
	device device.Facts
}

func (h *liarHost) Open(_ context.Context, l hosts.Address) (hosts.Host, error) {
	if l.Host == "" {
		return hosts.NewLocal("test", func(string) {}), nil
	}
	return h, nil
}

func (h *liarHost) Relay(context.Context, hosts.Address, string, func(error)) (string, error) {
	return "", nil
}
func (h *liarHost) Close() error { return nil }

func (h *liarHost) HostFacts(context.Context) (hosts.Facts, error) { return h.facts, nil }

func (h *liarHost) Capture(context.Context, bool) ([]byte, error) { return nil, errors.New("no") }

func (h *liarHost) InspectDevice(_ context.Context, path string) (device.Facts, error) {
	h.device.Path, h.device.Real = path, path
	return h.device, nil
}

func (h *liarHost) Offer(_ context.Context, o tcp.Offer) (tcp.Ticket, error) {
	return tcp.Ticket{}, errors.New("it was believed")
}

type quiet struct{ mute }

func (quiet) DevicePlanned(*DevReport)       {}
func (quiet) Progress(int, connect.Progress) {}

// A size that another host made up was a panic, after an empty target file was
// made.
func TestASizeThatThereCannotBeIsRefusedBeforeATargetIsMade(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, size := range []int64{-1, math.MinInt64, math.MaxInt64, 1 << 62, 1 << 52} {
		image := filepath.Join(t.TempDir(), "image")
		h := &liarHost{t: t, facts: hosts.Facts{SSHLocal: "127.0.0.1"}, device: device.Facts{Kind: device.KindFile, Size: size}}
		req := Dev{Source: endpoint.Endpoint{Host: "beta", Name: "/srv/disk"}, Target: endpoint.Endpoint{Name: image}, Request: device.Request{Sparse: true}}
		req.Options.Block = tcp.MaxRaw
		_, err := RunDev(t.Context(), req, hosts.New(h), quiet{})
		require.Error(t, err, size)
		require.ErrorContains(t, err, "beta", size)
		require.Equal(t, fault.Refused, fault.ClassOf(err), size)
		require.NoFileExists(t, image)

		// Nor does the end that writes rely on the plan.
		local := hosts.NewLocal("test", func(string) {})
		task := device.Task{Source: h.device, Target: device.Facts{Path: image, Real: image, Kind: device.KindMissing}, Write: true, Request: req.Request}
		_, err = local.DeviceState(t.Context(), task)
		require.Error(t, err, size)
		_, err = local.Transfer(t.Context(), hosts.Task{From: hosts.Accept{}, To: hosts.WriteDevice{Task: task}}, nil)
		require.Error(t, err, size)
		_, err = local.DigestDevice(t.Context(), device.DigestQuery{Device: h.device, Options: req.Options}, nil)
		require.Error(t, err, size)
		require.NoFileExists(t, image)
		require.NoError(t, local.Close())
	}
}

// Both ends call a copy done, and say that it was something else.
func TestACopyOfWhichBothEndsTellAnotherDigestIsNoSuccess(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	d := &deviceJob{req: Dev{Source: endpoint.Endpoint{Name: "/a"}, Target: endpoint.Endpoint{Host: "beta", Name: "/b"}}, report: &DevReport{Digest: device.XXH3}}
	require.Error(t, d.agree(&DevResult{Account: device.Account{SourceDigest: a, TargetDigest: b}}))
	require.NoError(t, d.agree(&DevResult{Account: device.Account{SourceDigest: a, TargetDigest: a}}))
	require.NoError(t, d.agree(&DevResult{Account: device.Account{SourceDigest: a}}))
}
