package sshexec

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// Commands of the test binary.
const (
	masterWord   = "socket-master"   // serveSocket
	intruderWord = "socket-intruder" // intrude
)

// otherUser is a user without rights.
const otherUser = 65534

// serveSocket is an ssh that shares its connection: it creates a socket after a login of some milliseconds.
func serveSocket(args []string) {
	for _, arg := range args {
		if path, ok := strings.CutPrefix(arg, "ControlPath="); ok {
			time.Sleep(20 * time.Millisecond)
			greet(path, "ssh")
		}
	}
	os.Exit(0) // -G
}

// greet answers connections to a socket, which appears when it listens, as ssh's does.
func greet(path, greeting string) {
	l, err := net.Listen("unix", path+".new")
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(255)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(255)
		}
		_, _ = io.WriteString(c, greeting)
		_ = c.Close()
	}
}

// intrude is another user of the host. It reads the paths of sockets in argument lists, and creates each
// socket and its directory if they do not exist. It never ends.
func intrude() {
	fmt.Println("ready")
	seen := map[string]bool{}
	for {
		procs, _ := os.ReadDir("/proc")
		for i := len(procs) - 1; i >= 0; i-- {
			raw, err := os.ReadFile("/proc/" + procs[i].Name() + "/cmdline")
			if err != nil || !bytes.Contains(raw, []byte("ControlPath=")) {
				continue
			}
			for word := range bytes.SplitSeq(raw, []byte{0}) {
				path, ok := strings.CutPrefix(string(word), "ControlPath=")
				if !ok || seen[path] {
					continue
				}
				seen[path] = true
				_ = os.MkdirAll(filepath.Dir(path), 0o755)
				if err := os.WriteFile(path, nil, 0o666); err == nil {
					go greet(path, "intruder")
				}
			}
		}
	}
}

// TestOtherUserCannotAnswerAsHost lets another user of this host create the socket of each shared connection
// as soon as a process shows its path.
func TestOtherUserCannotAnswerAsHost(t *testing.T) {
	t.Parallel()
	testenv.NeedsRoot(t, "to become another user")
	self, err := os.Executable()
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "ssh")
	testenv.WriteProgram(t, program, "#!/bin/sh\nexec "+shellquote.Join(self)+" "+masterWord+` "$@"`+"\n")
	tmp, err := os.MkdirTemp("", "race") // t.TempDir admits no other user
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	require.NoError(t, os.Chmod(tmp, 0o777|os.ModeSticky))

	intruder := exec.CommandContext(t.Context(), "/proc/self/exe", intruderWord)
	intruder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	out, err := intruder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, intruder.Start())
	// The start shared this process's memory with the other user.
	require.NoError(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	t.Cleanup(func() { _ = intruder.Process.Kill(); _ = intruder.Wait() })
	_, err = io.ReadFull(out, make([]byte, len("ready\n")))
	require.NoError(t, err)

	failed, intruded := 0, 0
	for range 40 {
		m, err := StartMaster(t.Context(), Options{Host: "beta", Command: shellquote.Join(program), runDirs: []string{tmp}})
		if err != nil {
			failed++
			continue
		}
		require.NotNil(t, m.dir)
		path := strings.TrimPrefix(m.Options.mux[len(m.Options.mux)-1], "ControlPath=")
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		greeting, err := io.ReadAll(c)
		require.NoError(t, err)
		if string(greeting) != "ssh" {
			intruded++
		}
		require.NoError(t, c.Close())
		require.NoError(t, m.Close())
	}
	require.Equal(t, [2]int{}, [2]int{intruded, failed}, "connections with another user, and failed ones")
	requireEmptyDir(t, tmp)
}

// TestSocketDirectoryIsPrivate expects a directory of this user with mode 0700 that exists before ssh starts,
// and none in a parent in which other users can rename it.
func TestSocketDirectoryIsPrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	parent := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	open, group, sticky, own := parent("open", 0o777), parent("group", 0o770), parent("sticky", 0o777|os.ModeSticky), parent("own", 0o755)
	require.Nil(t, newSocketDir([]string{open, group, "relative", filepath.Join(dir, "missing"), "/dev/null"}))
	if os.Geteuid() == 0 {
		foreign := parent("foreign", 0o777|os.ModeSticky) // its owner can rename what is in it
		require.NoError(t, os.Chown(foreign, otherUser, otherUser))
		require.Nil(t, newSocketDir([]string{foreign}))
	}
	for _, path := range []string{sticky, own} {
		d := newSocketDir([]string{open, path})
		require.NotNil(t, d)
		info, err := os.Lstat(filepath.Join(path, d.name))
		require.NoError(t, err)
		require.Equal(t, os.ModeDir|0o700, info.Mode())
		require.False(t, d.hasSocket())
		require.NoError(t, os.WriteFile(d.socket(), nil, 0o600))
		require.FileExists(t, filepath.Join(path, d.name, socketName))
		require.True(t, d.hasSocket())
		// If the directory was exchanged, the path still leads to the checked one.
		require.NoError(t, os.Rename(filepath.Join(path, d.name), filepath.Join(path, "moved")))
		require.NoError(t, os.Mkdir(filepath.Join(path, d.name), 0o700))
		require.FileExists(t, d.socket())
		require.NoError(t, os.Remove(filepath.Join(path, d.name)))
		require.NoError(t, os.Rename(filepath.Join(path, "moved"), filepath.Join(path, d.name)))
		d.remove()
		requireEmptyDir(t, path)
	}
}

// TestSocketDirectoryLeftovers expects that the next connection removes what killed processes left, and
// nothing else.
func TestSocketDirectoryLeftovers(t *testing.T) {
	t.Parallel()
	parent, elsewhere := t.TempDir(), t.TempDir()
	living := newSocketDir([]string{parent})
	killed := newSocketDir([]string{parent})
	require.NoError(t, os.WriteFile(killed.socket()+".partial", nil, 0o600))
	require.NoError(t, killed.dir.Close()) // releases the lock, as the kernel does
	kept := filepath.Join(elsewhere, "file")
	require.NoError(t, os.WriteFile(kept, nil, 0o600))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(parent, socketDirPrefix+"link")))
	require.NoError(t, os.Mkdir(filepath.Join(parent, "other"), 0o700))
	next := newSocketDir([]string{parent})
	require.FileExists(t, kept)
	names := []string{}
	entries, err := os.ReadDir(parent)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.ElementsMatch(t, []string{living.name, next.name, "other", socketDirPrefix + "link"}, names)
	living.remove()
	next.remove()
}

// TestSharedConnectionIsOptional expects no shared connection by zxfer if the user's configuration shares one.
// It expects no directory after a failed login.
func TestSharedConnectionIsOptional(t *testing.T) {
	t.Parallel()
	dir, run := t.TempDir(), t.TempDir()
	program := filepath.Join(dir, "ssh")
	testenv.WriteProgram(t, program, "#!/bin/sh\necho 'Permission denied (publickey).' >&2; exit 255\n")
	_, err := StartMaster(t.Context(), Options{Host: "beta", Command: shellquote.Join(program), runDirs: []string{run}})
	require.ErrorContains(t, err, "Permission denied")
	requireEmptyDir(t, run)

	config := filepath.Join(dir, "config")
	require.NoError(t, os.WriteFile(config, []byte("Host beta\nControlPath ~/.ssh/%C\n"), 0o600))
	m, err := StartMaster(t.Context(), Options{Host: "beta", Command: "ssh -F " + shellquote.Join(config), runDirs: []string{run}})
	require.NoError(t, err)
	require.Nil(t, m.dir)
	require.False(t, m.Options.detached, "ssh may have to ask for a password")
	require.NoError(t, m.Close())
	requireEmptyDir(t, run)
	testenv.WriteProgram(t, program, "#!/bin/sh\ncase $* in *-G*) echo controlpath /x;; *'-O check'*) ;; *) exit 1;; esac\n")
	m, err = StartMaster(t.Context(), Options{Host: "beta", Command: shellquote.Join(program), runDirs: []string{run}})
	require.NoError(t, err)
	require.Nil(t, m.dir)
	require.True(t, m.Options.detached, "the connection of the configuration is open")
	require.False(t, (&Options{Host: "gamma", Command: "ssh -F " + shellquote.Join(config)}).hasControlPath(t.Context()))
}

// TestKilledZxferLeavesNoSocketDirectory ends the input of the shell that watches a shared connection, as
// kill -9 of zxfer does.
func TestKilledZxferLeavesNoSocketDirectory(t *testing.T) {
	t.Parallel()
	dir, run := t.TempDir(), t.TempDir()
	program := filepath.Join(dir, "ssh")
	testenv.WriteProgram(t, program, "#!/bin/sh\ncase $* in *-G*) exit;; esac\n"+
		"for word; do case $word in ControlPath=*) : >\"${word#*=}\";; esac; done\nexec sleep 100000\n")
	m, err := StartMaster(context.Background(), Options{Host: "beta", Command: shellquote.Join(program), runDirs: []string{run}})
	require.NoError(t, err)
	removed := make(chan struct{})
	end := m.end
	m.end = func(timeout time.Duration) {
		end(timeout)
		requireEmptyDir(t, run) // by the shell
		close(removed)
	}
	require.NoError(t, m.Close())
	<-removed
}

func requireEmptyDir(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
