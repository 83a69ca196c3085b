package agentless

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// noisy returns an account whose login prints to standard error before each command.
func noisy(name string) account {
	a := accountNamed(name)
	a.login = "echo 'bash: warning: setlocale: LC_ALL: cannot change locale (xx_YY)' >&2; echo 'hello from .profile' >&2\n" + a.login
	return a
}

// TestLoginThatPrintsErrors expects that text of the login on standard error neither fails a command nor is
// part of its messages.
func TestLoginThatPrintsErrors(t *testing.T) {
	t.Parallel()
	for _, a := range []account{noisy("sh"), noisy("filter with eval")} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			dir, o := accountOptions(t, a, storeScript+`
case $1 in get) printf 'pool/a\ttype\tfilesystem\t-\n'; echo "cannot open 'pool/b': dataset does not exist" >&2; exit 1;; esac`)
			var mu sync.Mutex
			var logged []string
			o.Log = func(s string) { mu.Lock(); defer mu.Unlock(); logged = append(logged, s) }
			h, err := openHost(t.Context(), o, false)
			require.NoError(t, err)
			defer h.Close()
			found, err := hosts.Call(t.Context(), h, hosts.OpProperties, hosts.PropertyQuery{Names: []string{"pool/a", "pool/b"}, Properties: []string{"type"}})
			require.NoError(t, err)
			require.Len(t, found, 1)
			sink, err := openSink(t.Context(), h, path{})
			require.NoError(t, err)
			data := random(1000)
			_, err = sink.Write(data)
			require.NoError(t, err)
			require.NoError(t, sink.Commit(t.Context()))
			stored, err := os.ReadFile(filepath.Join(dir, "stream"))
			require.NoError(t, err)
			require.Equal(t, data, stored)
			src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, path{})
			require.NoError(t, err)
			_, err = io.ReadAll(src)
			require.NoError(t, err)
			require.NoError(t, src.Close())
			mu.Lock()
			defer mu.Unlock()
			require.Empty(t, logged, "the attempt to start an agent shows the text")
		})
	}
}

// TestSplittingFilter expects a refusal of an account that splits a command at blanks: a command would get
// other names.
func TestSplittingFilter(t *testing.T) {
	t.Parallel()
	for _, run := range []string{`set -f; exec $command`, `set -f; set -- $command; exec "$@"`, `echo "refused: $command" >&2; exit 1`, `eval "set -- $command"; exec $*`} {
		_, o := accountOptions(t, account{"filter", `case $command in "zfs version") exec zfs version;; "zfs "*) ` + run + `;; *) exit 1;; esac`, true, nil}, "exit 1")
		_, err := openHost(t.Context(), o, false)
		require.ErrorContains(t, err, "single quotes", run)
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.NotEmpty(t, fault.HintOf(err))
	}
}

// TestRefusedCommandsHaveHints expects a hint with the line to add on the host.
func TestRefusedCommandsHaveHints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ account, script, hint string }{
		{"sh", "echo 'sudo: a password is required' >&2; exit 1", "ALL=(root) NOPASSWD: "},
		{"sh", "echo 'Sorry, user backup is not allowed to execute zfs as root on beta.' >&2; exit 1", "/etc/sudoers.d/zxfer"},
		{"sh", "echo 'doas: Operation not permitted' >&2; exit 1", ">>/etc/doas.conf"},
		{"filter with eval", "echo 'doas: a tty is required' >&2; exit 1", "permit nopass ACCOUNT cmd zfs"},
		{"filter with eval", "echo 'not permitted' >&2; exit 1", "permit it in the account's filter there: zfs "},
		{"filter with eval", "echo 'Permission denied' >&2; exit 1", "permit it in the account's filter there: zfs "},
		{"filter with eval", "echo \"cannot hold snapshot 'pool/a@x': permission denied\" >&2; exit 1", "zfs allow"},
	} {
		_, h := openAccount(t, accountNamed(c.account), c.script)
		err := hosts.Run(t.Context(), h, hosts.OpHold, hosts.Tagged{Tag: "keep", Snapshots: []string{"pool/a@x"}})
		require.Error(t, err)
		require.Contains(t, fault.HintOf(err), c.hint)
		src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, path{})
		require.NoError(t, err)
		_, err = io.ReadAll(src)
		require.Error(t, err)
		if c.hint != "zfs allow" {
			require.Contains(t, fault.HintOf(err), strings.Replace(c.hint, "zfs ", "zfs", 1))
		}
		require.NoError(t, src.Close())
	}
}

// TestAccountThatPermitsNothing expects a hint with the line to add on the host if even zfs version is refused.
func TestAccountThatPermitsNothing(t *testing.T) {
	t.Parallel()
	for login, hint := range map[string]string{
		`echo 'not permitted' >&2; exit 1`:                                            "permit it in the account's filter there: zfs version",
		`echo 'sudo: a password is required' >&2; exit 1`:                             "NOPASSWD",
		`case $command in "zfs "*) echo Welcome; eval "exec $command";; esac; exit 1`: "~/.bashrc",
	} {
		_, o := accountOptions(t, account{"none", login, true, nil}, "exit 1")
		_, err := openHost(t.Context(), o, false)
		require.Equal(t, fault.Refused, fault.ClassOf(err), login)
		require.Contains(t, fault.HintOf(err), hint)
	}
}

// TestDocumentedFilter runs the filter of docs/howto/limited-hosts.md. It permits pushes, and pulls with the
// documented addition.
func TestDocumentedFilter(t *testing.T) {
	t.Parallel()
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip("needs python3")
	}
	page, err := os.ReadFile("../../docs/howto/limited-hosts.md")
	require.NoError(t, err)
	_, text, found := strings.Cut(string(page), "```python\n")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "```")
	for _, pull := range []bool{false, true} {
		if pull {
			require.Contains(t, string(page), "add `send`")
			text = strings.Replace(text, `"receive", `, `"receive", "send", `, 1)
		}
		filter := filepath.Join(t.TempDir(), "zfs-filter")
		require.NoError(t, os.WriteFile(filter, []byte(text), 0o600))
		_, h := openAccount(t, account{"documented", "SSH_ORIGINAL_COMMAND=$command; export SSH_ORIGINAL_COMMAND\nexec " +
			shellquote.Join(strings.TrimSpace(string(python)), filter), true, nil},
			`case "$*" in "send -nvP "*) printf 'full\tpool/a@x\t1000\nsize\t1000\n'; exit;; esac`+"\n"+storeScript)
		data := random(1000)
		sink, err := openSink(t.Context(), h, path{})
		require.NoError(t, err)
		_, err = sink.Write(data)
		require.NoError(t, err)
		require.NoError(t, sink.Commit(t.Context()))

		spec := zfs.SendSpec{Dataset: "pool/a", To: "x"}
		_, err = hosts.Call(t.Context(), h, hosts.OpEstimate, []zfs.SendSpec{spec})
		if !pull {
			require.ErrorContains(t, err, "not permitted")
			require.Contains(t, fault.HintOf(err), "permit it in the account's filter there: zfs send")
			continue
		}
		require.NoError(t, err)
		src, err := h.openSend(t.Context(), spec, path{})
		require.NoError(t, err)
		got, err := io.ReadAll(src)
		require.NoError(t, err)
		require.Equal(t, data, got)
		require.NoError(t, src.Close())
	}
}
