package job

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/meet"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/way"
	"zxfer/pkg/zfs"
)

// world is a host with the pools src and dst, as far as jobs see them: both
// ends of a copy within one host.
type world struct {
	site.Full // what a test does not expect to be called

	mu       sync.Mutex
	datasets map[string]*zfs.Dataset
	did      []string // changes, in order
	// refuse, estimate and hold are asked before what they are named after.
	refuse   func(target string) error
	estimate func(dataset string) error
	hold     func(snapshots []string) error
	look     func() error // a listing
	// taken is what happens behind a snapshot.
	taken func()
	// feature is one that the pools have besides.
	feature string
	// received is what a dataset's first receive set.
	received map[string]map[string]string
}

// newWorld makes datasets, each with the names of its snapshots.
func newWorld(datasets map[string][]string) *world {
	w := &world{datasets: map[string]*zfs.Dataset{}, received: map[string]map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(datasets)) {
		d := &zfs.Dataset{Name: name, Type: zfs.Filesystem, GUID: uint64(len(w.datasets) + 1), Properties: map[string]zfs.Property{}}
		for i, snap := range datasets[name] {
			d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: snap, GUID: d.GUID*1000 + uint64(i), CreateTXG: uint64(i + 1)})
		}
		w.datasets[name] = d
	}
	return w
}

func (w *world) set(dataset, property, value string) {
	w.datasets[dataset].Properties[property] = zfs.Property{Value: value, Source: "local"}
}

func (w *world) note(did string) { w.did = append(w.did, did) }

func (w *world) Open(context.Context, hosts.Line) (site.Site, error) { return w, nil }
func (w *world) Relay(context.Context, hosts.Line, string) (string, error) {
	return "", errors.ErrUnsupported
}
func (w *world) RTT() time.Duration                        { return 0 }
func (w *world) Close() error                              { return nil }
func (w *world) Facts(context.Context) (site.Facts, error) { return site.Facts{Root: true}, nil }
func (w *world) Capture(context.Context, bool) ([]byte, error) {
	return nil, errors.New("nothing is known of this host")
}

func (w *world) Holds(context.Context, []string) (map[string][]string, error) { return nil, nil }

func (w *world) List(_ context.Context, q site.ListQuery) (zfs.Listing, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.look != nil {
		if err := w.look(); err != nil {
			return zfs.Listing{}, err
		}
	}
	l := zfs.Listing{Root: q.Dataset, Pool: zfs.Pool{Name: zfs.PoolOf(q.Dataset), Features: map[string]string{"lz4_compress": "active", w.feature: "active"}}}
	for _, name := range slices.Sorted(maps.Keys(w.datasets)) {
		d := *w.datasets[name]
		d.Properties, d.Versions = maps.Clone(d.Properties), slices.Clone(d.Versions)
		switch {
		case name == q.Dataset || q.Recursive && strings.HasPrefix(name, q.Dataset+"/"):
			l.Datasets = append(l.Datasets, &d)
		case strings.HasPrefix(q.Dataset, name+"/"):
			l.Ancestors = append(l.Ancestors, &d)
		}
	}
	return l, nil
}

// Properties tells what is set on datasets, and the GUIDs of snapshots.
func (w *world) Properties(_ context.Context, names, _ []string) (map[string]map[string]zfs.Property, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]map[string]zfs.Property{}
	for _, n := range names {
		dataset, snap, _ := strings.Cut(n, "@")
		d := w.datasets[dataset]
		if d == nil {
			continue
		}
		if snap == "" {
			out[n] = maps.Clone(d.Properties)
		}
		for _, v := range d.Versions {
			if v.Name == snap {
				out[n] = map[string]zfs.Property{"guid": {Value: strconv.FormatUint(v.GUID, 10)}}
			}
		}
	}
	return out, nil
}

func (w *world) Estimate(_ context.Context, specs []zfs.SendSpec) ([]uint64, error) {
	for _, s := range specs {
		if w.estimate != nil {
			if err := w.estimate(s.Dataset); err != nil {
				return nil, err
			}
		}
	}
	return make([]uint64, len(specs)), nil
}

func (w *world) Snapshot(_ context.Context, names []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names { // all or nothing
		dataset, _, _ := strings.Cut(n, "@")
		if w.datasets[dataset].Inconsistent() {
			return &zfs.Error{Kind: zfs.Busy, Op: zfs.OpSnapshot, Subject: n}
		}
	}
	for _, n := range names {
		dataset, snap, _ := strings.Cut(n, "@")
		d := w.datasets[dataset]
		i := len(d.Versions)
		d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: snap, GUID: d.GUID*1000 + uint64(i), CreateTXG: uint64(i + 1)})
		w.note("snapshot " + n)
	}
	if w.taken != nil {
		w.taken()
	}
	return nil
}

func (w *world) Hold(_ context.Context, _ string, snapshots []string) error {
	if w.hold != nil {
		return w.hold(snapshots)
	}
	return nil
}

func (w *world) CreateParents(context.Context, string) error { return nil }

func (w *world) DiscardPartial(_ context.Context, dataset string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.datasets[dataset].Properties, "receive_resume_token")
	w.note("discard " + dataset)
	return nil
}

// Transfer brings a stream's last snapshot.
func (w *world) Transfer(_ context.Context, t site.Task, _ func(transfer.Progress)) (site.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	send, receive := t.From.(site.SendStream).Spec, t.To.(site.ReceiveStream).Spec
	if w.refuse != nil {
		if err := w.refuse(receive.Target); err != nil {
			return site.Result{}, err
		}
	}
	from, to := w.datasets[send.Dataset], w.datasets[receive.Target]
	if to == nil {
		to = &zfs.Dataset{Name: receive.Target, Type: from.Type, Properties: map[string]zfs.Property{}}
		w.datasets[to.Name], w.received[to.Name] = to, receive.Set
	}
	for _, v := range from.Versions {
		if v.Name == send.To {
			to.Versions = append(to.Versions, v)
		}
	}
	w.note("receive " + receive.Target)
	return site.Result{}, nil
}

// host is one that is reached by an Opener, "" for this one.
func host(o hosts.Opener, name string) *hosts.Host { return hosts.New(o).At(name, &way.Way{}) }

// request is to send src/a and all below it to dst.
func request(change func(*Send)) Send {
	req := Send{
		Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst"},
		Plan: plan.Request{Source: "src/a", Target: "dst", Recursive: true},
	}
	if change != nil {
		change(&req)
	}
	return req
}

// batch is the same as a Batch, of a survey that was made for it.
func (w *world) batch(t *testing.T, change func(*Send)) Batch {
	t.Helper()
	l, err := w.List(t.Context(), site.ListQuery{Dataset: "src/a", Recursive: true, Versions: true})
	if err != nil {
		t.Fatal(err)
	}
	return Batch{Send: request(change), Survey: l}
}

// silent is a Reporter that needs no output.
type silent struct{}

func (silent) Log(string)                      {}
func (silent) Planned(*Report)                 {}
func (silent) Started(int, *plan.Dataset, int) {}
func (silent) Progress(int, meet.Progress)     {}
func (silent) Finished(int, *StepResult)       {}
