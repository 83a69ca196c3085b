package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/testenv"
)

// manyHosts runs several sshds in one network namespace. Each sshd is a host with its own job
// file, records and zxfer.
type manyHosts struct {
	t         *testing.T
	namespace string
	dir       string
	config    strings.Builder // ssh configuration
}

func newManyHosts(t *testing.T) *manyHosts {
	t.Helper()
	if os.Getenv("ZXFER_GUEST") != "" {
		t.Skip("runs on the host of the guest")
	}
	testenv.NeedsRoot(t, "to make network namespaces")
	sshdPath(t)
	m := &manyHosts{t: t, namespace: fmt.Sprintf("zxhosts-%d", os.Getpid()), dir: t.TempDir()}
	run(t, "ip", "netns", "add", m.namespace)
	t.Cleanup(func() { run(t, "ip", "netns", "del", m.namespace) })
	run(t, "ip", "-n", m.namespace, "link", "set", "lo", "up")
	require.NoError(t, os.MkdirAll("/run/sshd", 0o755))
	for _, key := range []string{"key", "host_key"} {
		run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", m.path(key))
	}
	require.NoError(t, installSelf(t, m.path("zxfer")))
	return m
}

func (m *manyHosts) path(name string) string { return filepath.Join(m.dir, name) }

func (m *manyHosts) write(name, text string, mode os.FileMode) {
	m.t.Helper()
	require.NoError(m.t, os.MkdirAll(filepath.Dir(m.path(name)), 0o755))
	require.NoError(m.t, os.WriteFile(m.path(name), []byte(text), mode))
}

// addHost adds a host name to ssh's configuration.
func (m *manyHosts) addHost(name, address string) {
	fmt.Fprintf(&m.config, "Host %s\n HostName %s\n", name, address)
}

// host starts an sshd at an address of the namespace, with its own zxfer, job file and
// records. authorized is the content of its authorized_keys file. If it is "", the key has no
// restrictions.
func (m *manyHosts) host(name, address, jobs, authorized string, lines ...string) {
	m.t.Helper()
	m.addHost(name, address)
	m.write(name+"/jobs.toml", jobs, 0o600)
	m.write(name+"/zxfer", fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" --config %[2]s/jobs.toml --state-dir %[2]s/state --host %[3]s\n", m.path("zxfer"), m.path(name), name), 0o755)
	if authorized == "" {
		public, err := os.ReadFile(m.path("key.pub"))
		require.NoError(m.t, err)
		authorized = string(public)
	}
	m.write(name+"/authorized", authorized, 0o600)
	m.write(name+"/sshd_config", "ListenAddress "+address+"\nHostKey "+m.path("host_key")+"\nAuthorizedKeysFile "+m.path(name+"/authorized")+
		"\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPrintMotd no\nMaxStartups 200\nSetEnv PATH="+m.path(name)+":/usr/sbin:/usr/bin:/sbin:/bin\n"+strings.Join(lines, "\n")+"\n", 0o600)
	cmd := exec.Command("ip", "netns", "exec", m.namespace, sshdPath(m.t), "-D", "-f", m.path(name+"/sshd_config"), "-E", m.path(name+"/sshd.log"))
	require.NoError(m.t, cmd.Start())
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(m.t, func() bool {
		out, err := exec.Command("ip", "netns", "exec", m.namespace, "ss", "-Hltn", "src "+address).Output()
		return err == nil && len(out) > 0
	}, testenv.Timeout(), 20*time.Millisecond, "sshd does not listen")
}

// recordRun writes the record of a run of a host's job.
func (m *manyHosts) recordRun(name, job, ended string, at time.Time) {
	m.t.Helper()
	store, err := statedir.Open(m.path(name+"/state"), job)
	require.NoError(m.t, err)
	a := &replicate.CopyState{Attempt: replicate.Attempt{Tried: at, Success: at}}
	last := &statedir.Run{Job: job, Source: "tank/" + job, Started: at, Ended: at.Add(time.Second), Outcome: ended}
	if ended != outcome.Done {
		a.Success, a.Outcome, a.Error, last.Error = time.Time{}, ended, "no space left", "no space left"
	}
	st := &statedir.State{LastRun: last}
	st.Datasets = map[string]*replicate.DatasetState{"tank/" + job: {Targets: map[string]*replicate.CopyState{"vault": a}}}
	require.NoError(m.t, store.Save(st))
}

// zxfer runs zxfer in the namespace, on the host that collects the status.
func (m *manyHosts) zxfer(args ...string) (stdout, stderr string, code int) {
	m.t.Helper()
	public, err := os.ReadFile(m.path("host_key.pub"))
	require.NoError(m.t, err)
	m.write("known_hosts", "* "+string(public), 0o600)
	m.write("ssh_config", m.config.String()+"Host *\n User root\n IdentityFile "+m.path("key")+"\n IdentitiesOnly yes\n UserKnownHostsFile "+m.path("known_hosts")+"\n LogLevel ERROR\n", 0o600)
	cmd := exec.Command("ip", append([]string{"netns", "exec", m.namespace, "env", "ZXFER_RSH=ssh -F " + m.path("ssh_config"), m.path("zxfer")}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	var exit *exec.ExitError
	require.True(m.t, err == nil || errors.As(err, &exit), "%v", err)
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

const manyJobs = `[[host]]
name = "web"
names = ["web[1-3]"]

[[host]]
name = "bad"
names = ["down", "lies", "shouts", "agent", "none", "broken"]
address = "root@{host}"

[[host]]
name = "all"
names = ["main", "web1", "web2", "web3"]

[[job]]
name = "home"
hosts = ["all", "bad"]
schedule = "hourly"
source = "tank/home"
snapshots.adopt = ["*"]
target = [{ name = "vault", to = "backup:vault/{host}" }]
`

// TestManyHosts collects the status of hosts with different problems, one of them over a key
// that permits only this. It expects a state for each host, and an error for unreachable or
// hostile hosts.
func TestManyHosts(t *testing.T) { //nolint:paralleltest // it starts nine sshds
	m := newManyHosts(t)
	public, err := os.ReadFile(m.path("key.pub"))
	require.NoError(t, err)
	statusKey, _, code := m.zxfer("replicate", "authorize", "--allow", "status", "--key", m.path("key.pub"), "--program", m.path("web2/zxfer"))
	require.Zero(t, code)
	require.Equal(t, `restrict,command="`+m.path("web2/zxfer")+` replicate status --json" `+string(public), statusKey)
	_, errOut, code := m.zxfer("replicate", "authorize", "--allow", "status", "--allow", "receive=vault", "--key", m.path("key.pub"))
	require.Equal(t, 2, code)
	require.Contains(t, errOut, "--allow status cannot be combined")

	now := time.Now()
	m.host("web1", "127.0.0.11", manyJobs, "")
	m.recordRun("web1", "home", outcome.Done, now)
	m.host("web2", "127.0.0.12", manyJobs, statusKey)
	m.recordRun("web2", "home", outcome.Failed, now)
	m.host("web3", "127.0.0.13", strings.ReplaceAll(manyJobs, "hourly", "*:0/1"), "")
	m.recordRun("web3", "home", outcome.Done, now.Add(-time.Hour))
	m.addHost("down", "127.0.0.99")
	m.host("hangs", "127.0.0.14", "", "", "ForceCommand sleep infinity")
	m.host("lies", "127.0.0.15", "", "", `ForceCommand printf '{"schema":"'; exec yes "$(printf '\033[2Jx%01000d')"`)
	m.host("shouts", "127.0.0.16", "", "", `ForceCommand printf '{"schema":"zxfer.replicate.status/v1","jobs":[{"job":"a","state":"\\u001b[2J","source":"\\u009b","problems":[{"state":"failed","error":"\\u001b]0;x\\u0007<b>"}],"datasets":[]}]}\n'`)
	m.host("agent", "127.0.0.17", "", `restrict,command="`+m.path("zxfer")+` agent --allow send=tank --audit `+m.path("audit")+`" `+string(public))
	m.host("none", "127.0.0.18", "", "")
	require.NoError(t, os.Remove(m.path("none/zxfer")))
	m.host("broken", "127.0.0.19", "[[job]]\nnmae = 'x'\n", "")
	m.write("jobs.toml", manyJobs, 0o600)
	flags := []string{"replicate", "status", "--hosts", "--config", m.path("jobs.toml"), "--state-dir", m.path("main/state"), "--host", "main", "--timeout", testenv.Timeout().String()}
	m.recordRun("main", "home", outcome.Done, now)

	out, errOut, code := m.zxfer(append(flags, "--json")...)
	t.Logf("stderr: %s", errOut)
	require.Equal(t, 1, code)
	var f fleet.Fleet
	require.NoError(t, json.Unmarshal([]byte(out), &f))
	require.Equal(t, fleet.Schema, f.Schema)
	states, problems := map[string]string{}, map[string]string{}
	for _, h := range f.Hosts {
		states[h.Host], problems[h.Host] = h.State, h.Error
	}
	require.Equal(t, map[string]string{"main": "ok", "web1": "ok", "web2": "failed", "web3": "late", "shouts": "failed", "down": "unreachable",
		"lies": "unreachable", "agent": "unreachable", "none": "unreachable", "broken": "unreachable"}, states)
	require.Contains(t, problems["down"], "Connection refused")
	require.Contains(t, problems["lies"], "longer than 8388608 bytes")
	require.Contains(t, problems["agent"], "status")
	require.Contains(t, problems["none"], "zxfer: not found")
	require.Contains(t, problems["broken"], `unknown key "job.nmae"`)
	require.Equal(t, 5, f.Unreachable)

	out, _, code = m.zxfer(append(flags, "--short")...)
	require.Equal(t, 1, code)
	require.NotContains(t, out, "\x1b")
	require.NotContains(t, out, "main")
	require.Regexp(t, `(?m)^web2 +home +FAILED +failed: .*no space left`, out)
	require.Regexp(t, `(?m)^web3 +home +LATE +late by (59 min|1 h \d+ min)`, out)
	require.Contains(t, out, "10 hosts")

	out, _, code = m.zxfer(append(flags, "--nagios", "web1,main")...)
	require.Equal(t, 0, code, out)
	require.Contains(t, out, "ZXFER OK: 2 hosts, 2 jobs, 2 copies, none late or failed | hosts=2;;;0 unreachable=0")
	out, _, code = m.zxfer(append(flags, "--nagios", "web1", "down")...)
	require.Equal(t, 3, code, out)
	out, _, code = m.zxfer(append(flags, "--nagios", "web")...)
	require.Equal(t, 2, code, out)
	require.Contains(t, out, "ZXFER CRITICAL: web2 home: failed")

	_, errOut, code = m.zxfer(append(flags, "--html", m.path("page.html"))...)
	require.Equal(t, 1, code, errOut)
	htmlFile, err := os.ReadFile(m.path("page.html"))
	require.NoError(t, err)
	require.Contains(t, string(htmlFile), "<h2>web2: home")
	require.Contains(t, string(htmlFile), "&lt;b&gt;")

	// Without a job file, the names are ssh addresses. A restricted key still applies.
	out, _, code = m.zxfer("replicate", "status", "--hosts", "--config", m.path("no.toml"), "--timeout", testenv.Timeout().String(), "root@web1", "web2")
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^web2 +home +FAILED`, out)
	require.Regexp(t, `(?m)^root@web1 +home +ok`, out)
	out, _, code = m.zxfer("replicate", "status", "--hosts", "--short", "--config", m.path("no.toml"), "--timeout", "1s", "hangs")
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^hangs +- +UNREACHABLE +it did not answer within 1s$`, out)
	for _, args := range [][]string{{"--hosts", "--config", m.path("no.toml")}, {"--hosts", "-oProxyCommand=x"}, {"--hosts", "--timeout", "0s"}, {"--parallel", "3"}, {"--rsh", "x", "home"}} {
		_, errOut, code = m.zxfer(append([]string{"replicate", "status"}, args...)...)
		require.Equal(t, 2, code, "%s: %s", args, errOut)
	}
	shell, err := exec.Command("ip", "netns", "exec", m.namespace, "ssh", "-F", m.path("ssh_config"), "web2", "id").Output()
	require.Error(t, err, "ssh must return the exit code of status")
	require.NotContains(t, string(shell), "uid=")
}

// TestHundredHosts collects the status of 100 hosts in one run, or of 25 below the long
// level. It expects a response from each host.
func TestHundredHosts(t *testing.T) { //nolint:paralleltest // it keeps both processors busy
	m := newManyHosts(t)
	m.host("web1", "127.0.0.11", strings.ReplaceAll(manyJobs, "web[1-3]", "web[1-100]"), "")
	m.recordRun("web1", "home", outcome.Done, time.Now())
	m.config.Reset()
	m.addHost("web*", "127.0.0.11")
	// All names lead to one host, which reports the name web1.
	count := 25
	if testenv.Long() {
		count = 100
	}
	var names []string
	for i := range count {
		names = append(names, fmt.Sprintf("root@web%d", i+1))
	}
	out, errOut, code := m.zxfer(append([]string{"replicate", "status", "--hosts", "--json", "--timeout", testenv.Timeout().String(), "--config", m.path("no.toml")}, names...)...)
	require.Zero(t, code, "%s%s", out, errOut)
	var f fleet.Fleet
	require.NoError(t, json.Unmarshal([]byte(out), &f))
	require.Len(t, f.Hosts, count)
	for _, h := range f.Hosts {
		require.Equal(t, status.OK, h.State)
	}
	// With names from the job file, a response from a host with another name is an error.
	m.write("jobs.toml", manyJobs, 0o600)
	out, _, code = m.zxfer("replicate", "status", "--hosts", "--config", m.path("jobs.toml"), "--timeout", testenv.Timeout().String(), "--host", "main", "web")
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^web2 +- +UNREACHABLE +another host answered: web2 reports the host name "web1"$`, out)
	require.Regexp(t, `(?m)^web1 +home +ok`, out)
}
