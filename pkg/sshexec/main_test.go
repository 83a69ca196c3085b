package sshexec

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
)

// TestMain makes this test binary a zxfer if its first argument is a command of zxfer.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		if err := fakeZxfer(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "zxfer:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == masterWord {
		serveSocket(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == intruderWord {
		intrude()
	}
	os.Exit(runTests(m))
}

// runTests runs the tests with a stand-in in a directory that it removes.
func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "zxfer-rsh")
	if err == nil {
		defer os.RemoveAll(dir)
		err = makeStandIn(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a stand-in for zxfer:", err)
		return 1
	}
	return m.Run()
}

// standIn is a shell script that starts the test binary as zxfer. The tests copy it to hosts
// instead of the test binary, which has tens of megabytes. Random text makes it larger than a
// host's pipe, buffer or small file system, also if compressed.
var standIn struct {
	build
	path string
}

// makeStandIn writes the stand-in to a directory. It does so before any test starts a
// process: the kernel does not run a file that a process still has open for writing.
func makeStandIn(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	sum, err := exec.LookPath("sha256sum")
	if err != nil {
		return err
	}
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // never fails
	text := "#!/bin/sh\n" +
		`if [ "$2" = --id ]; then sum=$(` + shellquote.Join(sum) + ` <"$0"); echo "${sum%% *} devel/2"; exit; fi` + "\n" +
		"exec " + shellquote.Join(self) + ` "$@"` + "\n" +
		"# " + base64.StdEncoding.EncodeToString(noise) + "\n"
	hash := sha256.Sum256([]byte(text))
	standIn.id, standIn.bytes = hex.EncodeToString(hash[:]), []byte(text)
	standIn.path = filepath.Join(dir, "zxfer")
	return os.WriteFile(standIn.path, standIn.bytes, 0o700)
}

// fakeZxfer does as much of zxfer as an agent needs. It writes its process id to the file
// $TEST_PID.
func fakeZxfer(args []string) error {
	arg := strings.TrimPrefix(strings.Join(args, " "), "agent")
	if arg == " --id" {
		self, err := ThisBinary()
		fmt.Println(self.ID, "devel/2")
		return err
	}
	if err := os.WriteFile(os.Getenv("TEST_PID"), []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	s := &agent.Server{Version: "test", Host: hosts.NewLocal("test", func(string) {})}
	s.SilenceTimeout, _ = time.ParseDuration(os.Getenv("TEST_SILENCE"))
	return s.Serve(context.Background(), os.Stdin, os.Stdout)
}

// other simulates another host: a home directory and a remote shell that runs its commands locally.
type other struct {
	t    *testing.T
	home string
	bin  string // first directory in its PATH
	tmp  string // its TMPDIR
	logs chan string
	Options
}

// newOther returns a host. profile runs first in the account's shell; login is the login shell.
func newOther(t *testing.T, login, profile string) *other {
	t.Helper()
	dir := t.TempDir()
	o := &other{t: t, home: filepath.Join(dir, "a home"), bin: filepath.Join(dir, "bin"), tmp: filepath.Join(dir, "tmp"), logs: make(chan string, 10_000)}
	for _, d := range []string{o.home, o.bin, o.tmp} {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	// Otherwise the script would also use this account's home.
	o.program("getent", "[ -f "+o.passwd()+" ] && read -r line <"+o.passwd()+" && echo \"$line\"; exit 0")
	o.remote(profile + "\nexec " + login + ` -c "$command"`)
	o.ownBuild = &standIn.build
	o.Options.Host, o.Bootstrap, o.Log = "beta", true, func(s string) { o.logs <- s }
	o.ConnectTimeout = testenv.Timeout()
	return o
}

// passwd returns the file that stands for the host's user database.
func (o *other) passwd() string { return filepath.Join(filepath.Dir(o.bin), "passwd") }

// remote sets the action of the remote shell on $command.
func (o *other) remote(script string) {
	o.t.Helper()
	rsh := filepath.Join(o.t.TempDir(), "rsh")
	require.NoError(o.t, os.WriteFile(rsh, []byte("command=$2; HOME='"+o.home+"'; PATH='"+o.bin+"':/usr/bin:/bin; TMPDIR='"+o.tmp+"'; TEST_PID='"+o.tmp+"/pid'; export HOME PATH TMPDIR TEST_PID; unset XDG_CACHE_HOME\n"+script), 0o600))
	o.Command = shellquote.Join("/bin/sh", rsh)
}

// install puts the expected zxfer into the host's PATH.
func (o *other) install() {
	o.t.Helper()
	require.NoError(o.t, os.Symlink(standIn.path, filepath.Join(o.bin, "zxfer")))
}

// program creates a shell script on the host.
func (o *other) program(name, text string) {
	o.t.Helper()
	// Runs sh, because a new file may be too busy to execute.
	file := filepath.Join(o.t.TempDir(), name)
	testenv.WriteProgram(o.t, file, "#!/bin/sh\n"+text)
	require.NoError(o.t, os.Symlink(file, filepath.Join(o.bin, name)))
}

func (o *other) logged() string {
	var all []string
	for {
		select {
		case line := <-o.logs:
			all = append(all, line)
		default:
			return strings.Join(all, "\n")
		}
	}
}

// cache lists the files in the host's cache.
func (o *other) cache() []string {
	o.t.Helper()
	all, err := filepath.Glob(filepath.Join(o.home, ".cache", "zxfer", "*"))
	require.NoError(o.t, err)
	for i := range all {
		all[i] = filepath.Base(all[i])
	}
	return all
}

// pid returns the process id of the agent.
func (o *other) pid() int {
	o.t.Helper()
	text, err := os.ReadFile(filepath.Join(o.tmp, "pid"))
	require.NoError(o.t, err)
	pid, err := strconv.Atoi(string(text))
	require.NoError(o.t, err)
	return pid
}

// connect connects to the host's agent.
func (o *other) connect() *agent.Remote {
	o.t.Helper()
	c, err := Agent(o.t.Context(), o.Options)
	require.NoError(o.t, err)
	r, err := agent.NewRemote(o.t.Context(), o.Host, c, o.Log)
	require.NoError(o.t, err)
	o.t.Cleanup(func() { _ = r.Close() })
	return r
}

// skipManyCopies skips a test that copies the binary many times at the quick level.
func skipManyCopies(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("not at the quick level: copies the binary many times")
	}
}

// requireWorks requires a reply from an agent.
func requireWorks(t *testing.T, r *agent.Remote) {
	t.Helper()
	_, err := hosts.Call(t.Context(), r, hosts.OpDatasetOf, "relative path")
	require.Error(t, err)
	require.NotErrorIs(t, err, hosts.ErrLost)
}

// unmountAtEnd unmounts dir at the end of the test, after the last agent in it has ended.
func unmountAtEnd(t *testing.T, dir string) {
	t.Helper()
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return syscall.Unmount(dir, 0) == nil }, testenv.Timeout(), 5*time.Millisecond, "%s is busy", dir)
	})
}

// requireEnded waits until a process has ended.
func requireEnded(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, testenv.Timeout(), 5*time.Millisecond, "process %d still runs", pid)
}
