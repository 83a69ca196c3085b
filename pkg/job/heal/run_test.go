package heal

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/zfs"
)

// damagedWorld returns a world with src/a and src/b, their copies in dst, and a list of data
// errors.
func damagedWorld(t *testing.T, damaged ...zfs.DamagedObject) *jobtest.World {
	t.Helper()
	w := jobtest.NewWorld(t, map[string][]string{"src/a": {"1", "2"}, "src/b": {"1", "2"}, "dst": nil})
	for _, name := range []string{"a", "b"} {
		w.Memory.Copy("src/"+name, "dst/"+name, "1", "2")
		w.Memory.Set("dst/"+name, "readonly", "on")
	}
	w.Memory.Damaged = zfs.Damage{Objects: damaged, Scan: zfs.Scan{Text: "scrub repaired 0B with 1 errors on Sun", Errors: 1}}
	return w
}

// failOnce makes the nth operation fail, and passes its name to failed.
func failOnce(w *jobtest.World, nth int, failed func(op string)) {
	var one sync.Mutex // both ends are queried concurrently
	n := 0
	w.Before = func(op string) error {
		one.Lock()
		defer one.Unlock()
		if n++; n == nth {
			failed(op)
			return errors.New("broken")
		}
		return nil
	}
}

func file(dataset, snapshot, path string) zfs.DamagedObject {
	shown := dataset + ":" + path
	if snapshot != "" {
		shown = dataset + "@" + snapshot + ":" + path
	}
	return zfs.DamagedObject{Dataset: dataset, Snapshot: snapshot, Path: path, Shown: shown}
}

// healSrc returns a request to heal src from its copies in dst, which a job keeps.
func healSrc(change func(*Request)) Request {
	req := Request{At: endpoint.Endpoint{Name: "src"}, SnapshotSuffix: "now", Copies: []Copy{
		{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst/a"}, Job: "a"},
		{Source: endpoint.Endpoint{Name: "src/b"}, Target: endpoint.Endpoint{Name: "dst/b"}, Job: "b"},
	}}
	if change != nil {
		change(&req)
	}
	return req
}

// assertSnapshots fails if a dataset has other snapshots than at the start.
func assertSnapshots(t *testing.T, w *jobtest.World, failed ...string) {
	t.Helper()
	for _, name := range []string{"src/a", "src/b", "dst/a", "dst/b"} {
		var have []string
		for _, v := range w.Memory.Versions(name) {
			have = append(have, v.Short())
		}
		require.Equal(t, []string{"@1", "@2"}, have, "%s, %v failed", name, failed)
	}
}

// TestHealContinuesAfterFailure fails one operation after the other, and expects that the same command then
// succeeds and leaves nothing behind.
func TestHealContinuesAfterFailure(t *testing.T) {
	t.Parallel()
	for fails, failed := 1, true; failed; fails++ {
		failed = false
		w := damagedWorld(t, file("src/a", "", "/f"), file("src/b", "", "/g"))
		op := ""
		failOnce(w, fails, func(o string) { failed, op = true, o })
		r, err := Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
		w.Before = nil
		for range 2 { // a second retry succeeds
			if err == nil {
				break
			}
			require.NotEqual(t, outcome.Done, r.Outcome, op)
			r, err = Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
		}
		require.NoError(t, err, "failed at %d, %s", fails, op)
		require.Contains(t, []string{outcome.Done, outcome.UpToDate}, r.Outcome, op)
		require.Empty(t, w.Memory.Damaged.Objects, op)
		assertSnapshots(t, w, op)
		require.Less(t, fails, 200)
	}
}

// TestPartialHeal expects the report to distinguish healed, unhealed and unknown objects.
func TestPartialHeal(t *testing.T) {
	t.Parallel()
	lasting := file("src/a", "1", "/old")
	w := damagedWorld(t, file("src/a", "", "/f"), lasting, file("src/b", "", "/g"), file("src/c", "", "/h"),
		zfs.DamagedObject{Shown: "<metadata>:<0x1>"}, zfs.DamagedObject{Dataset: "src/a", Object: "0x5", Shown: "src/a:<0x5>"})
	w.Memory.Create("src/c", nil)
	w.Memory.Heals = func(t zfs.DamagedObject, _ uint64) bool { return t.Shown != lasting.Shown && t.Object == "" }
	r, err := Run(t.Context(), healSrc(func(h *Request) { h.DryRun = true; h.Flags = []string{"--config", "my file"} }), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Planned, r.Outcome)
	require.Equal(t, "dst/a", r.Datasets[0].Copy)
	require.Contains(t, r.Datasets[2].Remedy, "zxfer heal --config 'my file' src/c HOST:COPY")
	require.Empty(t, w.Changes)

	r, err = Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
	require.Equal(t, fault.Failed, fault.ClassOf(err))
	require.ErrorContains(t, err, "4 errors are not healed")
	require.Contains(t, r.Objects[0].Read, "was not read: ", "mounts are not possible")
	became := map[string]string{}
	for _, thing := range r.Objects {
		became[thing.Shown] = thing.Outcome
	}
	require.Equal(t, map[string]string{"src/a:/f": Healed, "src/b:/g": Healed, lasting.Shown: NotHealed,
		"src/c:/h": NotHealed, "<metadata>:<0x1>": NotHealed, "src/a:<0x5>": NotHealed}, became)
	require.Equal(t, "zxfer restore --files /old dst/a@1 ./restored", r.Objects[1].Remedy)
	assertSnapshots(t, w)
}

// TestHealWithDamagedCopy expects that a damaged copy is reported before the transfer, and
// that an intact copy is preferred.
func TestHealWithDamagedCopy(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t, file("src/a", "", "/f"), file("dst/a", "", "/x"), file("dst/b", "", "/y"))
	dry := healSrc(func(h *Request) { h.DryRun = true })
	look := func() *Dataset {
		r, err := Run(t.Context(), dry, hosts.New(w), send.Quiet{})
		require.NoError(t, err)
		require.Len(t, r.Datasets, 1)
		return r.Datasets[0]
	}
	require.Contains(t, look().Note, "it is damaged, 1 error")
	w.Memory.Copy("src/a", "dst/other", "1", "2")
	w.Memory.Set("dst/other", "readonly", "on")
	dry.Copies = append(dry.Copies, Copy{Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst/other"}})
	require.Equal(t, "dst/other", look().Copy)
	require.Empty(t, look().Note)
}

// TestHealRefusesPartiallyReceivedCopy expects that a copy with partially received state is
// refused, because its job may be running.
func TestHealRefusesPartiallyReceivedCopy(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t, file("src/a", "", "/f"))
	w.Memory.Set("dst/a", "receive_resume_token", "1-a")
	r, err := Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Contains(t, r.Datasets[0].Why, "partially received")
	require.Contains(t, r.Datasets[0].Remedy, "zfs receive -A dst/a")
	assertSnapshots(t, w)
}

// TestFalseErrorList sends false error lists, and expects that they are bounded and limited
// to the requested pool.
func TestFalseErrorList(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lie  func(d map[string]any)
		want string
	}{
		"name with a newline":                {func(d map[string]any) { firstObject(d)["path"] = "/f\nzfs destroy -r src" }, "control characters"},
		"shown text with control characters": {func(d map[string]any) { firstObject(d)["shown"] = "\x1b[2J" }, "control characters"},
		"another dataset":                    {func(d map[string]any) { firstObject(d)["dataset"] = "other" }, "src/a"},
		"invalid dataset":                    {func(d map[string]any) { firstObject(d)["dataset"] = "src/a/-r;x" }, "has the character"},
		"invalid snapshot":                   {func(d map[string]any) { firstObject(d)["snapshot"] = "1@2" }, "1@2"},
		"a long name":                        {func(d map[string]any) { firstObject(d)["path"] = strings.Repeat("x", 1<<14) }, "too long"},
		"invalid count":                      {func(d map[string]any) { d["of_pool"] = -1 }, "out of bounds"},
		"a long list": {func(d map[string]any) {
			for range zfs.MaxDamage {
				d["things"] = append(d["things"].([]any), firstObject(d))
			}
		}, "out of bounds"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := damagedWorld(t, file("src/a", "", "/f"))
			there := &jobtest.LyingHost{World: w, Alter: func(_ int, body any) any {
				if d, ok := body.(map[string]any); ok && d["things"] != nil {
					tt.lie(d)
				}
				return body
			}}
			req := healSrc(func(h *Request) {
				h.At = endpoint.Endpoint{Host: "there", Name: "src/a"}
				h.Copies[0].Source.Host = "there"
			})
			_, err := Run(t.Context(), req, hosts.New(there), send.Quiet{})
			require.ErrorContains(t, err, tt.want)
			assertSnapshots(t, w)
		})
	}
}

func firstObject(d map[string]any) map[string]any { return d["things"].([]any)[0].(map[string]any) }

// TestSnapshotsSharingDamage uses an error list from right after a scrub, which omits
// snapshots that share damage with the live data. It expects that these snapshots do not count as
// healed.
func TestSnapshotsSharingDamage(t *testing.T) {
	t.Parallel()
	h := &healJob{report: &Report{Scrubbed: true, Objects: []*Object{
		{DamagedObject: file("src/a", "", "/f")}, {DamagedObject: file("src/a", "1", "/f")}, {DamagedObject: file("src/a", "1", "/g")}}}}
	require.Equal(t, 2, h.recordOutcomes(zfs.Damage{Objects: []zfs.DamagedObject{file("src/a", "", "/f"), file("src/a", "2", "/g")}}, ""))
	require.Equal(t, NotHealed, h.report.Objects[1].Outcome)
	require.Equal(t, Healed, h.report.Objects[2].Outcome)
}

// incrementalWorld returns a world with src/a, whose /d/f is damaged, and its copy. It also returns the
// names of its snapshots by GUID, and its live files.
func incrementalWorld(t *testing.T) (w *jobtest.World, names map[uint64]string, head string) {
	t.Helper()
	w = jobtest.NewWorld(t, map[string][]string{"src/a": nil, "dst": nil})
	w.Memory.Write("src/a", make([]byte, 4<<20))
	names = map[uint64]string{}
	for _, name := range []string{"0", "1", "2"} {
		w.Memory.Write("src/a", []byte("x"))
		require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"src/a@" + name}))
	}
	for _, v := range w.Memory.Versions("src/a") {
		names[v.GUID] = v.Name
	}
	w.Memory.Copy("src/a", "dst/a", "0", "1", "2")
	w.Memory.Set("dst/a", "readonly", "on")
	f := file("src/a", "", "/d/f")
	w.Memory.Damaged = zfs.Damage{Objects: []zfs.DamagedObject{f}}
	head = t.TempDir()
	for of, dir := range map[string]string{"src/a": head, "src/a@0": t.TempDir(), "src/a@1": t.TempDir(), "src/a@2": t.TempDir()} {
		w.Memory.SetFiles(of, dir)
		require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "d", "f"), []byte("x"), 0o644))
	}
	return w, names, head
}

// TestIncrementalHeal expects an incremental stream from a snapshot in which the damaged file is
// intact. If the next read or scrub still finds damage, a full stream follows.
func TestIncrementalHeal(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		suffices, reads bool
		want            []string // incremental sources of the streams
	}{
		"incremental stream suffices": {true, true, []string{"1"}},
		"file still unreadable":       {false, false, []string{"1", ""}},
		"scrub still finds damage":    {false, true, []string{"1", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, names, head := incrementalWorld(t)
			var bases []string
			w.Memory.Heals = func(_ zfs.DamagedObject, base uint64) bool {
				from := names[base]
				bases = append(bases, from)
				if !tt.reads {
					_ = os.Remove(filepath.Join(head, "d", "f"))
				}
				if from == "" {
					_ = os.WriteFile(filepath.Join(head, "d", "f"), []byte("x"), 0o644)
				}
				return tt.suffices || from == ""
			}
			r, err := Run(t.Context(), healSrc(func(h *Request) { h.DryRun = true }), hosts.New(w), send.Quiet{})
			require.NoError(t, err)
			require.Equal(t, "1", r.Datasets[0].Since)
			require.Empty(t, bases)
			r, err = Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
			require.NoError(t, err)
			require.Equal(t, tt.want, bases)
			require.Equal(t, "is readable again", r.Objects[0].Read)
			require.Equal(t, Healed, r.Objects[0].Outcome)
			require.Len(t, w.Memory.Versions("src/a"), 3)
		})
	}
}

// TestSecondRoundNeedsNewScrub expects that if the second scrub does not complete, the result of
// the first does not count. Changes during the first scrub are noticed.
func TestSecondRoundNeedsNewScrub(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		live      bool // the copy changes after the first scrub
		want, why string
		bases     []string // incremental sources of the streams
		scrubs    int
	}{
		"the scrub is cancelled": {false, "what they healed", "", []string{"1", ""}, 2},
		"the copy is modified":   {true, "1 error is not healed", "is not read-only", []string{"1"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, names, _ := incrementalWorld(t)
			var bases []string
			w.Memory.Heals = func(_ zfs.DamagedObject, base uint64) bool { bases = append(bases, names[base]); return false }
			w.Memory.Damaged.Objects = append(w.Memory.Damaged.Objects, zfs.DamagedObject{Object: "0x2", Shown: "<0x44>:<0x2>"})
			scrubs := 0
			w.Before = func(op string) error {
				if op != "scrub src" {
					return nil
				}
				scrubs++
				w.Memory.Damaged.Objects = w.Memory.Damaged.Objects[:1]
				switch {
				case tt.live:
					w.Memory.Set("dst/a", "readonly", "off")
				case scrubs == 2:
					w.Memory.Damaged = zfs.Damage{Scan: zfs.Scan{Text: "scrub canceled on Sun"}}
					return errors.New("cancelled")
				}
				return nil
			}
			r, err := Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, tt.scrubs, scrubs, "one for the healed object")
			require.Equal(t, tt.bases, bases)
			require.NotEqual(t, Healed, r.Objects[0].Outcome)
			require.Contains(t, r.Datasets[0].Why, tt.why)
			require.Contains(t, r.Objects[0].Why, tt.why)
			require.Equal(t, tt.live, r.Objects[1].Outcome == Healed, "as the first scrub showed")
			require.Equal(t, tt.live, r.Scrubbed)
		})
	}
}

// partialWorld is a world with unreachable hosts.
type partialWorld struct{ *jobtest.World }

func (p partialWorld) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	if l.Host == "gone" {
		return nil, errors.New("no route to host")
	}
	return p.World.Open(ctx, l)
}

// TestLeftoversWithUnreachableCopy expects that leftovers are destroyed if a reachable copy was
// used for the heal, and kept if the unreachable copy may be the one.
func TestLeftoversWithUnreachableCopy(t *testing.T) {
	t.Parallel()
	left := "@" + zfs.HealPrefix + "1"
	for _, arrived := range []bool{true, false} {
		w := damagedWorld(t)
		w.Memory.Damaged = zfs.Damage{}
		for _, name := range []string{"src/a", "src/b"} {
			require.NoError(t, w.Memory.Snapshot(t.Context(), []string{name + left}))
			if arrived || name == "src/b" {
				w.Memory.Copy(name, strings.Replace(name, "src", "dst", 1), "1", "2", left[1:])
				w.Memory.Set(strings.Replace(name, "src", "dst", 1), "readonly", "on")
			}
		}
		req := healSrc(func(h *Request) {
			away := Copy{Source: h.Copies[0].Source, Target: endpoint.Endpoint{Host: "gone", Name: "vault/a"}}
			h.Copies = append([]Copy{away}, h.Copies...)
		})
		_, err := Run(t.Context(), req, hosts.New(partialWorld{w}), send.Quiet{})
		if arrived {
			require.NoError(t, err)
			assertSnapshots(t, w)
			continue
		}
		require.ErrorContains(t, err, "no route to host")
		require.Len(t, w.Memory.Versions("src/a"), 3)
		require.Len(t, w.Memory.Versions("src/b"), 2, "one failure does not stop the others")
	}
}

// TestLeftoversSearch expects that snapshots are listed only for datasets with
// a copy, and that the activity is reported.
func TestLeftoversSearch(t *testing.T) {
	t.Parallel()
	w := damagedWorld(t)
	w.Memory.Damaged = zfs.Damage{}
	w.Memory.Create("src/c", nil)
	var listed []string
	w.Before = func(op string) error { listed = append(listed, op); return nil }
	shown := &activityRecorder{}
	_, err := Run(t.Context(), healSrc(nil), hosts.New(w), shown)
	require.NoError(t, err)
	require.Contains(t, listed, "list src/b")
	require.NotContains(t, listed, "list src/c")
	require.Contains(t, shown.all, "searching for leftovers of an interrupted heal in src")
}

// activityRecorder records activities.
type activityRecorder struct {
	send.Quiet
	all []string
}

func (d *activityRecorder) Activity(what string) func() {
	d.all = append(d.all, what)
	return func() {}
}

// TestHealReadsAreBounded expects that the amount read before the scrub or for a plan is limited,
// and that each file is read once.
func TestHealReadsAreBounded(t *testing.T) {
	t.Parallel()
	w, _, head := incrementalWorld(t)
	sick := func(things ...zfs.DamagedObject) (*healJob, *healing) {
		h := newHealJob(healSrc(nil), hosts.New(w), send.Quiet{})
		for _, t := range things {
			h.report.Objects = append(h.report.Objects, &Object{DamagedObject: t})
		}
		d, err := h.copies.choose(t.Context(), "src/a")
		require.NoError(t, err)
		d.report.Bytes = 100 << 20
		return h, d
	}
	file := func(snapshot, path string) zfs.DamagedObject { return file("src/a", snapshot, path) }
	large := func(name string, size int64) {
		require.NoError(t, os.WriteFile(filepath.Join(head, name), nil, 0o600))
		require.NoError(t, os.Truncate(filepath.Join(head, name), size))
	}
	large("huge", maxReadBytes+1)
	h, d := sick(file("0", "/d/f"), file("2", "/d/f"), file("1", "/d/f"), file("", "/huge"))
	readable, _ := h.reread(t.Context(), d)
	require.True(t, readable, "unread files show no error")
	var read []string
	for _, t := range h.report.Objects {
		read = append(read, t.Read)
	}
	require.Equal(t, []string{"", readsAgain, "", tooMuch}, read)

	for size, since := range map[int64]string{4 << 20: "1", 12 << 20: ""} { // it exists in two snapshots
		large("d/f", size)
		h, d = sick(file("", "/d/f"))
		require.NoError(t, h.chooseBase(t.Context(), d))
		require.Equal(t, since, d.report.Since)
	}
}

// TestRemediesContainHost expects that remedies name the host, and restore next to the damaged
// dataset.
func TestRemediesContainHost(t *testing.T) {
	t.Parallel()
	for at, want := range map[string]string{"vault/home": "backup1:vault/home-restored", "vault": "backup1:vault/restored"} {
		bad := endpoint.Endpoint{Host: "backup1", Name: at}
		h := &healJob{req: Request{At: bad}, datasets: []*healing{{report: &Dataset{Dataset: at, Why: "it is so"},
			common: "a", pair: &healPair{bad: bad, good: endpoint.Endpoint{Name: "tank/home"}}}}}
		thing := &Object{DamagedObject: zfs.DamagedObject{Dataset: at, Object: "0x1"}}
		h.explain(thing)
		require.Equal(t, "zxfer restore tank/home@a "+want, thing.Remedy)
	}
	h := &healJob{req: Request{At: endpoint.Endpoint{Host: "root@backup1", Name: "vault"}}}
	hint := fault.HintOf(h.checkUnlisted(zfs.Damage{Scan: zfs.Scan{Errors: 1}}))
	require.Contains(t, hint, "on backup1: zfs list")
	require.Contains(t, hint, "on backup1: zpool scrub -w vault")
	h.req.At.Name = "my vault/home"
	hint = fault.HintOf(h.checkUnlisted(zfs.Damage{Scan: zfs.Scan{Errors: 1}}))
	require.Equal(t, "on backup1: zpool scrub -w 'my vault'\non backup1: zpool status -v 'my vault'", hint)
}

// TestSnapshotSearchCommand expects the command that searches the snapshots to read each block once.
func TestSnapshotSearchCommand(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "zfs"), []byte(`#!/bin/sh
case "$*" in
list*snapshot*) for last; do :; done; echo "$last@1"; echo "$last@2" ;;
list*"-r my src") echo "my src"; echo "src/a b" ;;
*) echo "$#:$*" >> "${0%/*}/sent"; [ "$*" != "send -w -i src/a b@1 src/a b@2" ] ;;
esac
`), 0o755))
	h := &healJob{req: Request{At: endpoint.Endpoint{Name: "my src"}}}
	hint := fault.HintOf(h.checkUnlisted(zfs.Damage{Scan: zfs.Scan{Errors: 1}}))
	_, command, _ := strings.Cut(strings.Split(hint, "\n")[0], "each error: ")
	cmd := exec.Command("sh", "-c", command)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "src/a b@2\n", string(out))
	sent, err := os.ReadFile(filepath.Join(bin, "sent"))
	require.NoError(t, err)
	require.Equal(t, "3:send -w my src@1\n5:send -w -i my src@1 my src@2\n3:send -w src/a b@1\n5:send -w -i src/a b@1 src/a b@2\n", string(sent))
}

// TestUnlistedErrors expects a hint with each message about unlisted errors.
func TestUnlistedErrors(t *testing.T) {
	t.Parallel()
	for reason, says := range map[string][2]string{
		zfs.DatasetDestroyed:      {"to a destroyed dataset", "zpool scrub -w src\nthen run the same command again"},
		"insufficient privileges": {"does not list the errors: insufficient privileges", "run as root: zpool status -v src"},
	} {
		w := damagedWorld(t)
		w.Memory.Damaged.Unlisted, w.Memory.Damaged.Reason = true, reason
		_, err := Run(t.Context(), healSrc(nil), hosts.New(w), send.Quiet{})
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, says[0])
		require.Equal(t, says[1], fault.HintOf(err))
	}
}
