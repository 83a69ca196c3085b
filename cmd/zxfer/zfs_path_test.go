package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/connect"
)

// blockConnections makes the packet filters of hosts drop new connections, except for ssh, until the
// returned function is called. If reject is set, they refuse the packets with it.
func blockConnections(t *testing.T, reject string, hosts ...string) (unblock func()) {
	t.Helper()
	rule := []string{"-p", "tcp", "--syn", "!", "-i", "lo", "!", "--dport", "22", "-j", "DROP"}
	if reject != "" {
		rule = append(rule[:len(rule)-1], "REJECT", "--reject-with", reject)
	}
	for _, h := range hosts {
		run(t, append([]string{"ip", "netns", "exec", h, "iptables", "-A", "INPUT"}, rule...)...)
	}
	unblock = func() {
		for _, h := range hosts {
			run(t, "ip", "netns", "exec", h, "iptables", "-F", "INPUT")
		}
	}
	t.Cleanup(unblock)
	return unblock
}

// blockedName returns the name of a subtest whose packet filter drops or rejects packets.
func blockedName(reject string) string {
	if reject == "" {
		return "dropped packets"
	}
	return "packets rejected with " + reject
}

// transferPath runs zxfer send or dev. It returns the wire that carried data, the end that
// connected, and the finding about the network path. The first try must succeed, because
// zxfer looks for a path before it sends.
func transferPath(t *testing.T, args ...string) (wire, dial string, path finding.Finding) {
	t.Helper()
	o := mustZxfer(t, append([]string{args[0], "--json"}, args[1:]...)...)
	var r struct { // the common part of reports about datasets and devices
		Wire     connect.Report
		Findings []finding.Finding
		Results  []struct{ Wire string }
	}
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), o.String())
	require.Len(t, r.Results, 1, o.String())
	for _, f := range r.Findings {
		if f.ID == "way" {
			path = f
		}
	}
	return r.Results[0].Wire, r.Wire.Dial, path
}

// TestZFSFallsBackToSSH pushes a dataset while the packet filter passes only ssh, and
// expects zxfer to use ssh and to report that. Most other transfers are tested only with
// dropped packets, because they look for a path in the same way.
func TestZFSFallsBackToSSH(t *testing.T) {
	for _, reject := range []string{"", "tcp-reset", "icmp-admin-prohibited"} {
		t.Run(blockedName(reject), func(t *testing.T) {
			lab(t)
			src, dst := dataset(t)
			zfsCmd(t, "create", src)
			fill(t, src, "a", 2<<20)
			zfsCmd(t, "snapshot", src+"@one")
			blockConnections(t, reject, alphaPool, betaPool)

			full := reject == "" || testenv.Long()
			if full {
				before := state(t)
				o := zxfer(t, "send", "-n", src, "beta:"+dst)
				require.Equal(t, 0, o.code, o.String())
				t.Log(o.stdout)
				require.Contains(t, o.stdout, "only ssh gets through")
				require.Contains(t, o.stdout, "wire    ssh")
				require.Equal(t, before, state(t))
			}

			wire, _, path := transferPath(t, "send", src, "beta:"+dst)
			require.Equal(t, "ssh", wire)
			require.Equal(t, finding.Warn, path.Severity)
			require.Contains(t, path.Evidence, betaIP)
			require.Equal(t, guids(t, src), guids(t, dst))
			if full {
				require.NoError(t, destroyAll(src))
				wire, _, _ = transferPath(t, "send", "beta:"+dst, src)
				require.Equal(t, "ssh", wire, "wire of a pull")
			}

			if reject != "" {
				requireNoLeftovers(t)
				return
			}
			image := filepath.Join(t.TempDir(), "image")
			require.NoError(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
			wire, _, _ = transferPath(t, "dev", image, "beta:"+image+".copy")
			require.Equal(t, "ssh", wire)

			r := newReplication(t, fmt.Sprintf("[[job]]\nname = \"home\"\nsource = %q\nsnapshots = { adopt = [\"o*\"] }\n[[job.target]]\nname = \"near\"\nto = \"beta:%s\"\n", src, dst+"2"))
			t.Cleanup(func() { cleanUp(dst + "2") })
			o := r.mustRunAt(t, time.Now(), "check")
			require.Contains(t, o.stdout, "wire ssh")
			o = r.mustRunAt(t, time.Now(), "run", "home")
			require.Contains(t, o.stderr, "trying through ssh")
			require.Equal(t, 1, strings.Count(o.stderr, "trying through ssh"), "one message for all datasets")
			requireNoLeftovers(t)
		})
	}
}

// TestZFSDoctorReportsSSHFallback expects doctor to report ssh as the remaining path,
// with its rate.
func TestZFSDoctorReportsSSHFallback(t *testing.T) {
	lab(t)
	blockConnections(t, "", alphaPool, betaPool)
	r := doctorReport(t, "--only", "link", "beta")
	t.Logf("%+v", r)
	require.Equal(t, finding.Warn, worstOf(t, r, "way").Severity)
	require.NotNil(t, r.Expected)
	require.Positive(t, r.Expected.BytesPerSecond)
	require.Equal(t, "way", r.Advice.ID, "the advice concerns the network path")
	text := zxfer(t, "doctor", "beta").stdout
	t.Log(text)
	require.Regexp(t, `(?s)^expect  at most \S+ \S+/s; not measured: source, target\nlimit   \S.*\nchange  .*--port-range.*\n  warn  way  .*\n-> .*ssh x \d`, text)
	for _, f := range r.Findings {
		require.NotEqual(t, finding.Fail, f.Severity, "%+v", f)
	}
	require.Contains(t, r.Ceilings[len(r.Ceilings)-1].Title, "ssh")

	// If --wire excludes ssh, doctor reports no expected rate.
	r = doctorReport(t, "--only", "link", "--wire", "tls", "beta")
	f := worstOf(t, r, "way")
	require.Equal(t, finding.Fail, f.Severity)
	require.Contains(t, f.Remedy, "--wire ssh")
	require.Nil(t, r.Expected)
}

// TestZFSDialsOpenDirection closes one direction, and expects zxfer to connect in the
// other one. Below the long level, with refused packets, it only pushes a dataset and
// requests the closed direction.
func TestZFSDialsOpenDirection(t *testing.T) {
	for _, reject := range []string{"", "tcp-reset"} {
		t.Run(blockedName(reject), func(t *testing.T) {
			lab(t)
			src, dst := dataset(t)
			zfsCmd(t, "create", src)
			fill(t, src, "a", 1<<20)
			zfsCmd(t, "snapshot", src+"@one")
			unblock := blockConnections(t, reject, betaPool)
			wire, dial, path := transferPath(t, "send", src, "beta:"+dst)
			require.Equal(t, []string{"tls", "target"}, []string{wire, dial})
			require.Equal(t, finding.Note, path.Severity)
			full := reject == "" || testenv.Long()
			if full {
				require.NoError(t, destroyAll(dst))
				_, dial, _ = transferPath(t, "send", "alpha:"+src, "beta:"+dst)
				require.Equal(t, "target", dial, "between two remote hosts")
				require.NoError(t, destroyAll(src))
				_, dial, _ = transferPath(t, "send", "beta:"+dst, src)
				require.Equal(t, "source", dial, "end that connects in a pull")
			}

			// zxfer obeys a requested direction. If it is closed, zxfer fails soon and
			// names the alternatives.
			require.NoError(t, destroyAll(dst))
			o := zxfer(t, "send", "--dial", "source", src, "beta:"+dst)
			require.Equal(t, 3, o.code, o.String())
			require.Contains(t, o.stderr, "--dial target")
			require.Contains(t, o.stderr, "--wire ssh")
			require.Contains(t, o.stderr, betaIP)
			require.Contains(t, o.stderr, "10.77.0.1")
			if !full {
				requireNoLeftovers(t)
				return
			}
			unblock()
			_, dial, path = transferPath(t, "send", src, "beta:"+dst)
			require.Equal(t, "source", dial, "zxfer used a former result")
			require.Empty(t, path)
			requireNoLeftovers(t)
		})
	}
}

// TestZFSNoPathBetweenRemoteHosts sends between two remote hosts that cannot connect. zxfer
// cannot use ssh there, so it refuses and changes nothing.
func TestZFSNoPathBetweenRemoteHosts(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "snapshot", src+"@one")
	blockConnections(t, "", alphaPool, betaPool)
	before := state(t)
	o := zxfer(t, "send", "alpha:"+src, "beta:"+dst)
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "no data passes between the two hosts")
	require.Contains(t, o.stderr, "--port-range")
	require.Equal(t, before, state(t))
	requireNoLeftovers(t)
}

// TestRestrictedNetworkPath sends with a restricted key over a path that its policy permits. If
// only ssh remains, the data goes through the key's own connection.
func TestRestrictedNetworkPath(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	rsh, _ := restrictedKey(t, "--allow", "receive="+dst, "--append-only")
	unblock := blockConnections(t, "", betaPool)
	_, dial, _ := transferPath(t, "send", "-e", rsh, src, "beta:"+dst)
	require.Equal(t, "target", dial, "the agent may connect to the client's host")
	unblock()
	fill(t, src, "b", 1<<20) // a small stream needs no path
	zfsCmd(t, "snapshot", src+"@two")
	blockConnections(t, "", alphaPool, betaPool)
	wire, _, _ := transferPath(t, "send", "-e", rsh, src, "beta:"+dst)
	require.Equal(t, "ssh", wire)
	require.Equal(t, guids(t, src), guids(t, dst))
	zfsCmd(t, "snapshot", src+"@three")
	o := zxfer(t, "send", "-e", rsh, "--wire", "ssh", "--streams", "3", src, "beta:"+dst)
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "a restricted key sends data through ssh with one connection")
	requireNoLeftovers(t)
}

// TestZFSJumpHost sends through a jump host of ssh, whose addresses the control connection
// shows. zxfer must find the listener, and must not accept connections only from these
// addresses.
func TestZFSJumpHost(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	rsh := jumpHost(t)

	// Only ssh has a route.
	wire, _, path := transferPath(t, "send", "-e", rsh, src, "inner:"+dst)
	require.Equal(t, "ssh", wire)
	require.Contains(t, path.Evidence, "10.79.0.2 (an ssh jump host or NAT)")
	require.NoError(t, destroyAll(dst))

	// Data has a direct route, from an address that ssh does not show.
	run(t, "ip", "-n", alphaPool, "route", "add", "10.79.0.0/24", "via", "10.78.0.2")
	run(t, "ip", "-n", betaPool, "route", "add", "10.78.0.0/24", "via", "10.79.0.2")
	wire, dial, path := transferPath(t, "send", "-e", rsh, src, "inner:"+dst)
	require.Equal(t, []string{"tls", "source"}, []string{wire, dial})
	require.Empty(t, path)
	require.Equal(t, guids(t, src), guids(t, dst))
}

// jumpHost adds a host between alpha and beta. It returns the remote shell by which alpha
// reaches beta as "inner".
func jumpHost(t *testing.T) (rsh string) {
	t.Helper()
	const jump = "zxjump"
	dir := t.TempDir()
	run(t, "ip", "netns", "add", jump)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", jump).Run() })
	for _, l := range [][4]string{{alphaPool, "zxja", "10.78.0.1/24", "10.78.0.2/24"}, {betaPool, "zxjb", "10.79.0.1/24", "10.79.0.2/24"}} {
		run(t, "ip", "link", "add", l[1], "netns", l[0], "type", "veth", "peer", "name", l[1], "netns", jump)
		for ns, address := range map[string]string{l[0]: l[2], jump: l[3]} {
			run(t, "ip", "-n", ns, "addr", "add", address, "dev", l[1])
			run(t, "ip", "-n", ns, "link", "set", l[1], "up")
		}
	}
	run(t, "ip", "netns", "exec", jump, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	conf, err := os.ReadFile(filepath.Join(labDir, "beta", "sshd_config"))
	require.NoError(t, err)
	for ns, address := range map[string]string{jump: "10.78.0.2", betaPool: "10.79.0.1"} {
		file := filepath.Join(dir, ns)
		text := strings.ReplaceAll(string(conf), "ListenAddress "+betaIP, "ListenAddress "+address)
		text = strings.ReplaceAll(text, filepath.Join(labDir, "beta", "sshd.pid"), file+".pid")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		cmd := exec.Command("ip", "netns", "exec", ns, "/usr/sbin/sshd", "-D", "-f", file, "-E", file+".log")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	config := filepath.Join(dir, "ssh_config")
	require.NoError(t, os.WriteFile(config, []byte("Host jump\n HostName 10.78.0.2\nHost inner\n HostName 10.79.0.1\n ProxyJump jump\n"+
		"Host *\n User root\n IdentityFile "+labDir+"/user_key\n IdentitiesOnly yes\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"), 0o600))
	require.Eventually(t, func() bool {
		return exec.Command("ip", "netns", "exec", alphaPool, "ssh", "-F", config, "inner", "true").Run() == nil
	}, testenv.Timeout(), 200*time.Millisecond, "ssh does not connect through the jump host")
	return "ssh -F " + config
}
