package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/probe"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// replica is a simulated host with the pools src and dst, and the records of a job. It connects to
// itself.
type replica struct {
	*zfsmem.Host
	t   *testing.T
	job *replicate.Job
	dir string
	now int64 // seconds, the host's clock

	mu sync.Mutex
	// away is unreachable with its descendants.
	away string
	// before is called before each operation.
	before func(op string, names []string) error
	// looked lists the datasets whose snapshots were listed.
	looked []string
	lie    func(files.Query, files.Digest) (files.Digest, error) // see captured
}

func newReplica(t *testing.T, j replicate.Job) *replica {
	t.Helper()
	j.Name, j.Source, j.Recursive, j.Parallel = "j", "src", true, 1
	others := j.Targets // in separate pools
	j.Targets = append([]replicate.Target{{Name: "t", To: "dst/copy", Retention: &retention.Grid{Last: 2}}}, others...)
	r := &replica{Host: zfsmem.New("src", "src/a", "dst"), t: t, job: &j, dir: t.TempDir(), now: time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC).Unix()}
	r.Now, r.Files = func() int64 { return r.now }, t.TempDir()
	for _, o := range others {
		r.Create(zfs.PoolOf(o.To), nil)
	}
	r.Around = func(_ context.Context, op string, names []string, do func() error) error {
		r.mu.Lock()
		before, away := r.before, r.away
		r.mu.Unlock()
		for _, n := range names {
			if away != "" && below(n, away) {
				return errors.New("no route to host") // only the dataset is missing, not the host, which others use
			}
		}
		if before != nil {
			if err := before(op, names); err != nil {
				return err
			}
		}
		return do()
	}
	return r
}

func below(name, part string) bool {
	rest, ok := strings.CutPrefix(name, part)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], "/@#"))
}

// List records whose snapshots are listed.
func (r *replica) List(ctx context.Context, q zfs.ListQuery) (zfs.Listing, error) {
	l, err := r.Host.List(ctx, q)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := 0; q.Versions && !q.Newest && i < len(l.Datasets); i++ {
		r.looked = append(r.looked, l.Datasets[i].Name)
	}
	return l, err
}

func (r *replica) Open(context.Context, hosts.Address) (hosts.Host, error) {
	l := hosts.On(r, "test", func(line string) { r.t.Log(line) })
	r.t.Cleanup(func() { require.NoError(r.t, l.Close()) })
	return captured{l, r}, nil
}

// captured is a host whose facts are read once for all tests.
type captured struct {
	*hosts.Local
	r *replica
}

func (c captured) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, c.Local, r, hoststest.Watched(hosts.OpReadFiles, c.ReadFiles), hoststest.With(hosts.OpCapture, c.Capture))
}

// ReadFiles reads files. Their copies are not made by ZFS, so they have other inode numbers. If lie is
// set, it changes the answer of a copy.
func (c captured) ReadFiles(ctx context.Context, q files.Query, progress func(transfer.Progress)) (files.Digest, error) {
	replica := q.Replica
	q.Replica = false
	d, err := c.Local.ReadFiles(ctx, q, progress)
	if replica && err == nil {
		d.BlockSizes = strings.Repeat("0", 32)
	}
	if c.r.lie != nil && err == nil && zfs.PoolOf(q.Snapshot) == "dst" {
		return c.r.lie(q, d)
	}
	return d, err
}

// capture reads the facts of this machine once.
var capture = sync.OnceValues(func() (string, error) { return probe.Capture(context.Background(), true) })

func (captured) Capture(context.Context, bool) (string, error) { return capture() }

// runner returns a new Runner, as in another process.
func (r *replica) runner(t *testing.T) *Runner {
	t.Helper()
	return New(r.dir, r, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) })
}

// run runs the job once. It returns the record, and the datasets whose snapshots were listed other
// than for sending.
func (r *replica) run(t *testing.T) (*statedir.Run, []string) {
	t.Helper()
	r.looked = nil
	run, err := r.runner(t).Run(t.Context(), r.job, true)
	require.NotNil(t, run, "%v", err) // a refusal is in the record, too
	slices.Sort(r.looked)
	return run, slices.Compact(r.looked)
}

// fail makes operations on a name and its descendants fail; nil stops that.
func (r *replica) fail(op, part string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = nil
	if why != nil {
		r.before = func(asked string, names []string) error {
			if asked == op && slices.ContainsFunc(names, func(n string) bool { return below(n, part) }) {
				return why
			}
			return nil
		}
	}
}

// snapshot takes a snapshot unless it exists.
func (r *replica) snapshot(dataset, name string) {
	if err := r.Snapshot(r.t.Context(), []string{dataset + "@" + name}); !errors.Is(err, &zfs.Error{Kind: zfs.Exists}) {
		require.NoError(r.t, err)
	}
}

func (r *replica) destroy(version string) {
	require.NoError(r.t, r.Destroy(r.t.Context(), []string{version}))
}

// names returns the names of a dataset's versions of a kind.
func (r *replica) names(dataset string, kind ...zfs.VersionKind) []string {
	out := []string{}
	for _, v := range r.Versions(dataset) {
		if v.Kind == cmp.Or(append(kind, zfs.Snapshot)...) {
			out = append(out, v.Name)
		}
	}
	return out
}

// encrypt makes a dataset an encryption root.
func (r *replica) encrypt(dataset string) {
	for p, v := range map[string]string{"encryption": "aes-256-gcm", "keystatus": "unavailable", "encryptionroot": dataset} {
		r.Set(dataset, p, v)
	}
}

// rename renames a dataset.
func (r *replica) rename(from, to string) {
	r.Edit(func(all map[string]*zfs.Dataset) {
		all[to] = all[from]
		all[to].Name = to
		delete(all, from)
	})
}

// renameSnapshot renames a snapshot.
func (r *replica) renameSnapshot(dataset, from, to string) {
	r.Edit(func(all map[string]*zfs.Dataset) {
		for i, v := range all[dataset].Versions {
			if v.Kind == zfs.Snapshot && v.Name == from {
				all[dataset].Versions[i].Name = to
				r.changed(all[dataset])
			}
		}
	})
}

// changed updates snapshots_changed like OpenZFS 2.3. The property changes when snapshots are
// taken, received, renamed or destroyed, or leave in a promotion. It does not change for bookmarks
// and holds, or when snapshots arrive in a promotion.
func (r *replica) changed(d *zfs.Dataset) {
	d.Properties[zfs.ChangedProperty] = zfs.Property{Value: fmt.Sprint(r.now), Source: "-"}
}

// promote moves the origin and older snapshots to the clone.
func (r *replica) promote(name string) {
	r.Edit(func(all map[string]*zfs.Dataset) {
		clone := all[name]
		origin := clone.Get("origin")
		dataset, snapshot, _ := strings.Cut(origin, "@")
		of := all[dataset]
		if of == nil {
			return
		}
		at := slices.IndexFunc(of.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Snapshot && v.Name == snapshot })
		if at < 0 {
			return
		}
		last := of.Versions[at].CreateTXG
		var moved, left []zfs.Version
		for _, v := range of.Versions {
			if v.Kind != zfs.Snapshot || v.CreateTXG > last {
				left = append(left, v)
				continue
			}
			moved = append(moved, v)
			for _, o := range all {
				if o.Get("origin") == v.In(dataset) {
					o.Properties["origin"] = zfs.Property{Value: v.In(name)}
				}
			}
		}
		before := of.Get("origin")
		of.Versions, clone.Versions = left, append(moved, clone.Versions...)
		zfs.SortVersions(clone.Versions)
		r.changed(of)
		of.Properties["origin"], clone.Properties["origin"] = zfs.Property{Value: name + "@" + snapshot}, zfs.Property{Value: cmp.Or(before, "-")}
	})
}

// held returns the hold tags of a snapshot, sorted.
func (r *replica) held(snapshot string) []string {
	tags, err := r.Host.Holds(r.t.Context(), []string{snapshot})
	require.NoError(r.t, err)
	slices.Sort(tags[snapshot])
	return tags[snapshot]
}

// state returns everything that a run may have changed, without createtxg, since the order of
// concurrent operations varies.
func (r *replica) state() map[string][]string {
	out := map[string][]string{}
	for _, name := range r.datasets("") {
		all := []string{}
		for _, v := range r.Versions(name) {
			all = append(all, fmt.Sprint(v.Short(), " ", v.GUID, " ", r.held(v.In(name))))
		}
		slices.Sort(all)
		out[name] = all
	}
	return out
}

// datasets returns the datasets of a pool, "" for all.
func (r *replica) datasets(pool string) (names []string) {
	r.Edit(func(all map[string]*zfs.Dataset) {
		for n := range all {
			if pool == "" || zfs.PoolOf(n) == pool {
				names = append(names, n)
			}
		}
	})
	slices.Sort(names)
	return names
}

var _ hosts.Opener = (*replica)(nil)
