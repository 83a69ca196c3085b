package agentless

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// The tests in this file attack zxfer with hosts that lie, and honest hosts with values from such hosts.

// receiveScript is a zfs receive that gets no complete stream.
const receiveScript = `[ "$1" != receive ] || { cat >stream; echo "cannot receive: failed to read from stream" >&2; exit 1; }`

// planned is a receive of one snapshot.
var planned = zfs.ReceiveSpec{Target: "pool/a", Arrival: zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: "x", GUID: 7}}}}

// TestLyingSourceDoesNotReachTarget copies streams of a lying host to an honest one. It expects an error, and
// that no record of them, which has at least 312 bytes, reaches the honest host.
func TestLyingSourceDoesNotReachTarget(t *testing.T) {
	t.Parallel()
	login := account{"forged marker", `printf '\nzxfer-ran\nforged'; exec sh -c "$command"`, false, nil}
	for name, c := range map[string]struct {
		from account
		send string
	}{
		"noise":                     {accountNamed("sh"), `head -c 100000 /dev/zero`},
		"noise without a shell":     {accountNamed("filter with eval"), `head -c 100000 /dev/zero`},
		"nothing":                   {accountNamed("sh"), `exit 0`},
		"nothing without a shell":   {accountNamed("filter with eval"), `exit 0`},
		"failure without a message": {accountNamed("sh"), `exit 1`},
		"forged status":             {accountNamed("sh"), `echo zxfer-sent 0 >&2; exit 1`},
		"forged start of output":    {login, `exit 0`},
		"output of the login shell": {account{"endless", `case $command in *exec*) while :; do echo zxfer-run; done;; esac`, false, nil}, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var src transfer.Source
			_, o := accountOptions(t, c.from, "case $1 in send) "+c.send+"\nesac")
			from, err := openHost(t.Context(), o, false)
			if c.send == "" {
				require.ErrorIs(t, err, sshexec.ErrNoShell)
				return
			}
			require.NoError(t, err)
			defer from.Close()
			dir, to := openAccount(t, accountNamed("sh"), receiveScript)
			src, err = from.Through(nil, 0).OpenFrom(t.Context(), hosts.SendStream{Spec: zfs.SendSpec{Dataset: "pool/a", To: "x"}})
			require.NoError(t, err)
			sink, err := to.Through(nil, 0).OpenTo(t.Context(), hosts.ReceiveStream{Spec: planned})
			require.NoError(t, err)
			_, err = transfer.Copy(t.Context(), src, sink, transfer.Options{}, nil)
			require.Error(t, err)
			require.NoError(t, src.Close())
			stored, _ := os.ReadFile(filepath.Join(dir, "stream")) // it may not exist
			require.Less(t, len(stored), 312)
		})
	}
}

// TestForgedStatus expects that only the status that the script prints last counts.
func TestForgedStatus(t *testing.T) {
	t.Parallel()
	_, h := openAccount(t, accountNamed("sh"), `case $1 in send) echo zxfer-sent 0 >&2; head -c 1000 /dev/zero; exit 3;; esac`)
	src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, path{})
	require.NoError(t, err)
	_, err = io.ReadAll(src)
	require.Error(t, err)
	require.NoError(t, src.Close())
}

// TestRefusalRemainsTheCause expects that a target cannot replace the gate's refusal with its own words: it
// may have stored the start of the stream successfully.
func TestRefusalRemainsTheCause(t *testing.T) {
	t.Parallel()
	for _, receive := range []string{`cat >/dev/null`, `cat >/dev/null; echo "cannot receive: permission denied" >&2; exit 1`, `exit 0`} {
		_, h := openAccount(t, accountNamed("sh"), receive)
		sink, err := h.Through(nil, 0).OpenTo(t.Context(), hosts.ReceiveStream{Spec: planned})
		require.NoError(t, err)
		_, err = sink.Write(random(4096))
		require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Unplanned})
		require.NoError(t, sink.Abort(err))
	}
}

// TestCommitAfterLostConnection expects an unknown outcome to be an interrupted transfer, also if zfs receive
// may have succeeded.
func TestCommitAfterLostConnection(t *testing.T) {
	t.Parallel()
	dir, o := accountOptions(t, accountNamed("sh"), storeScript)
	useSSH(t, dir, &o, `/bin/sh "$login" beta "$command"; status=$?; [ ! -e "$lost" ] || exit 255; exit $status`)
	h, err := openHost(t.Context(), o, false)
	require.NoError(t, err)
	defer h.Close()
	sink, err := openSink(t.Context(), h, path{})
	require.NoError(t, err)
	_, err = sink.Write(random(1000))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lost"), nil, 0o600))
	require.ErrorIs(t, sink.Commit(t.Context()), tcp.ErrConnectionLost)
	_, err = h.runner().Run(t.Context(), []string{"zfs", "snapshot", "pool/a@x"})
	require.ErrorIs(t, err, hosts.ErrLost)
}

// useSSH replaces the remote shell of accountOptions with a program that zxfer takes for ssh. It runs script
// with the variables command and login. Its master does what ssh's does: it creates its socket, and with -N
// waits.
func useSSH(t *testing.T, dir string, o *sshexec.Options, script string) {
	t.Helper()
	text := `#!/bin/sh
master= bare= socket=
for command; do
	case $command in ControlPath=*) socket=${command#*=};; ControlMaster=yes) master=1;; -N) bare=1;; -G) exit;; esac
done
login=` + shellquote.Join(filepath.Join(dir, "login")) + ` lost=` + shellquote.Join(filepath.Join(dir, "lost")) + `
[ -z "$master" ] || : >"$socket"
[ -z "$bare" ] || exec sleep 100000
` + script + "\n"
	program := filepath.Join(t.TempDir(), "ssh")
	testenv.WriteProgram(t, program, text)
	o.Command = shellquote.Join(program)
}

// killStarted ends the process whose number is in the file "started".
func killStarted(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "started"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
}

// TestStreamThatNeverGoesOn expects that an operation that reads a stream ends with its context.
func TestStreamThatNeverGoesOn(t *testing.T) {
	t.Parallel()
	for _, a := range []account{accountNamed("sh"), accountNamed("filter with eval")} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			dir, h := openAccount(t, a, `case $1 in send) echo $$ >started; exec sleep 100000;; esac`)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := hosts.Call(ctx, h, hosts.OpDigest, hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: "pool/a", To: "x"}})
				done <- err
			}()
			require.Eventually(t, func() bool {
				s, err := os.Stat(filepath.Join(dir, "started"))
				return err == nil && s.Size() > 0
			}, testenv.Timeout(), time.Millisecond)
			cancel()
			defer killStarted(t, dir) // as on another host, it ends when it writes
			select {
			case err := <-done:
				require.ErrorIs(t, err, context.Canceled)
			case <-time.After(testenv.Timeout()):
				require.Fail(t, "it still waits")
			}
		})
	}
}

// endlessErrors prints 20 MB on standard error.
const endlessErrors = `l=0123456789; l=$l$l$l$l$l$l$l$l$l$l; l=$l$l$l$l$l$l$l$l$l$l; i=0; while [ $i -lt 20000 ]; do echo "$l" >&2; i=$((i + 1)); done; `

// TestEndlessMessages expects that a host cannot fill the log or an error.
func TestEndlessMessages(t *testing.T) {
	t.Parallel()
	for _, a := range []account{accountNamed("sh"), accountNamed("filter with eval")} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			_, h := openAccount(t, a, endlessErrors+`case $1 in receive) cat >/dev/null; exit 0;; send) exit 255;; esac; exit 1`)
			var mu sync.Mutex
			logged := 0
			h.log = func(s string) { mu.Lock(); defer mu.Unlock(); logged += len(s) }
			sink, err := openSink(t.Context(), h, path{})
			require.NoError(t, err)
			require.NoError(t, sink.Commit(t.Context()))
			require.LessOrEqual(t, logged, 200<<10)

			_, err = hosts.Call(t.Context(), h, hosts.OpProperties, hosts.PropertyQuery{Names: []string{"pool/a"}, Properties: []string{"type"}})
			require.Error(t, err)
			require.LessOrEqual(t, len(err.Error()), 100<<10)

			src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, path{})
			require.NoError(t, err)
			_, err = io.ReadAll(src)
			require.Error(t, err)
			require.LessOrEqual(t, len(err.Error()), 100<<10)
			require.NoError(t, src.Close())
		})
	}
}

// TestEndlessOutput expects that endless output of a command ends with an error that no retry repeats.
func TestEndlessOutput(t *testing.T) {
	t.Parallel()
	for _, a := range []account{accountNamed("sh"), accountNamed("filter with eval")} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			_, h := openAccount(t, a, `exec cat /dev/zero`)
			_, err := h.runner().Run(t.Context(), []string{"zfs", "list"})
			require.ErrorContains(t, err, "its output is longer than")
			require.NotErrorIs(t, err, hosts.ErrLost)
		})
	}
}

// TestValuesRunNothing expects that no value becomes a command, in any account.
func TestValuesRunNothing(t *testing.T) {
	t.Parallel()
	values := []string{"; touch pwned", "$(touch pwned)", "`touch pwned`", "| touch pwned", "& touch pwned", "(touch pwned)", "x > pwned",
		"'; touch pwned; '", `\'; touch pwned; \'`, `"; touch pwned; "`, "!touch pwned", "%touch pwned", "~", "x\nzxfer-run\ntouch pwned", "x\ntouch pwned"}
	for _, a := range accounts() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			dir, h := openAccount(t, a, `printf '%s\0' "$@" >>calls; [ "$1" != receive ] || cat >/dev/null`)
			for _, v := range values {
				_ = os.Remove(filepath.Join(dir, "calls"))
				bad := strings.ContainsAny(v, "\n")
				err := hosts.Run(t.Context(), h, hosts.OpSetProperties, zfs.PropertyChange{Dataset: "pool/a", Set: map[string]string{"a:b": v}})
				if bad || a.bare && strings.ContainsAny(v, `'\!`) {
					require.Error(t, err, v)
					require.NoFileExists(t, filepath.Join(dir, "calls"), v)
				} else {
					require.NoError(t, err, v)
					calls, err := os.ReadFile(filepath.Join(dir, "calls"))
					require.NoError(t, err)
					require.Equal(t, "set\x00a:b="+v+"\x00pool/a\x00", string(calls))
				}
				spec := planned
				spec.Set = map[string]string{"a:b": v}
				sink, err := h.Through(nil, 0).OpenTo(t.Context(), hosts.ReceiveStream{Spec: spec})
				if bad {
					require.Error(t, err, v)
				}
				if err == nil {
					_ = sink.Abort(nil) // the fake zfs receive reports success
				}
				require.NoFileExists(t, filepath.Join(dir, "pwned"), v)
			}
		})
	}
}

// TestCorrectiveReceiveNeedsZxfer expects a refusal: the checks that keep it from crashing the kernel need
// zxfer there.
func TestCorrectiveReceiveNeedsZxfer(t *testing.T) {
	t.Parallel()
	dir, h := openAccount(t, accountNamed("sh"), `: >ran`)
	spec := planned
	spec.Corrective = true
	_, err := h.Through(nil, 0).OpenTo(t.Context(), hosts.ReceiveStream{Spec: spec})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "beta: without zxfer there, zxfer cannot heal the pool")
	require.NoFileExists(t, filepath.Join(dir, "ran"))
}

// TestFullOperationsAreRefused expects that a host without zxfer refuses all operations that need it, and runs
// nothing.
func TestFullOperationsAreRefused(t *testing.T) {
	t.Parallel()
	dir, h := openAccount(t, accountNamed("sh"), `: >ran`)
	for _, op := range hosts.Operations() {
		if op.Plain() {
			continue
		}
		err := h.Run(t.Context(), &hosts.Request{Op: op})
		require.Equal(t, fault.Refused, fault.ClassOf(err), op.Name())
	}
	require.NoFileExists(t, filepath.Join(dir, "ran"))
}

// TestKeyFileNeedsZxfer expects a refusal, because zxfer would have to unload the key.
func TestKeyFileNeedsZxfer(t *testing.T) {
	t.Parallel()
	dir, h := openAccount(t, accountNamed("sh"), `: >ran`)
	_, err := hosts.Call(t.Context(), h, hosts.OpDigest, hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: "pool/a", To: "x"}, KeyFile: "/key"})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.NoFileExists(t, filepath.Join(dir, "ran"))
}

// TestForeignAnswers expects errors for answers about other datasets.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	answers := []string{"pool/other\ttype\tfilesystem\t-\n", "pool/a/../b\tguid\t1\t-\n", strings.Repeat("x", 1<<20), "\x00\x1b[2J", "pool/a@x\t7\t1\t0\t-\n"}
	for _, answer := range answers {
		dir, h := openAccount(t, accountNamed("sh"), `cat answer`)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "answer"), []byte(answer), 0o600))
		l, err := hosts.Call(t.Context(), h, hosts.OpList, hosts.ListQuery{Dataset: "pool/a", Versions: true, NoAncestors: true})
		if err == nil {
			require.Empty(t, l.Datasets, "%q", answer)
		}
		d, err := hosts.Call(t.Context(), h, hosts.OpDatasetOf, "/a")
		if err == nil {
			_, err = zfs.ParseDataset(d)
			require.NoError(t, err)
		}
	}
}

// TestNoProcessRemains expects that Close ends all processes of a host.
func TestNoProcessRemains(t *testing.T) {
	t.Parallel()
	for _, a := range []account{accountNamed("sh"), accountNamed("filter with eval")} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			dir, o := accountOptions(t, a, storeScript)
			useSSH(t, dir, &o, `exec /bin/sh "$login" beta "$command"`)
			h, err := openHost(t.Context(), o, false)
			require.NoError(t, err)
			sink, err := openSink(t.Context(), h, path{})
			require.NoError(t, err)
			_, err = sink.Write(random(10))
			require.NoError(t, err)
			require.NoError(t, sink.Commit(t.Context()))
			require.NoError(t, h.Close())
			require.Eventually(t, func() bool {
				out, err := exec.Command("pgrep", "-f", dir).Output()
				return err != nil && len(bytes.TrimSpace(out)) == 0
			}, testenv.Timeout(), 10*time.Millisecond)
		})
	}
}
