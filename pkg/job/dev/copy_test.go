package dev

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// renamingHost is a host on which a path names another device after every interruption.
type renamingHost struct {
	hosts.Host
	mu    sync.Mutex                // both ends are inspected concurrently
	looks map[string][]device.Facts // by path, in order
	held  int                       // number of tries refused after the interruption
	tries []device.Task
}

func (h *renamingHost) Open(context.Context, hosts.Address) (hosts.Host, error) { return h, nil }

func (h *renamingHost) Close() error { return nil }

func (h *renamingHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, h.Host, r, hoststest.With(hosts.OpInspectDevice, h.InspectDevice),
		hoststest.With(hosts.OpDeviceState, h.DeviceState), hoststest.Watched(hosts.OpTransfer, h.Transfer))
}

func (h *renamingHost) InspectDevice(_ context.Context, path string) (device.Facts, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.looks[path]
	if len(all) == 0 {
		return device.Facts{}, errors.New("looked at too often")
	}
	h.looks[path] = all[1:]
	f := all[0]
	f.Path, f.Real = path, path
	return f, nil
}

func (h *renamingHost) DeviceState(context.Context, device.Task) (device.State, error) {
	return device.State{}, nil
}

func (h *renamingHost) Transfer(_ context.Context, t hosts.Task, _ func(transfer.Progress)) (hosts.Result, error) {
	h.tries = append(h.tries, t.To.(hosts.WriteDevice).Task)
	if len(h.tries) == 1 {
		return hosts.Result{}, fmt.Errorf("%w: in the middle", tcp.ErrConnectionLost)
	}
	if len(h.tries) <= 1+h.held {
		return hosts.Result{}, fault.Refusef("wait until it ends", "another copy is running")
	}
	return hosts.Result{Device: &device.Account{}}, nil
}

// localEnds returns ends that both use the same host.
func localEnds(t *testing.T, h *renamingHost) *ends.Ends {
	e := ends.New(hosts.New(h), endpoint.Endpoint{}, endpoint.Endpoint{}, &transport.Settings{})
	require.NoError(t, e.Choose(transport.Settings{}, nil))
	return e
}

type silentDevice struct{ Reporter }

func (silentDevice) Log(string)                      {}
func (silentDevice) Activity(string) func()          { return func() {} }
func (silentDevice) DeviceStarted(*Report, uint64)   {}
func (silentDevice) DeviceFinished(*Report, *Result) {}

// TestDevRetriesTheSameDevices expects that a copy continues only with its original devices. A
// restarted host may have given their names to other devices.
func TestDevRetriesTheSameDevices(t *testing.T) {
	t.Parallel()
	disk := func(serial, boot string, size int64) device.Facts {
		return device.Facts{Kind: device.KindDisk, Serial: serial, Boot: boot, Size: size, DiskSeq: 4}
	}
	a, b := disk("A", "1", 1<<20), disk("B", "1", 2<<20)
	missing := device.Facts{Kind: device.KindMissing}
	for _, c := range []struct {
		name           string
		source, target device.Facts
		then           map[string][]device.Facts
		want           string // part of the error
	}{
		{"nothing changed", a, b, map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {b}}, ""},
		{"the target is another disk", a, b, map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {disk("C", "1", 2<<20)}}, "/dev/b: it is another device than at the start of the"},
		{"the source is another disk", a, b, map[string][]device.Facts{"/dev/a": {disk("C", "1", 1<<20)}}, "/dev/a: it is another device than at the start of the"},
		{"host restarted, same disks", a, b, map[string][]device.Facts{"/dev/a": {disk("A", "2", 1<<20)}, "/dev/b": {disk("B", "2", 2<<20)}}, ""},
		{"host restarted, disks not distinguishable", a, disk("", "1", 2<<20), map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {disk("", "2", 2<<20)}}, "/dev/b: it is another device than at the start of the"},
		{"the disk returns late", a, b, map[string][]device.Facts{"/dev/a": {a, a}, "/dev/b": {missing, b}}, ""},
		{"image created after the interruption", a, missing, map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {{Kind: device.KindFile, Size: 1 << 20}}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := &renamingHost{looks: c.then}
			d := &deviceJob{ends: localEnds(t, h), req: Request{Source: endpoint.Endpoint{Name: "/dev/a"}, Target: endpoint.Endpoint{Name: "/dev/b"}, Retries: 3}, rep: silentDevice{}, report: &Report{}}
			d.task.Source, d.task.Target = c.source, c.target
			d.task.Source.Path, d.task.Target.Path = "/dev/a", "/dev/b"
			d.task.Source.Real, d.task.Target.Real = "/dev/a", "/dev/b"
			err := d.copy(t.Context())
			if c.want == "" {
				require.NoError(t, err)
				require.Len(t, h.tries, 2)
				return
			}
			require.ErrorContains(t, err, c.want)
			require.NotEmpty(t, fault.HintOf(err))
			require.Len(t, h.tries, 1, "the other device is unchanged")
		})
	}
}

// TestDevWaitsForInterruptedAgent expects retries while the agent of an interrupted try still holds the
// target.
func TestDevWaitsForInterruptedAgent(t *testing.T) {
	t.Parallel()
	for _, held := range []int{2, 9} {
		synctest.Test(t, func(t *testing.T) {
			a, b := device.Facts{Kind: device.KindDisk, Serial: "A"}, device.Facts{Kind: device.KindDisk, Serial: "B"}
			h := &renamingHost{held: held, looks: map[string][]device.Facts{"/dev/a": {a, a, a, a, a}, "/dev/b": {b, b, b, b, b}}}
			d := &deviceJob{ends: localEnds(t, h), req: Request{Source: endpoint.Endpoint{Name: "/dev/a"}, Target: endpoint.Endpoint{Name: "/dev/b"}, Retries: 4}, rep: silentDevice{}, report: &Report{}}
			d.task.Source, d.task.Target = a, b
			d.task.Source.Path, d.task.Target.Path = "/dev/a", "/dev/b"
			err := d.copy(t.Context())
			if held < 4 {
				require.NoError(t, err)
				require.Len(t, h.tries, 2+held)
				return
			}
			require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v: the target changed, and the copy can resume", err)
		})
	}
}

// TestDevSecondsCountOnlyCopying expects that Seconds counts only comparing and copying, so that
// earlier stages do not lower the rate.
func TestDevSecondsCountOnlyCopying(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := device.Facts{Kind: device.KindDisk, Serial: "A", Size: 1 << 20}
		h := &slowHost{renamingHost{looks: map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {a}}}}
		r, err := Run(t.Context(), Request{Source: endpoint.Endpoint{Name: "/dev/a"}, Target: endpoint.Endpoint{Name: "/dev/b"}, Compare: true}, hosts.New(h), quietDevice{})
		require.NoError(t, err)
		require.Equal(t, 2.0, r.Seconds)
	})
}

// TestDevResumesWithSameDigest expects that without --digest, a resumed copy uses the
// digest of the interrupted one. With another digest, the report explains how to resume.
func TestDevResumesWithSameDigest(t *testing.T) {
	t.Parallel()
	a, b := device.Facts{Kind: device.KindDisk, Serial: "A", Size: 4 << 20}, device.Facts{Kind: device.KindDisk, Serial: "B", Size: 4 << 20, Minor: 1}
	for _, c := range []struct {
		digest    string
		change    func(*Request)
		want      string // part of the report
		resumable uint64
	}{
		{"", func(*Request) {}, device.BLAKE3, 1 << 20},
		{device.XXH3, func(*Request) {}, device.XXH3, 0},
		{device.BLAKE3, func(*Request) {}, device.BLAKE3, 1 << 20},
		{"", func(r *Request) { r.NoResume = true }, device.XXH3, 0},
		{"", func(r *Request) { r.Options.NoVerify = true }, "", 0},
		{"", func(r *Request) { r.Options.Delta = true }, device.BLAKE3, 1 << 20},
	} {
		h := &resumableHost{renamingHost{looks: map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {b}}}}
		req := Request{Source: endpoint.Endpoint{Name: "/dev/a"}, Target: endpoint.Endpoint{Name: "/dev/b"}, DryRun: true, Digest: c.digest}
		c.change(&req)
		r, err := Run(t.Context(), req, hosts.New(h), quietDevice{})
		require.NoError(t, err)
		require.Equal(t, c.want, r.Digest)
		require.Equal(t, c.resumable, r.Resumable)
		require.Equal(t, c.resumable == 0 && !req.NoResume, r.Unusable != "")
	}
}

// resumableHost is a host with an interrupted copy that used BLAKE3.
type resumableHost struct{ renamingHost }

func (h *resumableHost) Open(context.Context, hosts.Address) (hosts.Host, error) { return h, nil }
func (h *resumableHost) RTT() time.Duration                                      { return 0 }

func (h *resumableHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, &h.renamingHost, r, hoststest.With(hosts.OpHostFacts, noFacts), hoststest.With(hosts.OpCapture, noCapture),
		hoststest.With(hosts.OpDeviceState, h.DeviceState))
}

func noFacts(context.Context, hosts.None) (f hosts.Facts, err error) { return f, nil }

func noCapture(context.Context, bool) (string, error) { return "", errors.New("no") }

func (h *resumableHost) DeviceState(_ context.Context, t device.Task) (device.State, error) {
	if t.Options.BlockHash().Name() == device.BLAKE3 {
		return device.State{Started: true, Stored: 1 << 20}, nil
	}
	return device.State{Started: true, Digest: device.BLAKE3, Unusable: "its hashes"}, nil
}

// slowHost takes an hour for its facts and two seconds to read.
type slowHost struct{ renamingHost }

func (h *slowHost) Open(context.Context, hosts.Address) (hosts.Host, error) { return h, nil }

func (h *slowHost) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, &h.renamingHost, r, hoststest.With(hosts.OpHostFacts, h.HostFacts), hoststest.With(hosts.OpCapture, noCapture),
		hoststest.Watched(hosts.OpDigestDevice, h.DigestDevice))
}

func (h *slowHost) HostFacts(context.Context, hosts.None) (hosts.Facts, error) {
	time.Sleep(time.Hour)
	return hosts.Facts{}, nil
}

func (h *slowHost) DigestDevice(context.Context, device.DigestQuery, func(transfer.Progress)) (device.Digest, error) {
	time.Sleep(2 * time.Second)
	return device.Digest{}, nil
}
