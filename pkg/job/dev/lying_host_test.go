package dev

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
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/transport/tcp"
)

// lyingDeviceHost is a remote host that reports false device facts.
type lyingDeviceHost struct {
	hosts.Host
	t      *testing.T
	facts  hosts.Facts
	device device.Facts
}

func (h *lyingDeviceHost) Open(_ context.Context, l hosts.Address) (hosts.Host, error) {
	if l.Host == "" {
		return hosts.NewLocal("test", func(string) {}), nil
	}
	return h, nil
}

func (h *lyingDeviceHost) Close() error { return nil }

func (h *lyingDeviceHost) Run(ctx context.Context, r *hosts.Request) error {
	facts := func(context.Context, hosts.None) (hosts.Facts, error) { return h.facts, nil }
	return hoststest.Run(ctx, h.Host, r, hoststest.With(hosts.OpHostFacts, facts), hoststest.With(hosts.OpCapture, noCapture),
		hoststest.With(hosts.OpInspectDevice, h.InspectDevice), hoststest.With(hosts.OpOffer, h.Offer))
}

func (h *lyingDeviceHost) InspectDevice(_ context.Context, path string) (device.Facts, error) {
	h.device.Path, h.device.Real = path, path
	return h.device, nil
}

func (h *lyingDeviceHost) Offer(_ context.Context, o tcp.Offer) (tcp.Ticket, error) {
	return tcp.Ticket{}, errors.New("it was believed")
}

type quietDevice struct{ silentDevice }

func (quietDevice) DevicePlanned(*Report)          {}
func (quietDevice) Progress(int, connect.Progress) {}

// TestImpossibleSizeIsRefusedBeforeTargetCreation expects that an impossible size is refused
// before a target file is created. Such a size once caused a panic after an empty target file was
// created.
func TestImpossibleSizeIsRefusedBeforeTargetCreation(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	for _, size := range []int64{-1, math.MinInt64, math.MaxInt64, 1 << 62, 1 << 52} {
		image := filepath.Join(t.TempDir(), "image")
		h := &lyingDeviceHost{t: t, facts: hosts.Facts{SSHLocal: "127.0.0.1"}, device: device.Facts{Kind: device.KindFile, Size: size}}
		req := Request{Source: endpoint.Endpoint{Host: "beta", Name: "/srv/disk"}, Target: endpoint.Endpoint{Name: image}, Request: device.Request{Sparse: true}}
		req.Options.Block = tcp.MaxRaw
		_, err := Run(t.Context(), req, hosts.New(h), quietDevice{})
		require.Error(t, err, size)
		require.ErrorContains(t, err, "beta", size)
		require.Equal(t, fault.Refused, fault.ClassOf(err), size)
		require.NoFileExists(t, image)

		// The writing end does not rely on the plan either.
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

// TestDevFailsIfDigestsDiffer expects an error if both hosts report
// success, but different digests.
func TestDevFailsIfDigestsDiffer(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	d := &deviceJob{req: Request{Source: endpoint.Endpoint{Name: "/a"}, Target: endpoint.Endpoint{Host: "beta", Name: "/b"}}, report: &Report{Digest: device.XXH3}}
	require.Error(t, d.compareDigests(&Result{Account: device.Account{SourceDigest: a, TargetDigest: b}}))
	require.NoError(t, d.compareDigests(&Result{Account: device.Account{SourceDigest: a, TargetDigest: a}}))
	require.NoError(t, d.compareDigests(&Result{Account: device.Account{SourceDigest: a}}))
}
