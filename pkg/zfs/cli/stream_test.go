package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfstest"
)

func newCLI(t *testing.T) *cli.CLI {
	c := cli.New(func(s string) { t.Log(s) })
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// stream returns the output of zfs send.
func stream(t *testing.T, c *cli.CLI, s zfs.SendSpec) []byte {
	t.Helper()
	src, err := c.OpenSend(t.Context(), s)
	require.NoError(t, err)
	b, err := io.ReadAll(src)
	require.NoError(t, err)
	require.NoError(t, src.Close())
	return b
}

// arriving returns the contents that a stream declares.
func arriving(t *testing.T, b []byte) (a zfs.Arrival) {
	t.Helper()
	for r := zfs.NewStreamReader(bytes.NewReader(b)); ; {
		rec, err := r.Next()
		if err == io.EOF {
			return a
		}
		require.NoError(t, err)
		if rec.Type != zfs.RecordBegin || rec.ToGUID() == 0 { // or the start of a package
			continue
		}
		if len(a.Snapshots) == 0 {
			a.Base, a.Raw, a.Resumed = rec.FromGUID(), rec.Features()&(1<<24) != 0, rec.Features()&(1<<20) != 0
			a.Volume = rec.Header[32] == 3
		}
		_, name, _ := strings.Cut(rec.ToName(), "@")
		a.Snapshots = append(a.Snapshots, zfs.SnapshotID{Name: name, GUID: rec.ToGUID()})
	}
}

// full returns the receive of a full stream of a snapshot.
func full(t *testing.T, c *cli.CLI, dataset, name, target string) zfs.ReceiveSpec {
	t.Helper()
	snapshot := dataset + "@" + name
	all, err := c.Properties(t.Context(), []string{snapshot}, []string{"guid"})
	require.NoError(t, err)
	guid, err := strconv.ParseUint(all[snapshot]["guid"].Value, 10, 64)
	require.NoError(t, err)
	return zfs.ReceiveSpec{Target: target, Arrival: zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: name, GUID: guid}}}}
}

// store receives a complete stream.
func store(t *testing.T, c *cli.CLI, r zfs.ReceiveSpec, b []byte) {
	t.Helper()
	r.Arrival = arriving(t, b)
	sink, err := c.OpenReceive(t.Context(), r)
	require.NoError(t, err)
	_, err = sink.Write(b)
	require.NoError(t, err)
	require.NoError(t, sink.Commit(t.Context()))
}

func TestFullAndIncremental(t *testing.T) {
	t.Parallel()
	p, q := zfstest.NewPool(t, zfstest.Options{}), zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	ds, target := p.Create("d"), q.Dataset("d")
	p.Write(ds, "f", 4<<20, 1)
	p.Snapshot(ds, "a")
	store(t, c, zfs.ReceiveSpec{Target: target, Set: map[string]string{"canmount": "noauto", "readonly": "on"}}, stream(t, c, zfs.SendSpec{Dataset: ds, To: "a"}))
	p.Write(ds, "g", 1<<20, 2)
	p.Snapshot(ds, "b")
	p.Write(ds, "h", 1<<20, 3)
	p.Snapshot(ds, "c")
	p.Snapshot(ds, "d")
	ranged := stream(t, c, zfs.SendSpec{Dataset: ds, From: "@a", Through: []string{"b"}, To: "c"})
	store(t, c, zfs.ReceiveSpec{Target: target}, ranged)
	store(t, c, zfs.ReceiveSpec{Target: target}, stream(t, c, zfs.SendSpec{Dataset: ds, From: "@c", To: "d"}))

	l, err := c.List(t.Context(), zfs.ListQuery{Dataset: target, Versions: true})
	require.NoError(t, err)
	require.Len(t, l.Datasets, 1)
	var got []string
	for _, v := range l.Datasets[0].Versions {
		got = append(got, v.Short())
		require.Equal(t, p.Get(ds+v.Short(), "guid"), strconv.FormatUint(v.GUID, 10))
	}
	require.Equal(t, []string{"@a", "@b", "@c", "@d"}, got)
	require.Equal(t, "noauto", q.Get(target, "canmount"))
	require.Equal(t, "on", q.Get(target, "readonly"))
}

// TestWithheldTailMakesNoSnapshot expects that a stream without its last TailSize bytes does not
// create its last snapshot, even if it is a range, which ends with two END records.
func TestWithheldTailMakesNoSnapshot(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	ds, target := p.Create("d"), p.Dataset("target")
	for _, s := range []string{"a", "b", "c"} {
		p.Write(ds, s, 1<<20, uint64(s[0]))
		p.Snapshot(ds, s)
	}
	for _, step := range []struct {
		spec zfs.SendSpec
		want []string
	}{
		{zfs.SendSpec{Dataset: ds, To: "a"}, nil},
		{zfs.SendSpec{Dataset: ds, From: "@a", Through: []string{"b"}, To: "c"}, []string{"@a", "@b"}},
	} {
		b := stream(t, c, step.spec)
		sink, err := c.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: target, Arrival: arriving(t, b)})
		require.NoError(t, err)
		_, err = sink.Write(b[:len(b)-sink.(transfer.TailHolder).Withhold()])
		require.NoError(t, err)
		require.Eventually(t, func() bool { // zfs receive has stored the rest
			l, err := c.List(t.Context(), zfs.ListQuery{Dataset: target, Versions: true})
			return err == nil && len(l.Datasets) == 1 && len(l.Datasets[0].Snapshots()) == len(step.want)
		}, testenv.Timeout(), 20*time.Millisecond)
		require.NoError(t, sink.Abort(errors.New("not genuine")))
		l, err := c.List(t.Context(), zfs.ListQuery{Dataset: target, Versions: true})
		require.NoError(t, err)
		require.Len(t, l.Datasets, 1)
		require.NotEmpty(t, l.Datasets[0].ResumeToken())
		var got []string
		for _, v := range l.Datasets[0].Snapshots() {
			got = append(got, v.Short())
		}
		require.Equal(t, step.want, got)
		require.Equal(t, step.want == nil, l.Datasets[0].Inconsistent())

		token := l.Datasets[0].ResumeToken()
		store(t, c, zfs.ReceiveSpec{Target: target}, stream(t, c, zfs.SendSpec{Dataset: ds, To: step.spec.To, Token: token}))
		require.Equal(t, p.Get(ds+"@"+step.spec.To, "guid"), p.Get(target+"@"+step.spec.To, "guid"))
	}
}

func TestAbortKeepsState(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	enc, _ := p.CreateEncrypted("e")
	p.Write(enc, "f", 8<<20, 1)
	p.Snapshot(enc, "a")
	p.ZFS("unmount", enc)
	p.ZFS("unload-key", enc)
	b := stream(t, c, zfs.SendSpec{Dataset: enc, To: "a", Flags: zfs.StreamFlags{Raw: true}})

	target := p.Dataset("target")
	sink, err := c.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: target, Arrival: arriving(t, b)})
	require.NoError(t, err)
	_, err = sink.Write(b[:len(b)/2])
	require.NoError(t, err)
	require.NoError(t, sink.Abort(errors.New("cut")))

	token, err := zfs.ParseToken(p.Get(target, "receive_resume_token"))
	require.NoError(t, err)
	require.Equal(t, enc+"@a", token.ToName)
	require.Equal(t, p.Get(enc+"@a", "guid"), strconv.FormatUint(token.ToGUID, 10))
	require.True(t, token.Flags.Raw)
	require.Greater(t, token.Bytes, uint64(1<<20))
	require.Less(t, token.Bytes, uint64(len(b)))

	// The partially received state blocks it until it is discarded.
	sink, err = c.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: target, Arrival: arriving(t, b)})
	require.NoError(t, err)
	_, _ = sink.Write(b)
	require.ErrorIs(t, sink.Commit(t.Context()), &zfs.Error{Kind: zfs.Exists})
	require.NoError(t, c.DiscardPartial(t.Context(), target))
	require.ErrorIs(t, c.DiscardPartial(t.Context(), target), &zfs.Error{Kind: zfs.NotFound}, "the dataset of a first receive is destroyed")
	require.NoError(t, c.DiscardPartial(t.Context(), enc), "nothing to discard")
}

func TestAbortOfWholeStream(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	p.Snapshot(p.Create("d"), "a")
	b := stream(t, c, zfs.SendSpec{Dataset: p.Dataset("d"), To: "a"})
	sink, err := c.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: p.Dataset("t"), Arrival: arriving(t, b)})
	require.NoError(t, err)
	_, err = sink.Write(b)
	require.NoError(t, err)
	require.ErrorContains(t, sink.Abort(errors.New("x")), "is stored")
}

// TestReceiveFailsEarly expects the child's message as the error, not a broken pipe.
func TestReceiveFailsEarly(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	ds := p.Create("d")
	p.Write(ds, "f", 4<<20, 1)
	p.Snapshot(ds, "a")
	whole := stream(t, c, zfs.SendSpec{Dataset: ds, To: "a"})
	for _, test := range []struct {
		name   string
		target string
		stream []byte
		want   zfs.Kind
	}{
		{"exists", ds, whole, zfs.Exists},
		{"no parent", p.Dataset("none/x"), whole, zfs.NotFound},
		{"no pool", "zxt-no-pool/x", whole, zfs.NotFound},
	} {
		sink, err := c.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: test.target, Arrival: arriving(t, whole)})
		require.NoError(t, err, test.name)
		for err == nil {
			_, err = sink.Write(test.stream)
		}
		require.ErrorIs(t, err, &zfs.Error{Kind: test.want}, test.name)
		var e *zfs.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, test.target, e.Subject)
		require.Equal(t, []string{"receive", "-s", "-u", test.target}, e.Argv[1:])
		require.NoError(t, sink.Abort(err), "nothing beyond the cause")
		require.ErrorIs(t, sink.Abort(errors.New("other")), &zfs.Error{Kind: test.want}, test.name)
	}
}

// TestReceiveRefusesGarbage sends bytes that are not records, and expects the gate to refuse them
// before zfs receive reads them.
func TestReceiveRefusesGarbage(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	ds := p.Create("d")
	p.Write(ds, "f", 4<<20, 1)
	p.Snapshot(ds, "a")
	whole := stream(t, c, zfs.SendSpec{Dataset: ds, To: "a"})
	sink, err := c.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: p.Dataset("x"), Arrival: arriving(t, whole)})
	require.NoError(t, err)
	damaged := append(whole[:1000:1000], bytes.Repeat([]byte("garbage "), 1<<18)...)
	for err == nil {
		_, err = sink.Write(damaged)
	}
	require.ErrorContains(t, err, "zfs receive "+p.Dataset("x")+": the stream is not what was planned: got a record of type")
	require.NoError(t, sink.Abort(err), "nothing beyond the cause")
	require.NotContains(t, p.ZFS("list", "-H", "-o", "name", "-t", "all"), p.Dataset("x")+"@")
}

func TestNoSpace(t *testing.T) {
	t.Parallel()
	p, small := zfstest.NewPool(t, zfstest.Options{}), zfstest.NewPool(t, zfstest.Options{Size: 80 << 20})
	c := newCLI(t)
	ds := p.Create("d")
	p.Write(ds, "f", 100<<20, 1)
	p.Snapshot(ds, "a")
	src, err := c.OpenSend(t.Context(), zfs.SendSpec{Dataset: ds, To: "a"})
	require.NoError(t, err)
	defer src.Close()
	sink, err := c.OpenReceive(t.Context(), full(t, c, ds, "a", small.Dataset("d")))
	require.NoError(t, err)
	_, err = io.CopyBuffer(struct{ io.Writer }{sink}, src, make([]byte, 1<<20))
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NoSpace})
	require.NoError(t, sink.Abort(err), "nothing beyond the cause")
}

func TestSendFails(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	enc, _ := p.CreateEncrypted("e")
	p.Snapshot(enc, "a")
	p.ZFS("unmount", enc)
	p.ZFS("unload-key", enc)
	for _, test := range []struct {
		spec zfs.SendSpec
		want zfs.Kind
	}{
		{zfs.SendSpec{Dataset: enc, To: "a"}, zfs.KeyMissing},
		{zfs.SendSpec{Dataset: enc, To: "none"}, zfs.NotFound},
		{zfs.SendSpec{Dataset: enc, From: "@none", To: "a"}, zfs.NotFound},
		{zfs.SendSpec{Dataset: enc, From: "#none", To: "a", Flags: zfs.StreamFlags{Raw: true}}, zfs.NotFound},
		{zfs.SendSpec{Dataset: enc, To: "a", Token: "1-abc"}, zfs.BadToken},
	} {
		src, err := c.OpenSend(t.Context(), test.spec)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, src)
		require.ErrorIs(t, err, &zfs.Error{Kind: test.want}, "%v", test.spec)
		require.NoError(t, src.Close())
	}
}

func TestSendEnds(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	ds := p.Create("d")
	p.Write(ds, "f", 30<<20, 1)
	p.Snapshot(ds, "a")
	c := newCLI(t)
	t.Run("by its context", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		src, err := c.OpenSend(ctx, zfs.SendSpec{Dataset: ds, To: "a"})
		require.NoError(t, err)
		_, err = src.Read(make([]byte, 100))
		require.NoError(t, err)
		cause := errors.New("enough")
		cancel(cause)
		_, err = io.Copy(io.Discard, src)
		require.ErrorIs(t, err, cause)
		require.NoError(t, src.Close())
	})
	t.Run("by Close", func(t *testing.T) {
		src, err := c.OpenSend(t.Context(), zfs.SendSpec{Dataset: ds, To: "a"})
		require.NoError(t, err)
		require.NoError(t, src.Close())
		_, err = io.Copy(io.Discard, src)
		require.Error(t, err)
	})
	t.Run("killed", func(t *testing.T) {
		src, err := c.OpenSend(t.Context(), zfs.SendSpec{Dataset: ds, To: "a"})
		require.NoError(t, err)
		defer src.Close()
		_, err = io.ReadFull(src, make([]byte, 100))
		require.NoError(t, err)
		for _, pid := range processes(t, "zfs", "send", ds+"@a") {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		_, err = io.Copy(io.Discard, src)
		require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Killed})
	})
	require.Empty(t, processes(t, "zfs", "send", ds+"@a"))
}

func TestReceiveCancelled(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	ds := p.Create("d")
	p.Write(ds, "f", 8<<20, 1)
	p.Snapshot(ds, "a")
	b := stream(t, c, zfs.SendSpec{Dataset: ds, To: "a"})
	ctx, cancel := context.WithCancel(t.Context())
	sink, err := c.OpenReceive(ctx, zfs.ReceiveSpec{Target: p.Dataset("t"), Arrival: arriving(t, b)})
	require.NoError(t, err)
	_, err = sink.Write(b[:len(b)/2])
	require.NoError(t, err)
	require.Eventually(t, func() bool { // zfs receive has started
		l, err := c.List(t.Context(), zfs.ListQuery{Dataset: p.Dataset("t")})
		return err == nil && len(l.Datasets) == 1
	}, testenv.Timeout(), 20*time.Millisecond)
	cancel()
	require.NoError(t, sink.Abort(context.Canceled))
	require.Empty(t, processes(t, "zfs", "receive", p.Dataset("t")))
	_, err = zfs.ParseToken(p.Get(p.Dataset("t"), "receive_resume_token"))
	require.NoError(t, err)
}

// processes returns the processes whose arguments contain all words, without zombies.
func processes(t *testing.T, words ...string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
next:
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // ended
		}
		for _, w := range words {
			if !strings.Contains(string(b), w) {
				continue next
			}
		}
		pid, err := strconv.Atoi(strings.Split(f, "/")[2])
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// TestChildProcess is not a test: TestParentKilled runs and kills it.
func TestChildProcess(t *testing.T) {
	role := os.Getenv("ZXFER_TEST_CHILD")
	if role == "" {
		t.Skip("is run by TestParentKilled only")
	}
	c := cli.New(nil)
	ds, target := os.Getenv("ZXFER_TEST_SOURCE"), os.Getenv("ZXFER_TEST_TARGET")
	src, err := c.OpenSend(t.Context(), zfs.SendSpec{Dataset: ds, To: "a"})
	require.NoError(t, err)
	if role == "receive" {
		sink, err := c.OpenReceive(t.Context(), full(t, c, ds, "a", target))
		require.NoError(t, err)
		_, err = io.CopyN(sink, src, 10<<20)
		require.NoError(t, err)
	} else {
		_, err = io.ReadFull(src, make([]byte, 1000))
		require.NoError(t, err)
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

// TestParentKilled kills this process with kill -9, and expects that no child is left and that the
// receive can be resumed.
func TestParentKilled(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	ds, target := p.Create("d"), p.Dataset("t")
	p.Write(ds, "f", 30<<20, 1)
	p.Snapshot(ds, "a")
	for _, role := range []string{"send", "receive"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestChildProcess$", "-test.v")
		cmd.Env = append(os.Environ(), "ZXFER_TEST_CHILD="+role, "ZXFER_TEST_SOURCE="+ds, "ZXFER_TEST_TARGET="+target)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var said bytes.Buffer
		for buf := make([]byte, 100); !strings.Contains(said.String(), "ready"); {
			n, err := out.Read(buf)
			require.NoError(t, err, said.String())
			said.Write(buf[:n])
		}
		require.NotEmpty(t, processes(t, "zfs", "send", ds))
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Eventually(t, func() bool {
			return len(processes(t, "zfs", "send", ds))+len(processes(t, "zfs", "receive", target)) == 0
		}, testenv.Timeout(), 50*time.Millisecond, role)
	}
	token, err := zfs.ParseToken(p.Get(target, "receive_resume_token"))
	require.NoError(t, err)
	require.Greater(t, token.Bytes, uint64(5<<20))
	c := newCLI(t)
	store(t, c, zfs.ReceiveSpec{Target: target}, stream(t, c, zfs.SendSpec{Dataset: ds, To: "a", Token: p.Get(target, "receive_resume_token")}))
	require.Equal(t, p.Get(ds+"@a", "guid"), p.Get(target+"@a", "guid"))
}
