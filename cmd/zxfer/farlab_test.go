package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// farHosts are two network namespaces of this host, connected by a delayLine. They use the
// kernel's TCP at full speed, without ZFS. zxfer runs on near, and far runs sshd.
type farHosts struct {
	line      *delayLine
	near, far lineEnd
	dir       string
}

// newFarHosts creates the hosts with Linux's default socket buffers. sshd holds additional
// lines for sshd's configuration.
func newFarHosts(t testing.TB, s lineShape, sshd ...string) *farHosts {
	t.Helper()
	testenv.NeedsRoot(t, "to make network namespaces")
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs %v", err)
	}
	sshdPath(t)
	host := func(name, address string) lineEnd {
		return lineEnd{Namespace: fmt.Sprintf("zxfar-%d-%s", os.Getpid(), name), Device: fmt.Sprintf("zxfar%x%s", os.Getpid(), name), Address: netip.MustParsePrefix(address)}
	}
	f := &farHosts{near: host("a", "10.80.0.1/24"), far: host("b", "10.80.0.2/24"), dir: t.TempDir()}
	var err error
	f.line, err = newDelayLine(f.near, f.far, s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.line.Close()) })
	for _, h := range []lineEnd{f.near, f.far} {
		f.on(t, h, "sysctl", "-qw", defaultRead, defaultWrite)
	}
	require.NoError(t, installSelf(t, filepath.Join(f.dir, "zxfer")))
	f.sshd(t, sshd)
	return f
}

// sshdPath returns the absolute path of sshd, which sshd needs to restart itself. If PATH has
// no sshd, it skips the test. scripts/programs installs one.
func sshdPath(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("sshd")
	if err != nil {
		t.Skip("needs sshd in PATH, see scripts/programs")
	}
	return path
}

// sshd starts sshd on the far host. The near host knows it as beta.
func (f *farHosts) sshd(t testing.TB, lines []string) {
	t.Helper()
	require.NoError(t, os.MkdirAll("/run/sshd", 0o755))
	address := f.far.Address.Addr().String()
	at := func(name string) string { return filepath.Join(f.dir, name) }
	for _, key := range []string{"key", "host_key"} {
		run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key))
	}
	public, err := os.ReadFile(at("host_key.pub"))
	require.NoError(t, err)
	for name, text := range map[string]string{
		"known_hosts": "beta," + address + " " + string(public),
		"ssh_config": "Host beta\n HostName " + address + "\n User root\n IdentityFile " + at("key") +
			"\n IdentitiesOnly yes\n UserKnownHostsFile " + at("known_hosts") + "\n LogLevel ERROR\n",
		"sshd_config": "ListenAddress " + address + "\nHostKey " + at("host_key") + "\nAuthorizedKeysFile " + at("key.pub") +
			"\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPrintMotd no\nSetEnv PATH=" + f.dir + ":/usr/sbin:/usr/bin:/sbin:/bin XDG_CACHE_HOME=" + at("cache") + "\n" + strings.Join(lines, "\n") + "\n",
	} {
		require.NoError(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	cmd := f.command(f.far, sshdPath(t), "-D", "-f", at("sshd_config"), "-E", at("sshd.log"))
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		out, err := f.command(f.far, "ss", "-Hltn", "sport = :22").Output()
		return err == nil && len(out) > 0
	}, testenv.Timeout(), 20*time.Millisecond, "sshd does not listen")
}

// Default socket buffers of Linux.
const (
	defaultRead  = "net.ipv4.tcp_rmem=4096 131072 6291456"
	defaultWrite = "net.ipv4.tcp_wmem=4096 16384 4194304"
)

// command returns a command on a host. Its high priority keeps other work of this machine from
// distorting measurements.
func (f *farHosts) command(h lineEnd, argv ...string) *exec.Cmd {
	return exec.Command("nice", append([]string{"-n", "-10", "ip", "netns", "exec", h.Namespace}, argv...)...)
}

// on runs a command on a host.
func (f *farHosts) on(t testing.TB, h lineEnd, argv ...string) {
	t.Helper()
	out, err := f.command(h, argv...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// zxfer runs zxfer on the near host and decodes its JSON output into report. It uses a
// congestion control that every kernel has.
func (f *farHosts) zxfer(t testing.TB, report any, verb string, args ...string) {
	t.Helper()
	argv := append([]string{"env", "PATH=" + f.dir + ":" + os.Getenv("PATH"), "ZXFER_RSH=ssh -F " + filepath.Join(f.dir, "ssh_config"),
		"zxfer", verb, "--json", "--congestion", "reno"}, args...)
	cmd := f.command(f.near, argv...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, &stderr)
	require.NoError(t, json.Unmarshal(out, report), "%s", out)
}
