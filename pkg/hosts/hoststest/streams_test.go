package hoststest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// lock unmounts an encrypted filesystem and unloads its key. The key remains busy for a moment, so
// lock retries.
func lock(p *zfstest.Pool, dataset string) {
	p.ZFS("unmount", dataset)
	for began := time.Now(); time.Since(began) < testenv.Timeout(); time.Sleep(50 * time.Millisecond) {
		if exec.Command("zfs", "unload-key", dataset).Run() == nil {
			return
		}
	}
	p.ZFS("unload-key", dataset) // reports the cause
}

// packed returns the flags that a plan chooses for pools with all features.
func packed() zfs.StreamFlags {
	return zfs.StreamFlags{LargeBlocks: true, Compressed: true}
}

// requireSame requires that a snapshot has the same GUID and contents on both hosts.
func (s *suite) requireSame(t *testing.T, p testPool, of zfs.SendSpec, target string) {
	t.Helper()
	require.Equal(t, p.Get(of.Dataset+"@"+of.To, "guid"), p.Get(target+"@"+of.To, "guid"))
	want, err := hosts.Call(t.Context(), s.source, hosts.OpDigest, hosts.ContentQuery{SendSpec: of})
	require.NoError(t, err)
	of.Dataset = target
	got, err := hosts.Call(t.Context(), s.target, hosts.OpDigest, hosts.ContentQuery{SendSpec: of})
	require.NoError(t, err)
	require.Equal(t, want.Sum, got.Sum)
}

func contents(t *testing.T, p testPool, dataset, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(p.Path(dataset, file))
	require.NoError(t, err)
	require.NotEmpty(t, b)
	return b
}

// requireFiles requires that a file is the same in two datasets. It mounts the second dataset.
func requireFiles(t *testing.T, p testPool, a, b, file string) {
	t.Helper()
	if p.Path(a, file) == "" {
		return // nothing is mounted
	}
	p.ZFS("mount", b)
	require.Equal(t, contents(t, p, a, file), contents(t, p, b, file))
	p.ZFS("unmount", b)
}

func (s *suite) testWires(t *testing.T, pool *zfstest.Pool) {
	p := realPool{pool}
	open := p.Create("open")
	secret, key := p.CreateEncrypted("secret")
	for i, snap := range []string{"one", "two"} {
		for _, ds := range []string{open, secret} {
			p.Write(ds, snap, 1<<20, uint64(i))
			p.Snapshot(ds, snap)
		}
	}
	want := map[string][]byte{}
	for _, ds := range []string{open, secret} {
		for _, file := range []string{"one", "two"} {
			want[ds] = append(want[ds], contents(t, p, ds, file)...)
		}
	}
	lock(p.Pool, secret)
	for i, mode := range []tcp.Mode{tcp.Signed, tcp.TLS, tcp.Plain} {
		for j, streams := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", mode, streams), func(t *testing.T) {
				for ds, flags := range map[string]zfs.StreamFlags{open: packed(), secret: {Raw: true}} {
					target := p.Dataset(fmt.Sprintf("to/%d-%d", i, j)) + "/" + ds[len(p.Name)+1:]
					require.NoError(t, hosts.Run(t.Context(), s.target, hosts.OpCreateParents, target))
					for _, step := range []zfs.SendSpec{
						{Dataset: ds, To: "one", Flags: flags},
						{Dataset: ds, From: "@one", To: "two", Flags: flags},
					} {
						o := s.move(t, stream{send: step, receive: zfs.ReceiveSpec{Target: target},
							mode: mode, streams: streams, backwards: j == 1})
						require.Greater(t, o.sent.Bytes, int64(1<<20))
						require.Greater(t, o.sent.WireBytes, o.sent.Bytes, "frames also need some bytes")
						require.NotEmpty(t, o.received.Stages)
						require.Equal(t, p.Get(ds+"@"+step.To, "guid"), p.Get(target+"@"+step.To, "guid"))
					}
					require.Equal(t, "no", p.Get(target, "mounted"))
					if ds == secret {
						require.Equal(t, "unavailable", p.Get(target, "keystatus"))
						p.ZFS("load-key", "-L", "file://"+key, target)
					}
					p.ZFS("mount", target)
					require.Equal(t, want[ds], append(contents(t, p, target, "one"), contents(t, p, target, "two")...))
				}
			})
		}
	}
	requireEnded(t, p)
}

func (s *suite) testLocalCopy(t *testing.T, p testPool) {
	ds, target := p.Create("a"), p.Dataset("b")
	p.Write(ds, "file", 2<<20, 1)
	p.Snapshot(ds, "x")
	spec := zfs.SendSpec{Dataset: ds, To: "x", Flags: packed()}
	res, err := hosts.Call(t.Context(), s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: spec},
		To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: target, Set: map[string]string{"canmount": "noauto", "zxt:note": "a b"}, Arrival: arrival(t, s.source, spec)}}})
	require.NoError(t, err)
	require.Greater(t, res.Bytes, int64(2<<20))
	require.Zero(t, res.WireBytes)
	s.requireSame(t, p, spec, target)
	require.Equal(t, "noauto", p.Get(target, "canmount"))
	require.Equal(t, "a b", p.Get(target, "zxt:note"))
	requireFiles(t, p, ds, target, "file")

	_, err = hosts.Call(t.Context(), s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: spec}, To: hosts.ReceiveStream{Spec: s.into(t, spec, target)}})
	requireKind(t, err, zfs.Exists)
	spec.To = "none"
	_, err = hosts.Call(t.Context(), s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: spec}, To: hosts.ReceiveStream{Spec: s.into(t, spec, p.Dataset("c"))}})
	requireKind(t, err, zfs.NotFound)
	require.False(t, exists(t, p, p.Dataset("c")))
}

// attach returns a stream of the connection to a host, and the end for it in a task for the host.
func attach(t *testing.T, h hosts.Host) (here *mux.Stream, end hosts.Attached) {
	if _, local := h.(*hosts.Local); !local {
		end, err := hosts.Attach(t.Context(), h)
		require.NoError(t, err)
		return end.Stream, hosts.Attached{Number: end.Number}
	}
	up, upWriter := io.Pipe()
	down, downWriter := io.Pipe()
	a, b := mux.New(upWriter, ""), mux.New(downWriter, "")
	accepted := make(chan *mux.Stream, 1)
	b.Accept = func(s *mux.Stream, _ string) { accepted <- s }
	go func() { _ = b.Run(up) }()
	go func() { _ = a.Run(down) }()
	t.Cleanup(func() { _, _, _, _ = up.Close(), upWriter.Close(), down.Close(), downWriter.Close() })
	here, err := a.Open(t.Context(), hosts.AttachAddress)
	require.NoError(t, err)
	return here, hosts.Attached{Stream: <-accepted}
}

// testAttached moves streams in the control connection. One that ends early never becomes a snapshot.
func (s *suite) testAttached(t *testing.T, p testPool) {
	ds, target := p.Create("a"), p.Dataset("b")
	p.Write(ds, "file", 16<<10, 1)
	p.Snapshot(ds, "x")
	p.Write(ds, "more", 16<<10, 2)
	p.Snapshot(ds, "y")
	p.Write(ds, "much", 12<<20, 3) // more than a window
	p.Snapshot(ds, "z")
	fetch := func(spec zfs.SendSpec) (data []byte, sent hosts.Result) {
		here, end := attach(t, s.source)
		defer here.Close()
		read := make(chan error)
		go func() {
			var err error
			data, err = io.ReadAll(here)
			read <- err
		}()
		sent, err := hosts.Call(t.Context(), s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: spec}, To: end})
		require.NoError(t, err)
		require.NoError(t, <-read)
		require.Len(t, data, int(sent.Bytes))
		return data, sent
	}
	store := func(data []byte, spec zfs.SendSpec, end func(*mux.Stream) error) (hosts.Result, error) {
		here, there := attach(t, s.target)
		defer here.Close()
		go func() {
			_, _ = here.Write(data) // the host may refuse the stream
			_ = end(here)
		}()
		return hosts.Call(t.Context(), s.target, hosts.OpTransfer,
			hosts.Task{From: there, To: hosts.ReceiveStream{Spec: s.into(t, spec, target), Report: true}})
	}
	broken := func(s *mux.Stream) error { return s.Refuse("the disk fell off") }
	absent := func(spec zfs.SendSpec, err error, what any) {
		require.Error(t, err, what)
		require.False(t, exists(t, p, target+"@"+spec.To), what)
		if exists(t, p, target) && !slices.Contains([]string{"", "-"}, p.Get(target, "receive_resume_token")) {
			require.NoError(t, hosts.Run(t.Context(), s.target, hosts.OpDiscardPartial, target))
		}
	}
	for _, spec := range []zfs.SendSpec{{Dataset: ds, To: "x", Flags: packed()}, {Dataset: ds, From: "@x", To: "y", Flags: packed()}, {Dataset: ds, From: "@y", To: "z", Flags: packed()}} {
		data, sent := fetch(spec)
		for _, cut := range []int{0, 1, len(data) / 2, len(data) - zfs.RecordSize, len(data) - 1} {
			_, err := store(data[:cut], spec, (*mux.Stream).CloseWrite)
			absent(spec, err, cut)
		}
		_, err := store(data, spec, broken)
		absent(spec, err, "the end of data is missing")
		require.ErrorContains(t, err, "the disk fell off")
		received, err := store(data, spec, (*mux.Stream).CloseWrite)
		require.NoError(t, err)
		require.Equal(t, sent.Digest, received.Digest)
		require.Equal(t, p.Get(ds+"@"+spec.To, "guid"), fmt.Sprint(received.Arrived.GUID))
		s.requireSame(t, p, spec, target)
	}
	requireEnded(t, p)

	// The other end learns why a stream ends early.
	here, end := attach(t, s.source)
	_, err := hosts.Call(t.Context(), s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: ds, To: "none"}}, To: end})
	requireKind(t, err, zfs.NotFound)
	_, err = here.Read(make([]byte, 1))
	require.ErrorAs(t, err, new(*mux.Refused))

	// A stream that waits for its sender ends with its request.
	ctx, cancel := context.WithCancel(t.Context())
	_, end = attach(t, s.target)
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err = hosts.Call(ctx, s.target, hosts.OpTransfer, hosts.Task{From: end, To: hosts.ReceiveStream{Spec: s.into(t, zfs.SendSpec{Dataset: ds, To: "z"}, p.Dataset("c"))}})
	require.ErrorIs(t, err, context.Canceled)
}

// testChain sends a chain with streams of every kind: full, range, from a bookmark, of a clone and
// of a volume.
func (s *suite) testChain(t *testing.T, pool *zfstest.Pool) {
	p := realPool{pool}
	ds, target := p.Create("a"), p.Dataset("to-a")
	for i, snap := range []string{"one", "two", "three", "four"} {
		p.Write(ds, snap, 200<<10, uint64(i))
		p.Snapshot(ds, snap)
	}
	clone, vol := p.Dataset("clone"), p.Dataset("vol")
	p.ZFS("clone", ds+"@two", clone)
	p.Write(clone, "more", 200<<10, 9)
	p.Snapshot(clone, "x")
	p.ZFS("create", "-V", "8M", vol)
	f := zfstest.Device(t, vol)
	_, err := f.WriteAt([]byte("what a volume holds"), 1<<20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	p.Snapshot(vol, "x")

	for _, step := range []struct {
		send    zfs.SendSpec
		receive zfs.ReceiveSpec
	}{
		{zfs.SendSpec{Dataset: ds, To: "one"}, zfs.ReceiveSpec{Target: target}},
		{zfs.SendSpec{Dataset: ds, From: "@one", Through: []string{"two"}, To: "three"}, zfs.ReceiveSpec{Target: target}},
		{zfs.SendSpec{Dataset: clone, From: ds + "@two", To: "x"}, zfs.ReceiveSpec{Target: p.Dataset("to-clone"), Origin: target + "@two"}},
		{zfs.SendSpec{Dataset: vol, To: "x"}, zfs.ReceiveSpec{Target: p.Dataset("to-vol")}},
	} {
		step.send.Flags = packed()
		s.move(t, stream{send: step.send, receive: step.receive})
	}
	// The incremental source remains only as a bookmark.
	require.NoError(t, hosts.Run(t.Context(), s.source, hosts.OpBookmark, map[string]string{ds + "#three": ds + "@three"}))
	require.NoError(t, hosts.Run(t.Context(), s.source, hosts.OpDestroy, []string{ds + "@three"}))
	s.move(t, stream{send: zfs.SendSpec{Dataset: ds, From: "#three", To: "four", Flags: packed()}, receive: zfs.ReceiveSpec{Target: target}})

	s.requireSame(t, p, zfs.SendSpec{Dataset: ds, To: "four"}, target)
	s.requireSame(t, p, zfs.SendSpec{Dataset: clone, To: "x"}, p.Dataset("to-clone"))
	s.requireSame(t, p, zfs.SendSpec{Dataset: vol, To: "x"}, p.Dataset("to-vol"))
	require.True(t, exists(t, p, target+"@two"), "intermediate snapshots are sent")
	require.Equal(t, target+"@two", p.Get(p.Dataset("to-clone"), "origin"))
	require.Equal(t, "volume", p.Get(p.Dataset("to-vol"), "type"))

	// An incremental stream is refused if the target lacks its source.
	missing := s.start(t.Context(), t, stream{send: zfs.SendSpec{Dataset: ds, From: "@two", To: "four", Flags: packed()}, receive: zfs.ReceiveSpec{Target: p.Dataset("to-vol")}})()
	require.Error(t, missing.sendErr)
	require.Error(t, missing.receiveErr)
}

func (s *suite) testProgress(t *testing.T, p testPool) {
	ds := p.Create("a")
	const size = 6 << 20
	p.Write(ds, "file", size, 1)
	p.Snapshot(ds, "x")
	tries := 0
	// The transfer must last until both ends have reported twice.
	testenv.Widen(t, 1500*time.Millisecond, func(lasts time.Duration) error {
		tries++
		var sent, received []transfer.Progress
		o := s.move(t, stream{send: zfs.SendSpec{Dataset: ds, To: "x"}, receive: zfs.ReceiveSpec{Target: p.Dataset(fmt.Sprint("b", tries))},
			options: transfer.Options{BandLimit: int64(size / lasts.Seconds()), Buffer: 1 << 20},
			sending: func(pr transfer.Progress) { sent = append(sent, pr) }, receiving: func(pr transfer.Progress) { received = append(received, pr) }})
		require.GreaterOrEqual(t, o.sent.Elapsed, lasts*2/3, "the limit applies")
		for _, all := range [][]transfer.Progress{sent, received} {
			if len(all) < 2 {
				return fmt.Errorf("%d reports of the source, %d of the target", len(sent), len(received))
			}
			for i := range all[1:] {
				require.GreaterOrEqual(t, all[i+1].Bytes, all[i].Bytes)
				require.GreaterOrEqual(t, all[i+1].Elapsed, all[i].Elapsed)
			}
			require.LessOrEqual(t, all[len(all)-1].Bytes, o.sent.Bytes)
			require.NotNil(t, all[0].Network)
		}
		return nil
	})
}
