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

	"zxfer/pkg/job"
)

// farHosts are two network namespaces of this host, far from each other: the
// kernel's TCP at full speed, without ZFS. near is where zxfer is run, and far
// has an sshd.
type farHosts struct {
	line      *delayLine
	near, far lineEnd
	dir       string
}

// newFarHosts makes them, the far one's sshd with further lines of configuration.
// Windows there are Linux's default.
func newFarHosts(t *testing.T, s lineShape, sshd ...string) *farHosts {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	for _, need := range []string{"/dev/net/tun", "/usr/sbin/sshd"} {
		if _, err := os.Stat(need); err != nil {
			t.Skipf("needs %v", err)
		}
	}
	host := func(name, address string) lineEnd {
		return lineEnd{Namespace: fmt.Sprintf("zxfar-%d-%s", os.Getpid(), name), Device: "zxfar" + name, Address: netip.MustParsePrefix(address)}
	}
	f := &farHosts{near: host("a", "10.80.0.1/24"), far: host("b", "10.80.0.2/24"), dir: t.TempDir()}
	var err error
	f.line, err = newDelayLine(f.near, f.far, s)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.line.Close()) })
	for _, h := range []lineEnd{f.near, f.far} {
		f.on(t, h, "sysctl", "-qw", defaultRead, defaultWrite)
	}
	require.NoError(t, installSelf(filepath.Join(f.dir, "zxfer")))
	f.sshd(t, sshd)
	return f
}

// sshd starts one on the far host, which the near one knows as beta.
func (f *farHosts) sshd(t *testing.T, lines []string) {
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
	cmd := f.command(f.far, "/usr/sbin/sshd", "-D", "-f", at("sshd_config"), "-E", at("sshd.log"))
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		out, err := f.command(f.far, "ss", "-Hltn", "sport = :22").Output()
		return err == nil && len(out) > 0
	}, 10*time.Second, 20*time.Millisecond, "sshd does not listen")
}

// Linux's default windows.
const (
	defaultRead  = "net.ipv4.tcp_rmem=4096 131072 6291456"
	defaultWrite = "net.ipv4.tcp_wmem=4096 16384 4194304"
)

// command is one to be run on a host, before the machine's other work: what it
// measures is not to be how busy the machine is.
func (f *farHosts) command(h lineEnd, argv ...string) *exec.Cmd {
	return exec.Command("nice", append([]string{"-n", "-10", "ip", "netns", "exec", h.Namespace}, argv...)...)
}

// on runs a command on a host.
func (f *farHosts) on(t *testing.T, h lineEnd, argv ...string) {
	t.Helper()
	out, err := f.command(h, argv...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// doctor runs zxfer doctor on the near host, with the congestion control that every
// kernel has.
func (f *farHosts) doctor(t *testing.T, args ...string) (r job.DoctorReport) {
	t.Helper()
	argv := append([]string{"env", "PATH=" + f.dir + ":" + os.Getenv("PATH"), "ZXFER_RSH=ssh -F " + filepath.Join(f.dir, "ssh_config"),
		"zxfer", "doctor", "--json", "--only", "link,mtu", "--congestion", "reno"}, args...)
	cmd := f.command(f.near, append(argv, "beta")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s%s", out, &stderr)
	require.NoError(t, json.Unmarshal(out, &r), "%s", out)
	for _, c := range r.Ceilings {
		t.Logf("%v: %s: %.1f MB/s, limited by %s", args, c.Title, float64(c.BytesPerSecond)/1e6, c.Limit)
	}
	return r
}

// measured makes a test of measurements up to three times: as long as it was
// the machine that was too busy for it, not zxfer that was wrong. The line
// tells, which must have a processor at once whenever a packet is due.
func (f *farHosts) measured(t *testing.T, try func() error) {
	t.Helper()
	for n := 1; ; n++ {
		f.line.Record()
		err := try()
		there, back := f.line.Record()
		late := max(there.LateShare(), back.LateShare())
		t.Logf("try %d: %.1f %% of the bytes came late", n, 100*late)
		if err == nil {
			return
		}
		busy := othersBusy(t)
		t.Logf("%.1f processors are busy with other things: %v", busy, err)
		if late < 0.05 && busy < 0.5 {
			require.NoError(t, err)
		}
		if n == 3 {
			t.Skipf("this host is busy: %.1f processors with other things, %.0f %% of the bytes were late; %v", busy, 100*late, err)
		}
	}
}
