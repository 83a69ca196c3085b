package hoststest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// memory is a pool of a host in memory.
type memory struct {
	*zfsmem.Host
	t    *testing.T
	pool string
}

func (g memory) Root() string               { return g.pool }
func (g memory) Dataset(name string) string { return g.pool + "/" + name }
func (g memory) Path(string, string) string { return "" }

func (g memory) Create(name string, args ...string) string {
	properties := map[string]string{}
	for _, a := range args {
		if p, v, ok := strings.Cut(a, "="); ok {
			properties[p] = v
		}
	}
	g.Host.Create(g.Dataset(name), properties)
	return g.Dataset(name)
}

func (g memory) Snapshot(dataset, name string) string {
	require.NoError(g.t, g.Host.Snapshot(g.t.Context(), []string{dataset + "@" + name}))
	return dataset + "@" + name
}

func (g memory) Write(dataset, _ string, size int64, seed uint64) {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(b) // never fails
	g.Host.Write(dataset, b)
}

func (g memory) Get(name, property string) string {
	m, err := g.Properties(g.t.Context(), []string{name}, []string{property})
	require.NoError(g.t, err)
	return m[name][property].Value
}

func (g memory) ZFS(args ...string) string {
	switch args[0] {
	case "bookmark":
		require.NoError(g.t, g.Bookmark(g.t.Context(), map[string]string{args[2]: args[1]}))
	case "clone":
		g.Clone(args[1], args[2])
	case "list":
		l, err := g.List(g.t.Context(), zfs.ListQuery{Dataset: g.pool, Recursive: true, Versions: true})
		require.NoError(g.t, err)
		var names []string
		for _, d := range l.Datasets {
			names = append(names, d.Name)
			for _, v := range d.Versions {
				names = append(names, v.In(d.Name))
			}
		}
		return strings.Join(names, "\n")
	default:
		require.Fail(g.t, "no such command here", "%q", args)
	}
	return ""
}

func on(t *testing.T, h *zfsmem.Host) hosts.Host {
	l := hosts.On(h, "test", func(string) {})
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// throughAgent returns a host as seen through its agent.
func throughAgent(t *testing.T, h *zfsmem.Host) hosts.Host {
	here, there := net.Pipe()
	go func() {
		_ = (&agent.Server{Host: on(t, h), Version: "test"}).Serve(context.Background(), there, there)
		_ = there.Close()
	}()
	r, err := agent.NewRemote(t.Context(), "beta", here, func(line string) { t.Log(line) })
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func TestMemoryIsAHost(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, *zfsmem.Host) hosts.Host{"local": on, "through an agent": throughAgent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := zfsmem.New()
			s := newSuite(t, func(t *testing.T) hosts.Host { return open(t, h) })
			pools := 0
			pool := func(t *testing.T) testPool {
				pools++
				m := memory{h, t, fmt.Sprint("inmemory", pools)}
				h.Create(m.pool, nil)
				return m
			}
			run(t, s, datasets(), pool)
			run(t, s, streams(), pool)
		})
	}
}

// move sends a stream from one host to another.
func move(ctx context.Context, t *testing.T, from, to hosts.Host, send zfs.SendSpec, receive zfs.ReceiveSpec, options transfer.Options, progress func(transfer.Progress)) (sent hosts.Result, sendErr, receiveErr error) {
	t.Helper()
	ticket, err := hosts.Call(t.Context(), to, hosts.OpOffer, tcp.Offer{Mode: tcp.Signed, Streams: 2, Address: "127.0.0.1", Deadline: testenv.Timeout()})
	require.NoError(t, err)
	var ends sync.WaitGroup
	ends.Go(func() {
		sent, sendErr = hosts.Call(ctx, from, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: send, Options: options}, To: hosts.Dial{Ticket: ticket}})
	})
	ends.Go(func() {
		_, receiveErr = hosts.Watch(ctx, to, hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: ticket.Session}, To: hosts.ReceiveStream{Spec: receive, Options: options}}, progress)
	})
	ends.Wait()
	return sent, sendErr, receiveErr
}

// TestStreamsBetweenHostsInMemory sends a chain of streams between two hosts: full, several
// snapshots in one stream, interrupted and resumed, and a clone. It expects the same contents on
// the target.
func TestStreamsBetweenHostsInMemory(t *testing.T) {
	t.Parallel()
	a, b := zfsmem.New("tank/a"), zfsmem.New("pool")
	from, to := on(t, a), on(t, b)
	g := memory{a, t, "tank"}
	guid := map[string]uint64{}
	for i, name := range []string{"one", "two", "three", "four"} {
		g.Write("tank/a", "", int64(i+1)<<20, uint64(i))
		g.Snapshot("tank/a", name)
		guid[name] = a.Versions("tank/a")[i].GUID
	}
	arrival := func(base string, names ...string) (r zfs.ReceiveSpec) {
		r.Target, r.Arrival.Base = "pool/b", guid[base]
		for _, n := range names {
			r.Arrival.Snapshots = append(r.Arrival.Snapshots, zfs.SnapshotID{Name: n, GUID: guid[n]})
		}
		return r
	}
	_, sendErr, receiveErr := move(t.Context(), t, from, to, zfs.SendSpec{Dataset: "tank/a", To: "one"}, arrival("", "one"), transfer.Options{}, nil)
	require.NoError(t, sendErr)
	require.NoError(t, receiveErr)
	_, _, unplanned := move(t.Context(), t, from, to, zfs.SendSpec{Dataset: "tank/a", From: "@one", To: "two"}, arrival("one", "three"), transfer.Options{}, nil)
	require.ErrorIs(t, unplanned, &zfs.Error{Kind: zfs.Unplanned})
	_, _, base := move(t.Context(), t, from, to, zfs.SendSpec{Dataset: "tank/a", From: "@two", To: "three"}, arrival("two", "three"), transfer.Options{}, nil)
	require.ErrorIs(t, base, &zfs.Error{Kind: zfs.NoBase})
	_, sendErr, receiveErr = move(t.Context(), t, from, to, zfs.SendSpec{Dataset: "tank/a", From: "@one", Through: []string{"two"}, To: "three"}, arrival("one", "two", "three"), transfer.Options{}, nil)
	require.NoError(t, sendErr)
	require.NoError(t, receiveErr)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	last := zfs.SendSpec{Dataset: "tank/a", From: "@three", To: "four"}
	_, _, receiveErr = move(ctx, t, from, to, last, arrival("three", "four"), transfer.Options{BandLimit: 2 << 20, Buffer: 256 << 10, Block: 64 << 10}, func(p transfer.Progress) {
		if p.Bytes > 1<<20 {
			cancel()
		}
	})
	require.ErrorIs(t, receiveErr, context.Canceled)
	last.Token = b.Get("pool/b", "receive_resume_token")
	rest := arrival("three", "four")
	rest.Arrival.Resumed = true
	sent, sendErr, receiveErr := move(t.Context(), t, from, to, last, rest, transfer.Options{}, nil)
	require.NoError(t, sendErr)
	require.NoError(t, receiveErr)
	require.Less(t, sent.Bytes, int64(4<<20))

	a.Clone("tank/a@two", "tank/clone")
	g.Write("tank/clone", "", 1<<20, 9)
	g.Snapshot("tank/clone", "x")
	guid["x"] = a.Versions("tank/clone")[0].GUID
	clone := arrival("two", "x")
	clone.Target, clone.Origin = "pool/clone", "pool/b@two"
	_, sendErr, receiveErr = move(t.Context(), t, from, to, zfs.SendSpec{Dataset: "tank/clone", From: "tank/a@two", To: "x"}, clone, transfer.Options{}, nil)
	require.NoError(t, sendErr)
	require.NoError(t, receiveErr)
	require.Equal(t, "pool/b@two", b.Get("pool/clone", "origin"))

	for source, copied := range map[string]string{"tank/a": "pool/b", "tank/clone": "pool/clone"} {
		newest := a.Versions(source)[len(a.Versions(source))-1].Name
		want, err := hosts.Call(t.Context(), from, hosts.OpDigest, hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: source, To: newest}})
		require.NoError(t, err)
		got, err := hosts.Call(t.Context(), to, hosts.OpDigest, hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: copied, To: newest}})
		require.NoError(t, err)
		require.Equal(t, want.Sum, got.Sum, source)
	}
}
