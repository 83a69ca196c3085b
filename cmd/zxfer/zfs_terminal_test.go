package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// onTerminal starts a process as the leader of a new terminal. Its output goes to p.stdout. It returns the
// other side of the terminal.
func onTerminal(t *testing.T, p *process) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	output := p.stdout
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = terminal, terminal, terminal
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.start(t)
	require.NoError(t, terminal.Close())
	go func() { _, _ = io.Copy(output, master) }()
	return master
}

// TestZFSTerminal runs zxfer on a terminal. ssh asks there for the passphrase of its key. ^C goes to all
// processes of the terminal. The test expects that it costs no connection, and that one line, and
// not one for each dataset, counts what arrived.
func TestZFSTerminal(t *testing.T) {
	lab(t)
	agentlessAccount(t, "nas", loginShell)
	dir := t.TempDir()
	config := filepath.Join(dir, "ssh_config")
	text := fileText(filepath.Join(labDir, "ssh_config"))
	for i, key := range []string{filepath.Join(labDir, "user_key"), filepath.Join(labDir, "accounts/nas/key")} {
		locked := filepath.Join(dir, fmt.Sprint("key", i))
		run(t, "cp", key, locked)
		run(t, "ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", locked)
		require.Contains(t, text, key)
		text = strings.ReplaceAll(text, key, locked)
	}
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))

	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	for _, child := range []string{"/a", "/b", "/c", "/d", "/e"} {
		zfsCmd(t, "create", src+child)
		fill(t, src+child, "file", 4<<20)
	}
	zfsCmd(t, "snapshot", "-r", src+"@one")
	for _, host := range []string{"beta", "nas"} {
		dst := dst + "/" + host
		p := prepareProcess(t, []string{"ZXFER_RSH=ssh -F " + config, "SSH_AUTH_SOCK=", "TERM=xterm"}, alphaBin,
			"send", "-R", "--parallel", "3", "--bwlimit", "2MiB", src, host+":"+dst)
		terminal := onTerminal(t, p)
		prompt := "Enter passphrase for key"
		seen := func() bool { return p.ended() || strings.Contains(p.stdout.String(), prompt) }
		require.Eventually(t, seen, testenv.Timeout(), 20*time.Millisecond)
		_, err := terminal.WriteString("secret\n")
		require.NoError(t, err)
		waitReceived(t, p, betaPool, isZFS("receive"), 1<<20)
		require.NoError(t, exec.Command("pgrep", "-f", "ControlPath=/proc/").Run(), "no shared connection: %s", p.stdout)
		_, err = terminal.WriteString("\x03")
		require.NoError(t, err)
		o := p.wait(t)
		require.Eventually(t, func() bool { return strings.Contains(p.stdout.String(), "hint:") }, testenv.Timeout(), 20*time.Millisecond)
		shown := regexp.MustCompile(`\x1b\[[0-9;?]*[a-zA-Z]|\r`).ReplaceAllString(p.stdout.String(), "")
		require.Equal(t, 4, o.code, shown)
		require.NotContains(t, shown, "lost")
		require.NotContains(t, shown, "failure")
		require.Equal(t, 1, strings.Count(shown, "zxfer: "), shown)
		require.Regexp(t, `\nzxfer: `+src+`: interrupted: [0-5] of 6 streams complete, [0-9.]+ [KM]iB sent\nhint: the same command resumes\n$`, shown)
		requireNoLeftovers(t)
		mustZxfer(t, "send", "-R", src, host+":"+dst)
		requireSameFiles(t, src+"/a", dst+"/a")
	}
}
