package agentless

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/sshexec"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// posixTools are the commands besides zfs that a host in these tests has. POSIX names all of them.
var posixTools = []string{"sh", "cat", "sed", "uname", "id", "getconf", "head", "kill", "sleep", "touch", "test", "printf"}

// account is how an account runs a command: the login shell, or a filter of a forced command. The
// variable "command" holds the command.
type account struct {
	name  string
	login string // starts the command
	bare  bool   // no POSIX shell
	needs []string
}

func accounts() []account {
	filter := func(name, run string, needs ...string) account {
		return account{name, `case $command in "zfs "*) ` + run + `;; *) echo "not permitted: $command" >&2; exit 1;; esac`, true, needs}
	}
	all := []account{
		{"sh", `exec sh -c "$command"`, false, nil},
		{"banner", `echo Welcome; printf 'no line end'; exec sh -c "$command"`, false, nil},
		// As filters of restricted shells do: the first word decides.
		filter("filter with eval", `eval "exec $command"`),
		filter("filter in csh", `exec csh -c "$command"`, "csh"),
		filter("filter in fish", `exec fish -c "$command"`, "fish"),
		{"busybox", `exec busybox sh -c "$command"`, false, []string{"busybox"}},
	}
	for _, shell := range []string{"bash", "dash", "mksh", "zsh", "csh", "tcsh", "fish"} {
		all = append(all, account{shell, "exec " + shell + ` -c "$command"`, false, []string{shell}})
	}
	return all
}

// accountNamed returns one of accounts.
func accountNamed(name string) account {
	all := accounts()
	return all[slices.IndexFunc(all, func(a account) bool { return a.name == name })]
}

// openAccount opens a host with only a fake zfs and POSIX tools in its PATH.
func openAccount(t *testing.T, a account, script string) (dir string, h *Host) {
	t.Helper()
	dir, o := accountOptions(t, a, script)
	h, err := openHost(t.Context(), o, false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	require.Equal(t, !a.bare, h.shell)
	return dir, h
}

func accountOptions(t *testing.T, a account, script string) (dir string, o sshexec.Options) {
	t.Helper()
	dir = t.TempDir()
	for _, tool := range append(posixTools, a.needs...) {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Skipf("%s is not installed", tool)
		}
		require.NoError(t, os.Symlink(path, filepath.Join(dir, tool)))
	}
	version := `case $1 in version) printf 'zfs-2.2.4-1\nzfs-kmod-2.2.4-1\n'; exit;; esac` + "\n" +
		`case "$*" in "list "*"zxfer quoted word") shift 4; for word; do echo "cannot open '$word': dataset does not exist" >&2; done; exit 1;; esac` + "\n"
	testenv.WriteProgram(t, filepath.Join(dir, "zfs"), "#!/bin/sh\ncd "+shellquote.Join(dir)+"\n"+version+script+"\n")
	login := "#!/bin/sh\ncommand=$2; HOME=" + shellquote.Join(dir) + " PATH=" + shellquote.Join(dir) + "; export HOME PATH\n" + a.login + "\n"
	testenv.WriteProgram(t, filepath.Join(dir, "login"), login)
	return dir, sshexec.Options{Host: "beta", Command: "/bin/sh " + shellquote.Join(filepath.Join(dir, "login"))}
}

func TestStreamsThroughEveryShell(t *testing.T) {
	t.Parallel()
	for _, a := range accounts() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			dir, h := openAccount(t, a, storeScript)
			require.Equal(t, "2.2.4-1", h.facts.ZFS)
			for _, size := range []int{0, 1, 3_000_000} {
				data := random(size)
				sink, err := openSink(t.Context(), h, path{})
				require.NoError(t, err)
				_, err = sink.Write(data)
				require.NoError(t, err)
				require.NoError(t, sink.Commit(t.Context()))
				stored, err := os.ReadFile(filepath.Join(dir, "stream"))
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, stored), "%d bytes stored, %d sent", len(stored), size)

				src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, path{})
				require.NoError(t, err)
				got, err := io.ReadAll(src)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got), "%d bytes received, %d sent", len(got), size)
				require.NoError(t, src.Close())
			}
		})
	}
}

// TestCommandsThroughEveryShell expects that the words of a command arrive unchanged, except those that
// an account without a shell cannot get: these are refused.
func TestCommandsThroughEveryShell(t *testing.T) {
	t.Parallel()
	words := []string{"pool/a b", "$HOME `id`", "*", "{a,b}", "~", "#x", `"q"`, "a;b|c&d", "=ls", "(x)"}
	special := []string{"it's", `back\slash`, "!!", "two\nlines"}
	for _, a := range accounts() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			_, h := openAccount(t, a, `printf '%s\0' "$@"`)
			sent := append([]string{"get"}, words...)
			if !a.bare {
				sent = append(sent, special...)
			}
			r, err := h.runner().Run(t.Context(), append([]string{"zfs"}, sent...))
			require.NoError(t, err)
			require.Zero(t, r.Status, r.Stderr)
			require.Equal(t, sent, strings.Split(strings.TrimSuffix(r.Stdout, "\x00"), "\x00"))
			for _, word := range special {
				_, err = h.runner().Run(t.Context(), []string{"zfs", "set", "x=" + word})
				if a.bare {
					require.ErrorContains(t, err, "cannot carry this word")
				} else {
					require.NoError(t, err)
				}
			}
		})
	}
}

// TestFailedStreamThroughShell expects that a failed zfs is an error with its cause, never the end of a
// stream.
func TestFailedStreamThroughShell(t *testing.T) {
	t.Parallel()
	for _, a := range []account{accountNamed("sh"), accountNamed("csh"), accountNamed("fish"), accountNamed("filter with eval")} {
		for name, c := range map[string]struct {
			zfs  string
			want error
		}{
			"fails":  {`head -c 5000 /dev/zero; echo "warning: cannot send 'pool/a@x': Input/output error" >&2; exit 1`, &zfs.Error{Kind: zfs.PoolFault}},
			"killed": {`head -c 5000 /dev/zero; kill -9 $$`, &zfs.Error{Kind: zfs.Killed}},
			"absent": {`echo "cannot open 'pool/a@x': dataset does not exist" >&2; exit 1`, &zfs.Error{Kind: zfs.NotFound}},
		} {
			t.Run(a.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				_, h := openAccount(t, a, "case $1 in send) "+c.zfs+"\nesac")
				src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, path{})
				require.NoError(t, err)
				_, err = io.ReadAll(src)
				if a.bare && name == "killed" {
					require.Error(t, err)
				} else {
					require.ErrorIs(t, err, c.want)
				}
				require.NoError(t, src.Close())
			})
		}
		t.Run(a.name+"/receive", func(t *testing.T) {
			t.Parallel()
			_, h := openAccount(t, a, deniedScript)
			requireDenied(t, h, path{})
		})
	}
}

// TestAbortThroughShell expects zfs receive to get an aborted stream as one that ends early.
func TestAbortThroughShell(t *testing.T) {
	t.Parallel()
	for _, a := range []account{accountNamed("sh"), accountNamed("filter with eval")} {
		dir, h := openAccount(t, a, `cat >stream; echo "cannot receive resume stream: incomplete stream" >&2; exit 1`)
		sink, err := openSink(t.Context(), h, path{})
		require.NoError(t, err)
		_, err = sink.Write(random(1000))
		require.NoError(t, err)
		require.NoError(t, sink.Abort(errors.New("the source failed")))
		stored, err := os.ReadFile(filepath.Join(dir, "stream"))
		require.NoError(t, err)
		require.Len(t, stored, 1000, a.name)
	}
}

// TestCutRemoteShell expects that a killed remote shell is an interrupted stream in both directions.
func TestCutRemoteShell(t *testing.T) {
	t.Parallel()
	dir, h := openAccount(t, accountNamed("sh"), `case $1 in receive) cat >stream;; send) echo $$ >started; head -c 5000 /dev/zero; exec sleep 1000;; esac`)
	src, err := h.openSource(t.Context(), "zfs send", zfs.Failure{Op: zfs.OpSend, Argv: []string{"zfs", "send"}}, path{})
	require.NoError(t, err)
	_, err = io.ReadFull(src, make([]byte, 5000))
	require.NoError(t, err)
	defer killStarted(t, dir)
	src.process.End(0)
	_, err = src.Read(make([]byte, 1))
	require.ErrorIs(t, err, tcp.ErrConnectionLost)

	opened, err := openSink(t.Context(), h, path{})
	require.NoError(t, err)
	_, err = opened.Write(random(1000))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		s, err := os.Stat(filepath.Join(dir, "stream"))
		return err == nil && s.Size() == 1000
	}, testenv.Timeout(), time.Millisecond)
	opened.(*sink).process.End(0)
	require.ErrorIs(t, opened.Commit(t.Context()), tcp.ErrConnectionLost)
}

// TestSourceCloseEndsSend expects that Close ends a zfs send that nobody reads.
func TestSourceCloseEndsSend(t *testing.T) {
	t.Parallel()
	for _, a := range []account{accountNamed("sh"), accountNamed("filter with eval")} {
		_, h := openAccount(t, a, `case $1 in send) exec cat /dev/zero;; esac`)
		src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, path{})
		require.NoError(t, err)
		_, err = io.ReadFull(src, make([]byte, 1000))
		require.NoError(t, err)
		require.NoError(t, src.Close())
	}
}

// TestReceiveChecksStream expects that a stream that was not planned never reaches the host.
func TestReceiveChecksStream(t *testing.T) {
	t.Parallel()
	dir, h := openAccount(t, accountNamed("sh"), storeScript)
	spec := zfs.ReceiveSpec{Target: "pool/a", Arrival: zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: "x", GUID: 7}}}}
	sink, err := h.Through(nil, 0).OpenTo(t.Context(), hosts.ReceiveStream{Spec: spec})
	require.NoError(t, err)
	_, err = sink.Write(random(4096))
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Unplanned})
	_ = sink.Abort(err) // the fake zfs receive reports success
	stored, err := os.ReadFile(filepath.Join(dir, "stream"))
	require.NoError(t, err)
	require.Empty(t, stored)
}

// TestAccountWithoutZFS expects an error with the account's own words.
func TestAccountWithoutZFS(t *testing.T) {
	t.Parallel()
	_, o := accountOptions(t, account{"nothing", `echo "This account is not available." >&2; exit 1`, true, nil}, "")
	_, err := openHost(t.Context(), o, false)
	require.ErrorContains(t, err, `beta: no shell ran the script`)
	require.ErrorContains(t, err, `"zfs version": This account is not available.`)
	_, err = openHost(t.Context(), o, true)
	require.ErrorIs(t, err, sshexec.ErrNoShell)

	_, o = accountOptions(t, account{"missing zfs", `rm -f "$HOME/zfs"; exec sh -c "$command"`, false, []string{"rm"}}, "")
	_, err = openHost(t.Context(), o, false)
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NoZFS})

	_, o = accountOptions(t, account{"sudo", `echo "sudo: a password is required" >&2; exit 1`, true, nil}, "")
	_, err = openHost(t.Context(), o, false)
	require.ErrorContains(t, err, "sudo: a password is required")

	filter := accountNamed("filter with eval")
	filter.login = "echo Welcome to beta; " + filter.login
	_, o = accountOptions(t, filter, storeScript)
	_, err = openHost(t.Context(), o, false)
	require.ErrorContains(t, err, `its login prints text, which would be part of streams: "Welcome to beta"`)
	require.Equal(t, sshexec.QuietLogin, fault.HintOf(err))
}

// TestMbufferOfHost expects the host's mbuffer between ssh and zfs, without a loss of zfs's status.
func TestMbufferOfHost(t *testing.T) {
	t.Parallel()
	mbuffer, err := exec.LookPath("mbuffer")
	if err != nil {
		t.Skip("mbuffer is not installed")
	}
	dir, o := accountOptions(t, accountNamed("sh"), `case $1 in receive) cat >stream;; send) cat stream; exit 3;; esac`)
	testenv.WriteProgram(t, filepath.Join(dir, "mbuffer"), "#!/bin/sh\ntouch "+shellquote.Join(filepath.Join(dir, "used"))+"\nexec "+mbuffer+` "$@"`+"\n")
	h, err := openHost(t.Context(), o, false)
	require.NoError(t, err)
	defer h.Close()
	data := random(1 << 20)
	sink, err := openSink(t.Context(), h, path{buffer: 4 << 20})
	require.NoError(t, err)
	_, err = sink.Write(data)
	require.NoError(t, err)
	require.NoError(t, sink.Commit(t.Context()))
	require.FileExists(t, filepath.Join(dir, "used"))
	require.NoError(t, os.Remove(filepath.Join(dir, "used")))
	src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, path{buffer: 4 << 20})
	require.NoError(t, err)
	got, err := io.ReadAll(src)
	require.ErrorContains(t, err, "zfs send pool/a@x")
	require.NotErrorIs(t, err, tcp.ErrConnectionLost)
	require.True(t, bytes.Equal(data, got))
	require.FileExists(t, filepath.Join(dir, "used"))
}

// TestNextReceiveEndsLostOne expects that a receive whose connection was lost ends before the next one starts,
// with any shell on the host, and with and without its mbuffer.
func TestNextReceiveEndsLostOne(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"dash", "bash", "zsh", "busybox"} {
		for _, buffer := range []int64{0, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", shell, buffer), func(t *testing.T) {
				t.Parallel()
				a := accountNamed("sh")
				a.needs = []string{"ps", shell}
				dir, o := accountOptions(t, a, `case $1 in receive) : >started; cat >/dev/null;; esac`)
				require.NoError(t, os.Remove(filepath.Join(dir, "sh")))
				require.NoError(t, os.Symlink(shell, filepath.Join(dir, "sh")))
				testenv.WriteProgram(t, filepath.Join(dir, "mbuffer"), "#!/bin/sh\nexec cat\n")
				h, err := openHost(t.Context(), o, false)
				require.NoError(t, err)
				defer h.Close()
				lost, err := openSink(t.Context(), h, path{buffer: buffer})
				require.NoError(t, err)
				_, err = lost.Write(random(1000))
				require.NoError(t, err)
				var pid string
				require.Eventually(t, func() bool {
					_, _, pid = parseStderr(lost.(*sink).process.Stderr())
					_, err := os.Stat(filepath.Join(dir, "started"))
					return pid != "" && err == nil
				}, testenv.Timeout(), time.Millisecond)
				n, err := strconv.Atoi(pid)
				require.NoError(t, err)
				for _, target := range []string{"pool/other", lost.(*sink).target} { // only the process of that target ends
					require.NoError(t, syscall.Kill(n, 0))
					h.receives.add(h.name, receive{pid, target})
					require.NoError(t, h.endStale(t.Context()))
				}
				require.ErrorIs(t, syscall.Kill(n, 0), syscall.ESRCH)
				next, err := openSink(t.Context(), h, path{buffer: buffer})
				require.NoError(t, err)
				require.NoError(t, next.Commit(t.Context()))
				require.Error(t, lost.Abort(nil), "its exit status is that of a killed command")
			})
		}
	}
}

// TestLostReceiveIsRemembered expects that a lost receive is not forgotten while its host is unreachable, and
// that a retry may cure that.
func TestLostReceiveIsRemembered(t *testing.T) {
	t.Parallel()
	dir, o := accountOptions(t, accountNamed("sh"), storeScript)
	useSSH(t, dir, &o, `[ ! -e "$lost" ] || exit 255; exec /bin/sh "$login" beta "$command"`)
	h, err := openHost(t.Context(), o, false)
	require.NoError(t, err)
	defer h.Close()
	known := receive{"4194305", "pool/a"} // larger than any process ID
	h.receives.add(h.name, known)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "lost"), nil, 0o600))
	_, err = openSink(t.Context(), h, path{})
	require.ErrorIs(t, err, hosts.ErrLost)
	require.Equal(t, []receive{known}, h.receives.take(h.name))
}

func TestParseStderr(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		stderr string
		sent   int
		pid    string
	}{
		"":                                  {"", -1, ""},
		"warning\nzxfer-sent 0":             {"warning", 0, ""},
		"zxfer-sent 0\nzxfer-sent 3\nlater": {"later", 3, ""},
		"zxfer-sent 256\nzxfer-sent -1":     {"", -1, ""},
		"zxfer-sent 0 0":                    {"", -1, ""},
		"zxfer-pid 17\nzxfer-pid 18; x":     {"", -1, "17"},
		"zxfer-pid 17\nzxfer-pid 18":        {"", -1, "17"},
		"x zxfer-pid 17":                    {"x zxfer-pid 17", -1, ""},
	} {
		stderr, sent, pid := parseStderr(text)
		require.Equal(t, want.stderr, stderr, text)
		require.Equal(t, want.sent, sent, text)
		require.Equal(t, want.pid, pid, text)
	}
}
