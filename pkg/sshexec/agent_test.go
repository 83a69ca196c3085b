package sshexec

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
)

func TestBootstrapCopiesOnce(t *testing.T) {
	t.Parallel()
	for name, login := range map[string][]string{
		"dash": {"dash"}, "bash": {"bash"}, "zsh": {"zsh"}, "busybox": {"busybox", "sh"}, "fish": {"fish"}, "tcsh": {"tcsh"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(login[0]); err != nil {
				t.Skipf("needs this login shell: %v", err)
			}
			o := newOther(t, strings.Join(login, " "), "")
			for _, copied := range []bool{true, false} {
				r := o.connect()
				requireWorks(t, r)
				require.NoError(t, r.Close())
				require.Equal(t, copied, strings.Contains(o.logged(), "beta: copying zxfer there"))
				require.Equal(t, []string{standIn.id}, o.cache(), "nothing else is left")
			}
			info, err := os.Stat(o.cached())
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o700), info.Mode())
			require.EqualValues(t, len(standIn.bytes), info.Size())
			requireEnded(t, o.pid())
		})
	}
}

// TestRunningBinaryIsCopied copies the test binary. All other tests copy a stand-in.
func TestRunningBinaryIsCopied(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.ownBuild = nil
	requireWorks(t, o.connect())
	self, err := ThisBinary()
	require.NoError(t, err)
	require.Equal(t, []string{self.ID}, o.cache())
	info, err := os.Stat(filepath.Join(o.home, ".cache", "zxfer", self.ID, "zxfer"))
	require.NoError(t, err)
	require.Equal(t, self.Size, info.Size())
}

func TestScriptRunsInBusybox(t *testing.T) {
	t.Parallel()
	box, err := exec.LookPath("busybox")
	if err != nil {
		t.Skipf("needs busybox: %v", err)
	}
	o := newOther(t, "sh", "PATH="+"$HOME/../bin")
	for _, applet := range []string{"sh", "uname", "head", "wc", "mkdir", "mv", "rm", "rmdir", "chmod", "ls", "tail", "id", "sha256sum", "find", "grep", "gzip"} {
		require.NoError(t, os.Symlink(box, filepath.Join(o.bin, applet)))
	}
	r := o.connect()
	requireWorks(t, r)
	require.NotContains(t, o.logged(), "not found")
}

func TestSameBuildInPathIsUsed(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.Bootstrap = false
	o.install()
	requireWorks(t, o.connect())
	require.Empty(t, o.cache())
}

func TestOtherBuildInPathIsSkipped(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.program("zxfer", "echo 0123")
	requireWorks(t, o.connect())
	require.Len(t, o.cache(), 1)
}

// installVersion puts a zxfer into the PATH that prints said as its version.
func (o *other) installVersion(stderr string) {
	o.t.Helper()
	self, err := os.Executable()
	require.NoError(o.t, err)
	o.program("zxfer", "if [ \"$2\" = --id ]; then echo '"+stderr+"'; exit; fi\nexec "+shellquote.Join(self)+" \"$@\"")
}

func TestInstalledSameReleaseIsUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said, release string
		used          bool
	}{
		"the same release":             {"0123 0.9.0/2", "0.9.0/2", true},
		"another release":              {"0123 0.8.0/2", "0.9.0/2", false},
		"another protocol":             {"0123 0.9.0/3", "0.9.0/2", false},
		"no release":                   {"0123 devel/2", "", false},
		"no output":                    {"0123 ", "", false},
		"another program of this name": {"usage: zxfer [-dF] FILE", "0.9.0/2", false},
		"a pattern":                    {"0123 *", "0.9.0/2", false},
		"format of an earlier zxfer":   {"0123", "0.9.0/2", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "")
			o.installVersion(c.said)
			o.Release = c.release
			o.Bootstrap = false
			conn, err := Agent(t.Context(), o.Options)
			if c.used {
				require.NoError(t, err)
				require.NoError(t, conn.Close())
				return
			}
			require.Equal(t, fault.Refused, fault.ClassOf(err))
			if c.release != "" && strings.Contains(c.said, "0.") {
				require.ErrorContains(t, err, "zxfer there is "+strings.Fields(c.said)[1]+", the local one is 0.9.0/2, and {{no-bootstrap}} forbids copying this one")
			} else {
				require.ErrorContains(t, err, "zxfer is missing there, or is another build, and")
			}
		})
	}
}

func TestForcedCommandStartsAgent(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.install()
	o.remote("echo Welcome; exec zxfer agent")
	requireWorks(t, o.connect())
	require.Contains(t, o.logged(), "beta: Welcome")
}

func TestLoginShellMayPrint(t *testing.T) {
	t.Parallel()
	for name, profile := range map[string]string{
		"lines":                  "echo Welcome to beta; echo; echo 'You have mail.'",
		"an unterminated line":   `printf '\033]0;beta\007'`,
		"on stderr":              "echo 'stdin: is not a tty' >&2",
		"60 KB":                  "head -c 60000 /dev/zero | tr '\\0' 'x'",
		"a word like the marker": "echo zxfer-agent; echo zxfer-needle",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", profile)
			o.install()
			requireWorks(t, o.connect())
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(o *other)
		want    string
		hint    string
	}{
		"no bootstrap": {func(o *other) { o.Bootstrap = false },
			"zxfer is missing there, or is another build, and {{no-bootstrap}} forbids copying this one", "omit {{no-bootstrap}} to"},
		"no bootstrap, another build installed": {func(o *other) { o.Bootstrap = false; o.program("zxfer", "echo 0123") },
			"is another build", "install the same zxfer there"},
		"another architecture": {func(o *other) { o.program("uname", `[ "$1" = -m ] && echo riscv64 || echo Linux`) },
			"beta: its machine is riscv64, this zxfer is for ", "GOARCH="},
		"another system": {func(o *other) { o.program("uname", `[ "$1" = -m ] && echo x86_64 || echo FreeBSD`) },
			"beta: its system is FreeBSD, this zxfer is for Linux", "Linux only"},
		"no writable directory": {func(o *other) {
			_ = os.WriteFile(filepath.Join(o.home, ".cache"), nil, 0o600)
			_ = os.Remove(o.tmp)
			_ = os.WriteFile(o.tmp, nil, 0o600)
		},
			"no directory takes zxfer", "install the same zxfer"},
		"a link instead of the last directory": {func(o *other) {
			_ = os.WriteFile(filepath.Join(o.home, ".cache"), nil, 0o600)
			_ = os.Symlink(o.home, o.fallbackCache())
		}, "is not used: it is a link, or others may write it", "install the same zxfer"},
		"binary does not run": {func(o *other) { o.program("chmod", "exit 0") },
			"is it on a file system mounted noexec?", "install the same zxfer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "")
			c.prepare(o)
			_, err := Agent(t.Context(), o.Options)
			require.ErrorContains(t, err, "beta: ")
			require.ErrorContains(t, err, c.want)
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
			require.Contains(t, fault.HintOf(err), c.hint)
			require.Empty(t, o.cache(), "nothing is left")
		})
	}
}

func TestUnusableFileSystem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ options, want string }{
		"noexec": {"noexec", "is it on a file system mounted noexec?"},
		"full":   {"size=256k", "No space left on device"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.NeedsRoot(t, "to mount")
			o := newOther(t, "sh", "")
			if out, err := exec.Command("mount", "-t", "tmpfs", "-o", c.options, "tmpfs", o.home).CombinedOutput(); err != nil {
				t.Skipf("needs a mount: %v: %s", err, out)
			}
			unmountAtEnd(t, o.home)
			_, err := Agent(t.Context(), o.Options)
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, o.home, "the path is named")
			require.Empty(t, o.cache())
		})
	}
}

func TestInterruptedCopyLeavesNothing(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.remote(`head -c 100000 | sh -c "$command"`)
	_, err := Agent(t.Context(), o.Options)
	require.ErrorContains(t, err, "the copy of zxfer was cut off")
	require.Empty(t, o.cache())
	o.remote(`exec sh -c "$command"`)
	requireWorks(t, o.connect())
}

func TestCorruptCopyIsNotUsed(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.program("chmod", `printf x >> "$2"; exec /bin/chmod "$@"`)
	_, err := Agent(t.Context(), o.Options)
	require.Error(t, err)
	require.Empty(t, o.cache())
}

// TestEmptyCopyIsReplaced expects that a file without its data is copied again. A
// power failure soon after the bootstrap can cause it.
func TestEmptyCopyIsReplaced(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	require.NoError(t, os.MkdirAll(filepath.Dir(o.cached()), 0o700))
	require.NoError(t, os.WriteFile(o.cached(), nil, 0o700))
	requireWorks(t, o.connect())
	require.Contains(t, o.logged(), "copying zxfer there")
	require.Equal(t, []string{standIn.id}, o.cache())
}

func TestOldBuildsAreRemoved(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	cache := filepath.Join(o.home, ".cache", "zxfer")
	// Partial copies, also of other hosts that share the home.
	copies := []string{"part.beta.1", "part.beta.2", "part.beta.3", "part.beta.4", "part.beta.5", "part.gamma.1"}
	for _, name := range copies {
		require.NoError(t, os.MkdirAll(filepath.Join(cache, name), 0o700))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(cache, "notes"), 0o700)) // not zxfer's
	machine, err := exec.Command("uname", "-m").Output()
	require.NoError(t, err)
	for i, name := range []string{"a", "b", "c", "d", "e", "f", "part.x", "aa", "ab", "ac"} {
		require.NoError(t, os.MkdirAll(filepath.Join(cache, name), 0o700))
		of := string(machine)
		if len(name) == 2 {
			of = "another\n" // other machine that shares the home
		}
		if name != "b" { // from an older zxfer
			require.NoError(t, os.WriteFile(filepath.Join(cache, name, "whole"), []byte("boot "+of), 0o600))
		}
		at := time.Now().Add(-time.Duration(i+1) * 24 * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(cache, name), at, at))
	}
	requireWorks(t, o.connect())
	require.ElementsMatch(t, append(copies, "a", "b", "aa", "ab", "ac", "notes", standIn.id), o.cache())
}

func TestErrorsQuoteRemoteShell(t *testing.T) {
	t.Parallel()
	ssh := filepath.Join(t.TempDir(), "ssh")
	require.NoError(t, os.Symlink("/bin/sh", ssh))
	for name, c := range map[string]struct {
		command string
		want    string
		hint    string
		class   fault.Class
	}{
		"missing":        {"/no/such/rsh -v", "beta: cannot start the remote shell: ", "{{rsh}}", fault.Failed},
		"unreadable":     {"ssh 'x", `cannot parse remote shell "ssh 'x"`, "ssh -p 2222", fault.Usage},
		"ssh":            {ssh + " -c 'echo kex: no route >&2; echo Bye. >&2; exit 255'", "beta: ssh: kex: no route; Bye.", "test the connection: " + ssh, fault.Failed},
		"silent ssh":     {ssh + " -c 'exit 255'", "beta: ssh: exit status 255", "test the connection", fault.Failed},
		"not ssh":        {"sh -c 'echo no >&2; exit 255'", "beta: sh: exit status 255: no", "", fault.Failed},
		"no remote sh":   {"sh -c 'echo sh: not found >&2; exit 127'", "beta: sh: exit status 127: sh: not found", "", fault.Failed},
		"no login":       {"sh -c 'echo This account is not available.; exit 1'", "its shell: This account is not available.", "", fault.Failed},
		"exits with 0":   {"sh -c 'echo Bye.'", "beta: no agent answered; its shell said: Bye.", "", fault.Failed},
		"killed":         {"sh -c 'kill -9 $$'", "beta: sh was killed: killed", "", fault.Failed},
		"endless output": {"yes", "beta: no agent answered in the first 65536 bytes of its output", "~/.bashrc", fault.Failed},
		"one line":       {"cat /dev/zero", "beta: ", "~/.bashrc", fault.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logged []string
			_, err := Agent(t.Context(), Options{Host: "beta", Command: c.command, Log: func(s string) { logged = append(logged, s) }})
			if name != "endless output" && name != "one line" {
				require.Empty(t, logged, "a message is shown once")
			}
			require.ErrorContains(t, err, c.want)
			require.Contains(t, fault.HintOf(err), c.hint)
			require.Equal(t, c.class, fault.ClassOf(err))
		})
	}
}

func TestSilentHostTimesOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		patience time.Duration
		want     string
	}{
		"timeout":   {200 * time.Millisecond, "beta: no agent answered within 200ms"},
		"cancelled": {0, "beta: context deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "")
			o.remote(`echo Welcome; echo $$ > "$HOME/pid"; trap "" HUP; exec sleep 600`)
			o.ConnectTimeout = c.patience
			ctx := t.Context()
			if c.patience == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
			}
			_, err := Agent(ctx, o.Options)
			require.EqualError(t, err, c.want)
		})
	}
}

func TestArgv(t *testing.T) {
	t.Parallel()
	options := []string{"-T", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "ConnectTimeout=20",
		"-o", "ForwardAgent=no", "-o", "ForwardX11=no", "-o", "ClearAllForwardings=yes", "-e", "none", "--"}
	join := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for name, c := range map[string]struct {
		o    Options
		want []string
		err  string
	}{
		"default":        {Options{Host: "u@h"}, join([]string{"ssh"}, options, []string{"u@h", "cmd"}), ""},
		"user's first":   {Options{Host: "h", Command: "/usr/bin/ssh -o 'ServerAliveInterval=60' -p 22"}, join([]string{"/usr/bin/ssh", "-o", "ServerAliveInterval=60", "-p", "22"}, options, []string{"h", "cmd"}), ""},
		"not ssh":        {Options{Host: "h", Command: "docker exec -i"}, []string{"docker", "exec", "-i", "h", "cmd"}, ""},
		"option as host": {Options{Host: "-oProxyCommand=x"}, nil, `"-oProxyCommand=x" is not the name of a host`},
		"no host":        {Options{}, nil, `"" is not the name of a host`},
		"blank command":  {Options{Host: "h", Command: "  "}, nil, "cannot parse remote"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.o.argv("cmd")
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestScriptIsQuotedForAnyLoginShell(t *testing.T) {
	t.Parallel()
	require.NotContains(t, bootstrap, "'")
	require.NotContains(t, bootstrap, "!")
	require.NotContains(t, bootstrap, "\n")
	require.Equal(t, "exec sh -c '"+bootstrap+"' zxfer ab 0.9.0/2", command("ab", "0.9.0/2"))
	require.True(t, strings.HasSuffix(command("ab", ""), "' zxfer ab ''"))
}

// TestShellScripts expects that shellcheck finds nothing in the scripts that zxfer runs on other hosts, except
// for the codes with a reason.
func TestShellScripts(t *testing.T) {
	t.Parallel()
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Skip("shellcheck is not installed: apt install shellcheck")
	}
	for name, text := range map[string]string{"cachedirs.sh": cacheDirsFile, "bootstrap.sh": `i="$1"; r="$2"; o="$(pwd)"; ` + cacheDirsFile + bootstrapFile} {
		cmd := exec.CommandContext(t.Context(), shellcheck, "--shell=sh", "--format=gcc", "--exclude="+strings.Join([]string{
			"SC2034",           // x and i are read and not used
			"SC2010", "SC2012", // ls -t sorts by time, and the names are hexadecimal
			"SC2015", // the last command of a && b || c never fails after a
			"SC2164", // no later command depends on a cd that may fail
			"SC3013", // dash, busybox, mksh, ksh and bash have -nt
		}, ","), "-")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", name, out)
	}
}
