package dev

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/outcome"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// volumeHost has a volume with snapshots and a disk. Both may be anything.
type volumeHost struct {
	hosts.Host
	dataset zfs.Dataset
	volsize string
	disk    device.Facts
	tasks   []hosts.Task
	// transfer is called for each transfer with its number, from 1 on.
	transfer func(n int) error
}

func (h *volumeHost) Open(context.Context, hosts.Address) (hosts.Host, error) { return h, nil }

func (h *volumeHost) Close() error { return nil }

func (h *volumeHost) Name() string { return "local" }

func (h *volumeHost) RTT() time.Duration { return 0 }

func (h *volumeHost) Run(ctx context.Context, r *hosts.Request) error {
	facts := func(context.Context, hosts.None) (hosts.Facts, error) { return hosts.Facts{}, nil }
	return hoststest.Run(ctx, h.Host, r, hoststest.With(hosts.OpFacts, facts), hoststest.With(hosts.OpHostFacts, facts), hoststest.With(hosts.OpCapture, noCapture),
		hoststest.With(hosts.OpList, func(context.Context, hosts.ListQuery) (zfs.Listing, error) {
			d := h.dataset
			return zfs.Listing{Root: d.Name, Datasets: []*zfs.Dataset{&d}}, nil
		}),
		hoststest.With(hosts.OpProperties, func(_ context.Context, q hosts.PropertyQuery) (hosts.PropertiesByName, error) {
			return hosts.PropertiesByName{q.Names[0]: {"volsize": {Value: h.volsize}}, q.Names[1]: {"volblocksize": {Value: "16384"}}}, nil
		}),
		hoststest.With(hosts.OpEstimate, func(_ context.Context, s []zfs.SendSpec) ([]uint64, error) { return make([]uint64, len(s)), nil }),
		hoststest.With(hosts.OpInspectDevice, func(_ context.Context, path string) (device.Facts, error) {
			f := h.disk
			f.Path, f.Real = path, path
			return f, nil
		}),
		hoststest.Watched(hosts.OpTransfer, func(_ context.Context, t hosts.Task, _ func(transfer.Progress)) (hosts.Result, error) {
			h.tasks = append(h.tasks, t)
			return hosts.Result{Device: &device.Account{Data: 7}}, h.transfer(len(h.tasks))
		}))
}

// newVolumeHost returns a host with the snapshots @a, @b and @c (GUIDs 1 to 3) of a volume, the
// bookmark #old (GUID 9) of an earlier one, and an empty disk.
func newVolumeHost() *volumeHost {
	return &volumeHost{volsize: "1048576", disk: device.Facts{Kind: device.KindDisk, Serial: "S", Size: 1 << 20, Major: 8},
		transfer: func(int) error { return nil },
		dataset: zfs.Dataset{Name: "tank/vm", Type: zfs.Volume, Versions: []zfs.Version{
			{Kind: zfs.Bookmark, Name: "old", GUID: 9, CreateTXG: 1}, {Kind: zfs.Snapshot, Name: "a", GUID: 1, CreateTXG: 2},
			{Kind: zfs.Bookmark, Name: "b", GUID: 2, CreateTXG: 3}, {Kind: zfs.Snapshot, Name: "b", GUID: 2, CreateTXG: 3}, {Kind: zfs.Snapshot, Name: "c", GUID: 3, CreateTXG: 4},
		}}}
}

func heldSnapshot(name string, guid uint64) device.VolumeSnapshot {
	return device.VolumeSnapshot{Dataset: "tank/vm", Name: name, GUID: guid, Size: 1 << 20}
}

func (h *volumeHost) send(t *testing.T, source string, change func(*Request)) (*Report, error) {
	t.Helper()
	req := Request{Source: endpoint.Endpoint{Name: source}, Target: endpoint.Endpoint{Name: "/dev/sdx"}, Retries: 2}
	if change != nil {
		change(&req)
	}
	return Run(t.Context(), req, hosts.New(h), quietDevice{})
}

// TestVolumePlan expects the incremental source that the record of the target names by its GUID, and
// refusals with a command.
func TestVolumePlan(t *testing.T) {
	t.Parallel()
	overwrite := func(r *Request) { r.Allow = device.Allow{Overwrite: true, Confirm: "S"} }
	for name, tt := range map[string]struct {
		source string
		held   *device.VolumeCopy
		change func(*Request)
		base   string
		want   string // of the error
	}{
		"empty disk":               {"tank/vm@a", nil, nil, "", ""},
		"changes":                  {"tank/vm@b", &device.VolumeCopy{Held: heldSnapshot("a", 1)}, nil, "@a", ""},
		"the most recent snapshot": {"tank/vm", &device.VolumeCopy{Held: heldSnapshot("b", 2)}, nil, "@b", ""},
		"a bookmark":               {"tank/vm@b", &device.VolumeCopy{Held: heldSnapshot("gone", 9)}, nil, "#old", ""},
		"a renamed snapshot":       {"tank/vm@b", &device.VolumeCopy{Held: heldSnapshot("renamed", 1)}, nil, "@a", ""},
		"another GUID":             {"tank/vm@b", &device.VolumeCopy{Held: heldSnapshot("a", 77)}, nil, "", "holds tank/vm@a (GUID 77), which is no earlier"},
		"a later snapshot":         {"tank/vm@a", &device.VolumeCopy{Held: heldSnapshot("b", 2)}, nil, "", "no earlier snapshot or bookmark"},
		"overwritten":              {"tank/vm@b", &device.VolumeCopy{Held: heldSnapshot("a", 77)}, overwrite, "", ""},
		"full on request":          {"tank/vm@b", &device.VolumeCopy{Held: heldSnapshot("a", 1)}, overwrite, "", ""},
		"changed":                  {"tank/vm@b", &device.VolumeCopy{Held: heldSnapshot("a", 1), Changed: "it was written to"}, nil, "@a", "no longer holds tank/vm@a: it was written to"},
		"up to date, but changed":  {"tank/vm@a", &device.VolumeCopy{Held: heldSnapshot("a", 1), Changed: "it was written to"}, nil, "", "no longer holds"},
		"damaged record":           {"tank/vm@b", &device.VolumeCopy{Changed: "its record is damaged"}, nil, "", "has a record of a copy of a volume: its record is damaged"},
		"interrupted":              {"tank/vm@b", &device.VolumeCopy{Held: heldSnapshot("a", 1), Applying: heldSnapshot("b", 2)}, nil, "@a", ""},
		"interrupted, another":     {"tank/vm@c", &device.VolumeCopy{Held: heldSnapshot("a", 1), Applying: heldSnapshot("b", 2)}, nil, "", "holds tank/vm@a with a part of the changes up to @b"},
		"interrupted full":         {"tank/vm@b", &device.VolumeCopy{Applying: heldSnapshot("b", 2)}, nil, "", ""},
		"interrupted full, other":  {"tank/vm@c", &device.VolumeCopy{Applying: heldSnapshot("b", 2)}, nil, "", "an incomplete copy of tank/vm@b"},
		"no such snapshot":         {"tank/vm@x", nil, nil, "", "does not exist"},
		"an invalid name":          {"tank/vm@a@b", nil, nil, "", "a@b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newVolumeHost()
			h.disk.Volume = tt.held
			r, err := h.send(t, tt.source, tt.change)
			if tt.want != "" {
				require.ErrorContains(t, err, tt.want)
				require.NotEqual(t, fault.Failed, fault.ClassOf(err))
				require.NotEmpty(t, fault.HintOf(err))
				require.Empty(t, h.tasks)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.base, r.Volume.Base)
			require.Equal(t, outcome.Done, r.Outcome)
			require.Len(t, h.tasks, 1)
			from, to := h.tasks[0].From.(hosts.SendStream).Spec, h.tasks[0].To.(hosts.WriteVolume).Volume
			require.Equal(t, zfs.SendSpec{Dataset: "tank/vm", From: tt.base, To: to.Snapshot.Name}, from, "plain blocks")
			require.Equal(t, int64(1<<20), to.Snapshot.Size)
			require.Equal(t, tt.base != "", to.Base.GUID != 0)
		})
	}
	h := newVolumeHost()
	h.disk.Volume = &device.VolumeCopy{Held: heldSnapshot("c", 3)}
	r, err := h.send(t, "tank/vm", nil)
	require.NoError(t, err)
	require.Equal(t, outcome.UpToDate, r.Outcome)
	require.Empty(t, h.tasks)
}

// TestVolumeSourceIsChecked refuses sources that are no volume, encrypted volumes without consent, and
// sizes that no volume has.
func TestVolumeSourceIsChecked(t *testing.T) {
	t.Parallel()
	for _, size := range []string{"", "-", "0", "-512", "1000", "1e9", "9223372036854775807", "2251799813685248"} {
		h := newVolumeHost()
		h.volsize = size
		_, err := h.send(t, "tank/vm@a", nil)
		require.ErrorContains(t, err, "has the volsize", size)
		require.Empty(t, h.tasks)
	}
	h := newVolumeHost()
	h.dataset.Type = zfs.Filesystem
	_, err := h.send(t, "tank/vm@a", nil)
	require.ErrorContains(t, err, "is a filesystem: only a volume")
	h = newVolumeHost()
	h.dataset.Properties = map[string]zfs.Property{"encryption": {Value: "aes-256-gcm"}, "keystatus": {Value: "available"}}
	_, err = h.send(t, "tank/vm@a", nil)
	require.ErrorContains(t, err, "is encrypted, but its copy")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	r, err := h.send(t, "tank/vm@a", func(r *Request) { r.Decrypt = true })
	require.NoError(t, err)
	require.Equal(t, "source-encrypted", r.Problems[0].ID)
	h.dataset.Properties["keystatus"] = zfs.Property{Value: "unavailable"}
	_, err = h.send(t, "tank/vm@a", func(r *Request) { r.Decrypt = true })
	require.ErrorContains(t, err, "is not loaded")
	h = newVolumeHost()
	h.disk.Size = 1 << 19
	_, err = h.send(t, "tank/vm@a", nil)
	require.ErrorContains(t, err, "too small")
	h = newVolumeHost()
	h.disk.Kind = device.KindZvol
	_, err = h.send(t, "tank/vm@a", nil)
	require.ErrorContains(t, err, "is a ZFS volume")
}

// TestVolumeRetries expects that an interrupted copy is repeated, unless the target is another device or
// holds the snapshot by then.
func TestVolumeRetries(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("%w: in the middle", tcp.ErrConnectionLost)
	for name, tt := range map[string]struct {
		then  func(f *device.Facts)
		tries int
		want  string
	}{
		"interrupted": {func(f *device.Facts) { f.Volume.Applying = heldSnapshot("b", 2) }, 2, ""},
		"complete":    {func(f *device.Facts) { f.Volume.Held = heldSnapshot("b", 2) }, 1, ""},
		"another":     {func(f *device.Facts) { f.Serial = "T" }, 1, "it is another device than at the start"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newVolumeHost()
			h.disk.Volume = &device.VolumeCopy{Held: heldSnapshot("a", 1)}
			h.transfer = func(n int) error {
				if n > 1 {
					return nil
				}
				c := *h.disk.Volume
				h.disk.Volume = &c
				tt.then(&h.disk)
				return lost
			}
			_, err := h.send(t, "tank/vm@b", nil)
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
			require.Len(t, h.tasks, tt.tries)
		})
	}
}
