package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/files"
	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
	"zxfer/pkg/probe"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// lyingAgent returns the client of an agent that answers each call with the messages from answers.
func lyingAgent(t testing.TB, answers func(*message) [][]byte) *Remote {
	t.Helper()
	requestsR, requestsW := io.Pipe()
	answersR, answersW := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer answersW.Close()
		streams := mux.New(answersW, hello("1.0"))
		ran := make(chan struct{})
		go func() { defer close(ran); _ = streams.Run(requestsR) }()
		defer func() { <-ran }()
		out, _ := newCompressor(streams.Control())
		for {
			m, err := readMessage(streams.Control(), hosts.MaxRequest, unlimitedCost)
			if err != nil {
				return
			}
			if m.Kind != call {
				continue
			}
			for _, text := range answers(m) {
				if _, err := out.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
					return
				}
			}
		}
	}()
	way := &line{Reader: answersR, Writer: requestsW, mute: make(chan struct{})}
	way.closing = sync.OnceValue(func() error {
		_ = requestsW.Close()
		_ = answersR.Close()
		<-ended
		return nil
	})
	r, err := NewRemote(t.Context(), "beta", way, func(string) {})
	require.NoError(t, err)
	return r
}

func answer(m *message, body string) [][]byte {
	return [][]byte{[]byte(fmt.Sprintf(`{"kind":"result","id":%d,"body":%s}`, m.ID, body))}
}

// question is an operation of a host with a valid answer.
type question struct {
	op     string
	ask    func(context.Context, hosts.Host) (any, error)
	honest any
}

// ask returns the question of an operation.
func ask[A, R any](op hosts.Op[A, R], args A, honest R) question {
	return question{op.Name(), func(ctx context.Context, s hosts.Host) (any, error) {
		return hosts.Watch(ctx, s, op, args, func(p transfer.Progress) { _ = transfer.LimitedBy(p.Stages, p.Stages, p.Network) })
	}, honest}
}

const devicePath = "/dev/sda"

func questions() []question {
	send := zfs.SendSpec{Dataset: "tank/a", From: "@w", To: "x"}
	disk := device.Facts{Path: devicePath, Real: devicePath, Kind: device.KindDisk, Size: 3 << 20, Serial: "S", LogicalSector: 512,
		Partitions: []device.Partition{{Name: "sda1", Start: 1, Size: 2}}, Signatures: []device.Signature{{Device: "sda", Type: "ext4", Offset: 1080, Label: "l"}},
		Mounts: []device.Mount{{Device: "sda1", Point: "/mnt", Type: "ext4"}}, Holders: []device.Holder{{Name: "dm-0", Kind: "lvm"}}, Underlying: []string{"sda"}}
	image := device.Facts{Path: "/srv/i", Real: "/srv/i", Kind: device.KindMissing}
	var options device.Options
	options.Block = 1 << 20
	copies := device.Task{Source: disk, Target: image, Write: true, Request: device.Request{Options: options}}
	snapshot := device.VolumeSnapshot{Dataset: "tank/vm", Name: "x", GUID: 9, Size: 3 << 20}
	network := &tcp.Network{Streams: 1, RTT: 5, Congestion: "cubic", BusyTime: 9}
	moment := transfer.Progress{Bytes: 7, Elapsed: 8, Stages: []transfer.Stage{{Name: transfer.StageRead, Bytes: 7, Busy: 1, WaitIn: 2, WaitOut: 3}}, Network: network}
	offer := tcp.Offer{Mode: tcp.TLS, Streams: 2, Address: "192.0.2.1", Deadline: time.Minute}
	digest, sum := strings.Repeat("ab", 32), strings.Repeat("ab", 16)
	copied := device.Account{Size: 3 << 20, Block: 1 << 20, SourceDigest: digest, TargetDigest: digest, BadRanges: []device.Range{{Start: 1, Length: 2}}}
	facts := hosts.Facts{Hostname: "beta", CPUs: 3, SSHLocal: "192.0.2.1", SSHPeer: "2001:db8::1", TCP: tcp.TCP{TCPReadMax: 6 << 20}}
	listing := zfs.Listing{Root: "tank/a", Pool: zfs.Pool{Name: "tank", Properties: map[string]string{"free": "7"}, Features: map[string]string{"lz4_compress": "active"}},
		Ancestors: []*zfs.Dataset{{Name: "tank", Type: zfs.Filesystem, Properties: map[string]zfs.Property{}}},
		Datasets: []*zfs.Dataset{{Name: "tank/a", Type: zfs.Filesystem, GUID: 7, Properties: map[string]zfs.Property{"used": {Value: "1", Source: "-"}},
			Versions: []zfs.Version{{Kind: zfs.Bookmark, Name: "w", GUID: 8, CreateTXG: 5}, {Kind: zfs.Snapshot, Name: "x", GUID: 9, CreateTXG: 6}}}}}
	names := []string{"tank/a@w", "tank/a@x"}
	all := []question{
		ask(hosts.OpFacts, hosts.None{}, facts),
		ask(hosts.OpHostFacts, hosts.None{}, facts),
		ask(hosts.OpList, hosts.ListQuery{Dataset: "tank/a", Recursive: true, Versions: true}, listing),
		ask(hosts.OpApply, hosts.ChangeList{Changes: []hosts.Change{hosts.OpHold.Change(hosts.Tagged{Tag: "t", Snapshots: names})},
			List: &hosts.ListQuery{Dataset: "tank/a", Recursive: true, Versions: true}}, listing),
		ask(hosts.OpDatasetOf, "/mnt", "tank/a"),
		ask(hosts.OpProperties, hosts.PropertyQuery{Names: names, Properties: []string{"guid", "used"}},
			map[string]map[string]zfs.Property{"tank/a@w": {"guid": {Value: "8", Source: "-"}}}),
		ask(hosts.OpEstimate, []zfs.SendSpec{send, send}, []uint64{7, 1<<64 - 1}),
		ask(hosts.OpHolds, names, map[string][]string{"tank/a@x": {"zxfer:t"}}),
		ask(hosts.OpMount, zfs.MountRequest{Dataset: "tank/a", Boot: true}, "user 1000 can change /srv"),
		ask(hosts.OpMountpoints, hosts.None{}, []zfs.Mountpoint{{Dataset: "tank/a", At: "/srv/a"}}),
		ask(hosts.OpInUse, []string{"/tank/a"}, map[string]string{"/tank/a": "is not empty (x)"}),
		ask(hosts.OpDigest, hosts.ContentQuery{SendSpec: send}, hosts.Digest{Sum: sum, Bytes: 7, Zeroed: sum, BlockSizes: sum}),
		ask(hosts.OpOffer, offer, ticketFor(offer)),
		ask(hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: send}, To: hosts.Accept{Session: "s"}},
			hosts.Result{Result: transfer.Result{Progress: moment, WireBytes: 9, Frames: 1, Digest: sum}}),
		ask(hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: "s"}, To: hosts.WriteDevice{Task: copies}},
			hosts.Result{Result: transfer.Result{Progress: moment}, Device: &copied}),
		ask(hosts.OpTransfer, hosts.Task{From: hosts.SendFiles{Archive: files.Archive{Snapshot: "tank/a@x", Paths: []string{"b"}}}, To: hosts.Accept{Session: "s"}},
			hosts.Result{Result: transfer.Result{Progress: moment}, Files: &files.Account{New: 1, Bytes: 3, Names: []string{"b"},
				Failures: files.Failures{Failed: 1, Problems: []files.Problem{{Path: "b/c", Why: "damaged"}}}}}),
		ask(hosts.OpInspectDevice, devicePath, disk),
		ask(hosts.OpDeviceState, copies, device.State{Started: true, Stored: 1 << 20, Unusable: "why"}),
		ask(hosts.OpDigestDevice, device.DigestQuery{Device: disk, Options: options},
			device.Digest{Result: device.Result{Result: transfer.Result{Progress: moment}, Device: copied}, Parts: [][]byte{{1}, {2}, {3}}, PartBytes: 1 << 20}),
		ask(hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: "s"}, To: hosts.WriteVolume{Volume: device.VolumeTask{Target: image, Snapshot: snapshot}}},
			hosts.Result{Result: transfer.Result{Progress: moment, Digest: sum}, Device: &device.Account{Size: 3 << 20, Data: 1}}),
		ask(hosts.OpDigestVolume, hosts.VolumeDigestQuery{Snapshot: snapshot, Options: options},
			device.Digest{Result: device.Result{Result: transfer.Result{Progress: moment}, Device: copied}, Parts: [][]byte{{1}, {2}, {3}}, PartBytes: 1 << 20}),
		ask(hosts.OpReadFiles, files.Query{Snapshot: "tank/a@x", Sample: 1, Within: 1},
			files.Digest{Files: 2, Size: 3, Read: 1, Bytes: 3, Parts: slices.Repeat([]string{sum}, files.Parts),
				Listed:   []files.File{{Path: "a/b", Type: files.Regular, Size: 3, Mode: 0o644, Sum: sum, Meta: sum}},
				Failures: files.Failures{Failed: 2, Problems: []files.Problem{{Path: "a/c", Why: "damaged: input/output error"}}}}),
		ask(hosts.OpBlockSizes, files.BlockQuery{Snapshot: "tank/a@x", Inodes: []uint64{7}},
			files.BlockSizes{Files: 2, Paths: []files.InodePath{{Inode: 7, Path: "a/b"}}}),
		ask(hosts.OpCreateDrillClone, zfs.DrillClone{Snapshot: "tank/a@x", Job: "j"},
			zfs.DrillCloneName("tank", "1")),
		ask(hosts.OpRunInDrillClone, zfs.DrillCommand{Clone: zfs.DrillCloneName("tank", "1"), Argv: []string{"/bin/true"}, Timeout: 1},
			zfs.DrillResult{Output: "well"}),
		ask(hosts.OpSnapshotFrozen, freeze.Request{Job: "j", Snapshots: []string{"tank/a@x"}, Applications: []freeze.Application{{Datasets: []string{"tank/a"}}}},
			freeze.Result{Outcomes: []freeze.Outcome{{Error: "why", Hint: "how", Seconds: 0.5, Position: "GTID 0-1-2", ThawFailed: true}}, MarkError: "no rights"}),
		ask(hosts.OpRenameCopies, []zfs.RenamedCopy{{Dataset: "tank/a", GUID: 1, As: "tank/b", Base: 2}}, hosts.None{}),
		ask(hosts.OpDestroyOrphans, []zfs.Orphan{{Dataset: "tank/a", GUID: 1, Tag: "zxfer:j:t"}}, hosts.None{}),
		ask(hosts.OpCapture, true, "-- a --\n"),
		ask(hosts.OpMeasure, probe.Request{ID: probe.Memory},
			probe.Ceiling{ID: probe.Memory, BytesPerSecond: 7, Seconds: 1, CPU: 1, Network: network, Stages: moment.Stages}),
		ask(hosts.OpPermitted, "tank/a", zfs.Permitted{Here: []string{"send:raw"}, Below: []string{"userprop"}}),
		ask(hosts.OpDamage, "tank/a",
			zfs.Damage{Objects: []zfs.DamagedObject{{Dataset: "tank/a", Snapshot: "x", Path: "/f", Shown: "tank/a@x:/f"}}, Scan: zfs.Scan{Running: true, Percent: 50}}),
	}
	for _, op := range hosts.Operations() { // the others have no answer
		if slices.ContainsFunc(all, func(q question) bool { return q.op == op.Name() }) {
			continue
		}
		args := arguments(op)
		fill(args)
		all = append(all, question{op.Name(), func(ctx context.Context, s hosts.Host) (any, error) {
			return nil, s.Run(ctx, op.Request(args.Interface(), nil))
		}, hosts.None{}})
	}
	return all
}

// TestCorrectAnswersAreAccepted expects that correct answers are accepted for every operation.
func TestCorrectAnswersAreAccepted(t *testing.T) {
	t.Parallel()
	for _, q := range questions() {
		body, err := json.Marshal(q.honest)
		require.NoError(t, err)
		r := lyingAgent(t, func(m *message) [][]byte { require.Equal(t, q.op, m.Op); return answer(m, string(body)) })
		got, err := q.ask(t.Context(), r)
		require.NoError(t, err, q.op)
		if got != nil {
			require.Equal(t, q.honest, got, q.op)
		}
		require.NoError(t, r.Close())
	}
}

// falseValues returns false values that replace each value of each answer.
func falseValues() []string {
	return []string{`null`, `-1`, `-9223372036854775808`, `9223372036854775807`, `18446744073709551615`, `1e300`, `""`, `"-9223372036854775808"`,
		`"\u001b[2J\u0007"`, `"../../etc/passwd"`, `"tank/a@x\u0000"`, `"-"`, `"@"`, `"0.0.0.0"`, `"192.0.2.7:22"`, `[]`, `{}`, `[null]`, `[[]]`, `[{}]`, `{"":null}`, `true`,
		`"` + strings.Repeat("x", 20<<10) + `"`, `[` + strings.Repeat(`{},`, 300) + `{}]`}
}

// TestFalseFieldInAnswers expects that a false value in any one field causes no panic, no
// impossible size, and no raw text on a terminal.
func TestFalseFieldInAnswers(t *testing.T) {
	t.Parallel()
	every := testenv.Rounds(12, 6, 1)
	first := rand.IntN(every)
	told, at := 0, 0
	for _, q := range questions() {
		body, err := json.Marshal(q.honest)
		require.NoError(t, err)
		var next string
		r := lyingAgent(t, func(m *message) [][]byte {
			return append([][]byte{[]byte(fmt.Sprintf(`{"kind":"progress","id":%d,"body":%s}`, m.ID, next))}, answer(m, next)...)
		})
		values := 0
		for done := false; !done; values++ {
			_, done = withFalseValue(string(body), values, "0")
		}
		for _, lie := range falseValues() {
			for i := range values - 1 {
				if at++; at%every != first {
					continue
				}
				next, _ = withFalseValue(string(body), i, lie)
				told++
				got, err := q.ask(t.Context(), r)
				if err != nil {
					require.Contains(t, err.Error(), "beta", "%s: %s", q.op, next)
					continue
				}
				requirePlausible(t, q, got, next)
			}
		}
		require.NoError(t, r.Close())
	}
	require.Greater(t, told, 5000/every)
}

// withFalseValue replaces the i-th value of an answer with a false value.
func withFalseValue(body string, i int, lie string) (text string, done bool) {
	var v any
	if json.Unmarshal([]byte(body), &v) != nil {
		return "", true
	}
	n := 0
	var walk func(any) any
	walk = func(v any) any {
		n++
		if n-1 == i {
			return json.RawMessage(lie)
		}
		switch v := v.(type) {
		case map[string]any:
			out := map[string]any{}
			for _, k := range slices.Sorted(maps.Keys(v)) {
				out[k] = walk(v[k])
			}
			return out
		case []any:
			out := make([]any, len(v))
			for k, e := range v {
				out[k] = walk(e)
			}
			return out
		}
		return v
	}
	out := walk(v)
	if n <= i {
		return "", true
	}
	raw, err := json.Marshal(out)
	return string(raw), err != nil
}

// requirePlausible checks an accepted answer.
func requirePlausible(t testing.TB, q question, got any, text string) {
	t.Helper()
	switch got := got.(type) {
	case tcp.Ticket:
		require.Contains(t, got.Address, "192.0.2.1:", text)
		require.NoError(t, got.Check(), text)
		require.Equal(t, []any{tcp.TLS, 2, time.Minute}, []any{got.Mode, got.Streams, got.Deadline}, text)
	case device.Digest:
		require.NotNil(t, got.Result.Device, text)
		require.Len(t, got.Result.Device.SourceDigest, 64, text)
		require.Len(t, got.Parts, 3, text)
	case device.State:
		require.LessOrEqual(t, got.Stored, int64(3<<20), text)
	case device.Facts:
		require.Equal(t, devicePath, got.Path, text)
	case hosts.Result:
		_ = transfer.LimitedBy(got.Stages, got.Stages, got.Network)
	case hosts.Digest:
		require.Len(t, got.Sum, 32, text)
	case zfs.Listing:
		require.Equal(t, "tank/a", got.Root)
		for _, d := range got.Datasets {
			require.True(t, d.Name == "tank/a" || strings.HasPrefix(d.Name, "tank/a/"), text)
			require.NotNil(t, d.Properties, text)
		}
	case []uint64:
		require.Len(t, got, 2, text)
	}
	switch got.(type) {
	case map[string]map[string]zfs.Property, zfs.Listing, []uint64, tcp.Ticket: // ZFS determines the values
	default:
		if q.op == hosts.OpCapture.Name() {
			return // the reader of a capture accepts any text
		}
		requireSane(t, reflect.ValueOf(got), q.op != hosts.OpInspectDevice.Name(), q.op+": "+text)
	}
}

// requireSane checks independently what package hosts accepts as plausible.
func requireSane(t testing.TB, v reflect.Value, print bool, text string) {
	t.Helper()
	if !v.IsValid() {
		return
	}
	if _, ok := v.Interface().(time.Time); ok {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		requireSane(t, v.Elem(), print, text)
	case reflect.Struct:
		for i := range v.NumField() {
			requireSane(t, v.Field(i), print, text)
		}
	case reflect.Slice:
		for i := range v.Len() {
			requireSane(t, v.Index(i), print, text)
		}
	case reflect.String:
		require.LessOrEqual(t, v.Len(), 16<<10, text)
		if print {
			require.NotContains(t, v.String(), "\x1b", text)
		}
	case reflect.Int, reflect.Int64:
		require.GreaterOrEqual(t, v.Int(), int64(0), text)
		require.LessOrEqual(t, v.Int(), int64(1)<<60, text)
	case reflect.Float64:
		require.LessOrEqual(t, math.Abs(v.Float()), float64(1<<60), text)
	}
}

// FuzzLyingAgent lets an agent answer with fuzzed data: as a body, as an error
// or as a whole message, after fuzzed progress.
func FuzzLyingAgent(f *testing.F) {
	all := questions()
	for i, q := range all {
		body, err := json.Marshal(q.honest)
		require.NoError(f, err)
		f.Add(uint8(i), uint8(0), body, []byte(`{"bytes":1}`))
		f.Add(uint8(i), uint8(0), []byte(`null`), []byte(`{"bytes":-1,"stages":[{"busy_ns":-9223372036854775808}]}`))
	}
	f.Add(uint8(0), uint8(1), []byte(`{"text":"x","class":3,"is":["lost","cut"],"zfs":{"kind":"busy","host":"gamma"},"peer":"p"}`), []byte(`{}`))
	f.Add(uint8(0), uint8(2), []byte(`{"kind":"result","id":1,"ID":2,"body":{}}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, which, mode uint8, text, report []byte) {
		q := all[int(which)%len(all)]
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := lyingAgent(t, func(m *message) [][]byte {
			out := [][]byte{[]byte(fmt.Sprintf(`{"kind":"progress","id":%d,"body":%s}`, m.ID, report))}
			switch mode % 3 {
			case 0:
				return append(out, answer(m, string(text))...)
			case 1:
				return append(out, []byte(fmt.Sprintf(`{"kind":"result","id":%d,"error":%s}`, m.ID, text)))
			}
			// The call must end, however the agent answered.
			return append(append(out, text), answer(m, `0`)...)
		})
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
		defer cancel()
		got, err := q.ask(ctx, r)
		require.NoError(t, ctx.Err(), "it took too long")
		if err != nil {
			require.Contains(t, err.Error(), "beta")
		} else {
			requirePlausible(t, q, got, string(text))
		}
		require.NoError(t, r.Close())
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20+400*(len(text)+len(report))))
	})
}

// TestAnswerMemoryIsBounded expects that an answer costs only a small multiple of its
// size in memory, including the lying agent's. 63 MiB of "{}" once took 6.4 GB and half a minute for any operation.
func TestAnswerMemoryIsBounded(t *testing.T) {
	long := testenv.Rounds(1, 4, 4) << 20
	flood := func(head, each, tail string) string {
		return head + strings.Repeat(each+",", long/(len(each)+1)-1) + each + tail
	}
	for name, body := range map[string]string{
		"objects":  flood(`[`, `{}`, `]`),
		"nulls":    flood(`[`, `null`, `]`),
		"datasets": flood(`{"root":"tank/a","datasets":[`, `{}`, `]}`),
		"versions": flood(`{"root":"tank/a","datasets":[{"versions":[`, `{}`, `]}]}`),
		"stages":   flood(`{"stages":[`, `{}`, `]}`),
		"parts":    flood(`{"parts":[`, `""`, `]}`),
		"a string": `"` + strings.Repeat("x", long) + `"`,
	} {
		text := answer(&message{ID: 1}, body)[0]
		for _, q := range questions() {
			if !slices.Contains([]string{hosts.OpList.Name(), hosts.OpEstimate.Name(), hosts.OpDigestDevice.Name(), hosts.OpDigestVolume.Name(), hosts.OpTransfer.Name()}, q.op) {
				continue
			}
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := lyingAgent(t, func(m *message) [][]byte { return [][]byte{text} })
			_, err := q.ask(t.Context(), r)
			runtime.ReadMemStats(&after)
			require.Less(t, (after.TotalAlloc-before.TotalAlloc)/uint64(long), uint64(8), "%s to %s", name, q.op)
			require.ErrorContains(t, err, "beta: malformed answer of "+q.op, name)
			require.NoError(t, r.Close())
		}
	}
}

func TestLogLineFloodIsTruncated(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(nil))
		for range 3 * maxLines {
			g.handle(&message{Kind: logged, Text: strings.Repeat("x", maxLine+1)})
		}
		require.Len(t, g.logs, maxLines)
		require.Less(t, len(<-g.logs), maxLine+20)
		for len(g.logs) > 0 {
			<-g.logs
		}
		time.Sleep(logWindow)
		g.handle(&message{Kind: logged, Text: "after"})
		require.Equal(t, "beta: omitted 400 lines of its log", <-g.logs)
		require.Equal(t, "beta: after", <-g.logs)
	})
}
