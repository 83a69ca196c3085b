package job

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
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// renamed is a host on which a path leads to something else after every cut.
type renamed struct {
	hosts.FullHost
	mu    sync.Mutex                // both ends are looked at at once
	looks map[string][]device.Facts // by path, the next one first
	held  int                       // tries that are refused after the cut
	tries []device.Task
}

func (h *renamed) Open(context.Context, hosts.Address) (hosts.Host, error) { return h, nil }

func (h *renamed) Relay(context.Context, hosts.Address, string, func(error)) (string, error) {
	return "", nil
}

func (h *renamed) Close() error { return nil }

func (h *renamed) InspectDevice(_ context.Context, path string) (device.Facts, error) {
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

func (h *renamed) DeviceState(context.Context, device.Task) (device.State, error) {
	return device.State{}, nil
}

func (h *renamed) Transfer(_ context.Context, t hosts.Task, _ func(transfer.Progress)) (hosts.Result, error) {
	h.tries = append(h.tries, t.To.(hosts.WriteDevice).Task)
	if len(h.tries) == 1 {
		return hosts.Result{}, fmt.Errorf("%w: in the middle", tcp.ErrCut)
	}
	if len(h.tries) <= 1+h.held {
		return hosts.Result{}, fault.Refusef("wait for it to end", "another copy is running")
	}
	return hosts.Result{Device: &device.Account{}}, nil
}

// within is from a host to itself.
func within(t *testing.T, h *renamed) *ends {
	e := newEnds(hosts.New(h), endpoint.Endpoint{}, endpoint.Endpoint{}, &transport.Settings{})
	require.NoError(t, e.choose(transport.Settings{}))
	return e
}

type mute struct{ DevReporter }

func (mute) Log(string)                            {}
func (mute) Activity(string) func()                { return func() {} }
func (mute) DeviceStarted(*DevReport, uint64)      {}
func (mute) DeviceFinished(*DevReport, *DevResult) {}

// A copy goes on only between the devices that it began with: a host that was
// started again meanwhile may have given their names to others.
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
		want           string // of the error
	}{
		{"nothing changed", a, b, map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {b}}, ""},
		{"the target is another disk", a, b, map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {disk("C", "1", 2<<20)}}, "/dev/b: it is not the device any more"},
		{"the source is another disk", a, b, map[string][]device.Facts{"/dev/a": {disk("C", "1", 1<<20)}}, "/dev/a: it is not the device any more"},
		{"the host was started again, the disks are the same", a, b, map[string][]device.Facts{"/dev/a": {disk("A", "2", 1<<20)}, "/dev/b": {disk("B", "2", 2<<20)}}, ""},
		{"started again, and nothing tells one from another", a, disk("", "1", 2<<20), map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {disk("", "2", 2<<20)}}, "/dev/b: it is not the device any more"},
		{"the disk comes back late", a, b, map[string][]device.Facts{"/dev/a": {a, a}, "/dev/b": {missing, b}}, ""},
		{"an image is there after the cut", a, missing, map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {{Kind: device.KindFile, Size: 1 << 20}}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := &renamed{looks: c.then}
			d := &deviceJob{ends: within(t, h), req: Dev{Source: endpoint.Endpoint{Name: "/dev/a"}, Target: endpoint.Endpoint{Name: "/dev/b"}, Retries: 3}, rep: mute{}, report: &DevReport{}}
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
			require.Len(t, h.tries, 1, "the other device is left alone")
		})
	}
}

// The agent of a try that was cut off may hold the target for a while longer.
func TestDevWaitsForItsFormerTry(t *testing.T) {
	t.Parallel()
	for _, held := range []int{2, 9} {
		synctest.Test(t, func(t *testing.T) {
			a, b := device.Facts{Kind: device.KindDisk, Serial: "A"}, device.Facts{Kind: device.KindDisk, Serial: "B"}
			h := &renamed{held: held, looks: map[string][]device.Facts{"/dev/a": {a, a, a, a, a}, "/dev/b": {b, b, b, b, b}}}
			d := &deviceJob{ends: within(t, h), req: Dev{Source: endpoint.Endpoint{Name: "/dev/a"}, Target: endpoint.Endpoint{Name: "/dev/b"}, Retries: 4}, rep: mute{}, report: &DevReport{}}
			d.task.Source, d.task.Target = a, b
			d.task.Source.Path, d.task.Target.Path = "/dev/a", "/dev/b"
			err := d.copy(t.Context())
			if held < 4 {
				require.NoError(t, err)
				require.Len(t, h.tries, 2+held)
				return
			}
			require.Equal(t, fault.Interrupted, fault.ClassOf(err), "%v: something was changed, and can be resumed", err)
		})
	}
}

// Seconds are those of comparing, or copying: what comes before makes no rate worse.
func TestDevSecondsAreThoseOfTheWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := device.Facts{Kind: device.KindDisk, Serial: "A", Size: 1 << 20}
		h := &slow{renamed{looks: map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {a}}}}
		r, err := RunDev(t.Context(), Dev{Source: endpoint.Endpoint{Name: "/dev/a"}, Target: endpoint.Endpoint{Name: "/dev/b"}, Compare: true}, hosts.New(h), quiet{})
		require.NoError(t, err)
		require.Equal(t, 2.0, r.Seconds)
	})
}

// A copy that nobody gave a digest goes on with that of the interrupted one; who
// chose one gets to know how it would be resumed.
func TestDevGoesOnWithTheDigestItBeganWith(t *testing.T) {
	t.Parallel()
	a, b := device.Facts{Kind: device.KindDisk, Serial: "A", Size: 4 << 20}, device.Facts{Kind: device.KindDisk, Serial: "B", Size: 4 << 20, Minor: 1}
	for _, c := range []struct {
		digest    string
		change    func(*Dev)
		want      string // of the report
		resumable uint64
	}{
		{"", func(*Dev) {}, device.BLAKE3, 1 << 20},
		{device.XXH3, func(*Dev) {}, device.XXH3, 0},
		{device.BLAKE3, func(*Dev) {}, device.BLAKE3, 1 << 20},
		{"", func(r *Dev) { r.NoResume = true }, device.XXH3, 0},
		{"", func(r *Dev) { r.Options.NoVerify = true }, "", 0},
		{"", func(r *Dev) { r.Options.Delta = true }, device.BLAKE3, 1 << 20},
	} {
		h := &begun{renamed{looks: map[string][]device.Facts{"/dev/a": {a}, "/dev/b": {b}}}}
		req := Dev{Source: endpoint.Endpoint{Name: "/dev/a"}, Target: endpoint.Endpoint{Name: "/dev/b"}, DryRun: true, Digest: c.digest}
		c.change(&req)
		r, err := RunDev(t.Context(), req, hosts.New(h), quiet{})
		require.NoError(t, err)
		require.Equal(t, c.want, r.Digest)
		require.Equal(t, c.resumable, r.Resumable)
		require.Equal(t, c.resumable == 0 && !req.NoResume, r.Unusable != "")
	}
}

// begun is a host with what is left of a copy by BLAKE3.
type begun struct{ renamed }

func (h *begun) Open(context.Context, hosts.Address) (hosts.Host, error) { return h, nil }

func (h *begun) HostFacts(context.Context) (hosts.Facts, error) { return hosts.Facts{}, nil }

func (h *begun) Capture(context.Context, bool) ([]byte, error) { return nil, errors.New("no") }

func (h *begun) RTT() time.Duration { return 0 }

func (h *begun) DeviceState(_ context.Context, t device.Task) (device.State, error) {
	if t.Options.Cut().Name() == device.BLAKE3 {
		return device.State{Begun: true, Stored: 1 << 20}, nil
	}
	return device.State{Begun: true, Digest: device.BLAKE3, Unusable: "other hashes"}, nil
}

// slow is a host that takes an hour to tell of itself, and two seconds to read.
type slow struct{ renamed }

func (h *slow) Open(context.Context, hosts.Address) (hosts.Host, error) { return h, nil }

func (h *slow) HostFacts(context.Context) (hosts.Facts, error) {
	time.Sleep(time.Hour)
	return hosts.Facts{}, nil
}

func (h *slow) Capture(context.Context, bool) ([]byte, error) { return nil, errors.New("no") }

func (h *slow) DigestDevice(context.Context, device.DigestQuery, func(transfer.Progress)) (device.Digest, error) {
	time.Sleep(2 * time.Second)
	return device.Digest{}, nil
}
