package agent

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/budget"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

const floodedEnv = "ZXFER_TEST_FLOODED"

// TestRestrictedKeyFloodIsBounded sends large requests with a restricted key to an agent in a
// separate process, and expects its heap to remain below 400 MiB. An estimate of 16 MiB once took
// 1.5 GB.
func TestRestrictedKeyFloodIsBounded(t *testing.T) {
	if os.Getenv(floodedEnv) != "" {
		p, err := authz.Parse([]string{"receive=vault", "send=tank/vm"}, nil, false)
		require.NoError(t, err)
		s := newHost(func(context.Context) error { time.Sleep(50 * time.Millisecond); return nil })
		server := &Server{Host: s, Version: "1", SilenceTimeout: time.Hour, Guard: authz.NewGuard(p, s, func(string) {})}
		require.NoError(t, server.Serve(t.Context(), os.Stdin, os.Stdout))
		// This is heap memory obtained from the system, without memory of the race detector.
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		require.NoError(t, os.WriteFile(os.Getenv(floodedEnv), []byte(strconv.FormatUint(m.HeapSys, 10)), 0o600))
		return
	}
	if testing.Short() {
		t.Skip("not at the quick level: sends 80 MiB")
	}
	const long = 8 << 20
	fill := func(head, each, tail string) string {
		return head + strings.Repeat(each+",", long/(len(each)+1)-1) + each + tail
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	peak := filepath.Join(t.TempDir(), "peak")
	cmd.Env = append(os.Environ(), floodedEnv+"="+peak)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	out := bufio.NewReader(pipe)
	_, err = readHello(out)
	require.NoError(t, err)
	streams := mux.New(in, "")
	go func() { _ = streams.Run(out) }()
	messages, err := newDecompressor(streams.Control())
	require.NoError(t, err)
	id := uint64(0)
	answered := make(chan *message, 1000)
	go func() {
		defer close(answered)
		for {
			m, err := readMessage(messages, hosts.MaxAnswer, unlimitedCost)
			if err != nil {
				return
			}
			answered <- m
		}
	}()
	errors := 0
	for _, q := range []struct {
		op    string
		times int
		body  string
	}{
		{hosts.OpEstimate.Name(), 3, fill(`[`, `{}`, `]`)},
		{hosts.OpEstimate.Name(), 2, fill(`[`, `{"dataset":"tank/vm","to":"x","flags":{}}`, `]`)},
		{hosts.OpBookmark.Name(), 1, fill(`{`, `"":""`, `}`)},
		{hosts.OpFacts.Name(), 1, fill(`[`, `{}`, `]`)},
		{hosts.OpSnapshot.Name(), 3, fill(`[`, `"tank/vm/some/dataset@autosnap_2026-01-01_00:00:00_hourly"`, `]`)}, // a legitimate request
	} {
		for range q.times {
			id++
			text := fmt.Sprintf(`{"kind":"call","id":%d,"op":%q,"body":%s}`, id, q.op, q.body)
			_, err := streams.Control().Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
			require.NoError(t, err)
		}
	}
	for range id {
		if m := <-answered; m.Error != nil {
			errors++
		}
	}
	require.Less(t, errors, int(id), "a legitimate request succeeds")
	require.NoError(t, in.Close())
	for range answered { // until the agent exits
	}
	require.NoError(t, cmd.Wait())
	text, err := os.ReadFile(peak)
	require.NoError(t, err)
	heap, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	t.Logf("peak %d MiB, %d of %d refused", heap>>20, errors, id)
	require.Less(t, heap>>20, 400, "MiB")
}

// TestRestrictedKeyLimitsConcurrentCalls expects that short calls wait for their turn, so that they
// run few processes.
func TestRestrictedKeyLimitsConcurrentCalls(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, err := authz.Parse([]string{"receive=vault"}, nil, false)
		require.NoError(t, err)
		var running, most atomic.Int64
		s := newHost(func(ctx context.Context) error {
			n := running.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(time.Second)
			running.Add(-1)
			return nil
		})
		c := newSession(t.Context(), s, authz.NewGuard(p, newHost(nil), func(string) {}))
		go c.write(io.Discard)
		for id := range uint64(100) {
			require.NoError(t, c.start(&message{ID: id, Op: hosts.OpList.Name(), Body: json.RawMessage(`{"dataset":"vault"}`)}))
		}
		c.calls.Wait()
		require.EqualValues(t, maxShort, most.Load())
		c.end(nil)
	})
}

// TestUnreadAnswersAreBounded expects a limit of calls per session. If the client reads no
// answers, its calls do not end.
func TestUnreadAnswersAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, err := authz.Parse([]string{"receive=vault"}, nil, false)
		require.NoError(t, err)
		c := newSession(t.Context(), newHost(nil), authz.NewGuard(p, newHost(nil), func(string) {}))
		for id := range uint64(10 * maxCalls) {
			if err = c.start(&message{ID: id, Op: hosts.OpTransfer.Name(), Body: json.RawMessage(`{}`)}); err != nil {
				break
			}
			synctest.Wait()
		}
		require.ErrorContains(t, err, "calls at once")
		c.end(nil)
		c.calls.Wait()
	})
}

// TestAuditLogsRequestsRefusedUnread expects one audit line for each request that is refused
// before it is read.
func TestAuditLogsRequestsRefusedUnread(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		p, err := authz.Parse([]string{"receive=vault"}, nil, false)
		require.NoError(t, err)
		s := newHost(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		var mu sync.Mutex
		audit := ""
		c := newSession(t.Context(), s, authz.NewGuard(p, newHost(nil), func(line string) {
			mu.Lock()
			defer mu.Unlock()
			audit += line + "\n"
		}))
		go c.write(io.Discard)
		require.NoError(t, c.start(&message{ID: 1, Op: hosts.OpList.Name(), rejected: &oversize{1 << 30, budget.MinLimit}}))
		require.NoError(t, c.start(&message{ID: 2, Op: hosts.OpList.Name(), cost: maxInFlight, Body: json.RawMessage(`{"dataset":"vault"}`)}))
		require.NoError(t, c.start(&message{ID: 3, Op: hosts.OpHolds.Name(), cost: 1}))
		synctest.Wait()
		for id := range uint64(maxLong + 1) {
			require.NoError(t, c.start(&message{ID: 10 + id, Op: hosts.OpTransfer.Name(), Body: json.RawMessage(receiveInto("vault/a"))}))
		}
		synctest.Wait()
		c.end(nil)
		c.calls.Wait()
		require.Contains(t, audit, `refused "list": message of 1073741824 bytes`)
		require.Contains(t, audit, `refused "holds": holds: requests of more than`)
		require.Contains(t, audit, `refused "transfer": transfer: more than 64 streams at once`)
		require.Equal(t, 3, strings.Count(audit, "refused"), audit)
	})
}

// TestLargestLogLineIsWritten expects that the largest log line does not count against
// maxUnwritten.
func TestLargestLogLineIsWritten(t *testing.T) {
	t.Parallel()
	p, err := authz.Parse([]string{"receive=vault"}, nil, false)
	require.NoError(t, err)
	c := newSession(t.Context(), newHost(nil), authz.NewGuard(p, newHost(nil), func(string) {}))
	bare, err := encode(&message{Kind: logged, Text: "x"}, budget.MinLimit)
	require.NoError(t, err)
	c.trySend(&message{Kind: logged, Text: strings.Repeat("x", budget.MinLimit-len(bare)+lengthSize+1)})
	require.Len(t, c.queue, 1)
	read, written := io.Pipe()
	go c.write(written)
	_, err = io.CopyN(io.Discard, read, budget.MinLimit+lengthSize)
	require.NoError(t, err)
	c.enqueue(make([]byte, maxUnwritten)) // needs the whole limit of unread data
	_, err = io.CopyN(io.Discard, read, maxUnwritten)
	require.NoError(t, err)
	c.end(nil)
}

// FuzzRestrictedAgent searches for requests that make a restricted agent do something on its host
// that its policy does not permit.
func FuzzRestrictedAgent(f *testing.F) {
	for _, q := range questions() {
		var asked message
		r := lyingAgent(f, func(m *message) [][]byte { asked = *m; return answer(m, `0`) })
		_, _ = q.ask(f.Context(), r)
		_ = r.Close()
		f.Add(asked.Op, []byte(asked.Body), false)
	}
	for op, body := range map[string]string{
		hosts.OpTransfer.Name():   receiveInto(`vault/a","target":"tank`),
		hosts.OpDestroy.Name():    `["vault/a@x","vault/a@x%y","vault2@x"]`,
		hosts.OpProperties.Name(): `{"names":["tank/vm@x","tank"],"properties":["type"]}`,
		hosts.OpOffer.Name():      `{"mode":"tls","streams":1,"address":"10.0.0.1","deadline":1}`,
		hosts.OpHold.Name():       `{"tag":"zxfer:x","snapshots":["vault@x"]}`,
		hosts.OpApply.Name(): `{"changes":[{"op":"release","args":{"tag":"zxfer:x","snapshots":["vault/a@x"]}},{"op":"destroy","args":["vault2@x"]},
			{"op":"set-properties","args":{"dataset":"vault/a","set":{"mountpoint":"/"}}},{"op":"sync","args":"tank"}],"list":{"dataset":"tank/b"}}`,
	} {
		f.Add(op, []byte(body), true)
	}
	f.Fuzz(func(t *testing.T, op string, body []byte, appendOnly bool) {
		p, err := authz.Parse([]string{"receive=vault", "send=tank/vm"}, []string{"192.0.2.1"}, appendOnly)
		require.NoError(t, err)
		s := newHost(nil)
		c := newSession(t.Context(), s, authz.NewGuard(p, newHost(nil), func(line string) {
			require.Less(t, len(line), 1<<10)
			require.NotContains(t, line, "\n")
		}))
		c.host = noDevices{s}
		var m message
		raw := c.answer(t.Context(), &message{ID: 1, Op: op, Body: body})
		require.NoError(t, json.Unmarshal(raw[4:], &m))
		for _, asked := range s.all {
			requireGranted(t, asked, appendOnly)
		}
	})
}

// noDevices is a host on which a request for devices or measurements panics.
type noDevices struct{ *host }

func (h noDevices) Run(ctx context.Context, r *hosts.Request) error {
	switch r.Op.Name() {
	case hosts.OpInspectDevice.Name(), hosts.OpDeviceState.Name(), hosts.OpDigestDevice.Name(), hosts.OpDigestVolume.Name(), hosts.OpCapture.Name(), hosts.OpMeasure.Name():
		panic(r.Op.Name())
	}
	return h.host.Run(ctx, r)
}

// requireGranted checks independently what package authz permits.
func requireGranted(t *testing.T, asked []any, appendOnly bool) {
	t.Helper()
	in := func(name string, roots ...string) {
		dataset, _, _ := strings.Cut(strings.ReplaceAll(name, "#", "@"), "@")
		_, err := zfs.ParseDataset(dataset)
		require.NoError(t, err, "%v", asked)
		for _, root := range roots {
			if dataset == root || strings.HasPrefix(dataset, root+"/") {
				return
			}
		}
		t.Fatalf("%q was reached: %v", name, asked)
	}
	sends := func(s zfs.SendSpec, roots ...string) {
		in(s.Dataset, roots...)
		if s.From != "" && s.From[0] != '@' && s.From[0] != '#' {
			in(s.From, roots...)
		}
		require.Empty(t, s.Token, "the host has no version with this name")
	}
	roots := map[string][]string{
		zfs.OpList: {"vault", "tank/vm"}, zfs.OpGet: {"vault", "tank/vm"}, zfs.OpEstimate: {"tank/vm"}, zfs.OpSend: {"vault", "tank/vm"},
		zfs.OpSnapshot: {"tank/vm"}, zfs.OpHold: {"vault", "tank/vm"}, zfs.OpRelease: {"vault", "tank/vm"}, zfsmem.OpHolds: {"vault", "tank/vm"},
		zfs.OpDestroy: {"vault", "tank/vm"}, zfs.OpBookmark: {"vault", "tank/vm"}, zfs.OpCreate: {"vault"}, zfs.OpDiscard: {"vault"},
	}
	op, args := asked[0].(string), asked[1:]
	if names, ok := args[0].([]string); ok {
		for _, n := range names {
			if op != zfs.OpGet || n != "tank" {
				in(n, roots[op]...)
			}
		}
	}
	switch op {
	case zfs.OpDestroy:
		require.False(t, appendOnly)
		for _, n := range args[0].([]string) {
			require.True(t, strings.ContainsAny(n, "@#"), "datasets are never destroyed")
		}
	case zfs.OpRelease:
		require.True(t, !appendOnly || len(args[0].([]string)) == 0 || strings.HasPrefix(args[1].(string), "zxfer:"))
	case hosts.OpOffer.Name():
		o := args[0].(tcp.Offer)
		require.True(t, o.Peer == "" || o.Peer == "192.0.2.1", o.Peer)
	case hosts.OpTransfer.Name():
		task := args[0].(hosts.Task)
		require.NotContains(t, []string{"device", "noise"}, task.Moves())
		if from, ok := task.From.(hosts.SendStream); ok {
			sends(from.Spec, "tank/vm")
		}
		if to, ok := task.To.(hosts.ReceiveStream); ok {
			r := to.Spec
			in(r.Target, "vault")
			require.False(t, r.Rollback)
			if r.Origin != "" {
				in(r.Origin, "vault")
			}
			for _, name := range []string{"mountpoint", "sharenfs", "setuid", "devices", "exec"} {
				require.NotContains(t, r.Set, name)
			}
		}
		for _, end := range []any{task.From, task.To} {
			if d, ok := end.(hosts.Dial); ok {
				require.Contains(t, d.Ticket.Address, "192.0.2.1")
			}
		}
	default:
		require.Contains(t, roots, op, "no restricted key permits it")
	}
}
