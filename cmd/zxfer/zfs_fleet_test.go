package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// fleetBeta sets up beta as a separate host, with an overlay of the guest's root and an
// sshd on port 2222. It returns the root directory.
func fleetBeta(t *testing.T) (root string) {
	t.Helper()
	dir := "/run/fleet-beta"
	root = dir + "/root"
	run(t, "sh", "-ec", fmt.Sprintf(`mkdir -p %[1]s && mount -t tmpfs tmpfs %[1]s && cd %[1]s && mkdir up work root
mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root
for at in dev proc sys tmp run; do mount --rbind /$at root/$at && mount --make-rslave root/$at; done
for at in etc/systemd/system root; do mount -t tmpfs tmpfs root/$at; done # not alpha's
rm -f root/etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f root/etc/ssh/ssh_host_ed25519_key`, dir))
	t.Cleanup(func() {
		_ = exec.Command("umount", "-R", "-l", root).Run()
		_ = exec.Command("umount", "-l", dir).Run()
	})
	// A restricted agent requires the system log.
	log, err := net.ListenPacket("unixgram", "/run/syslog")
	require.NoError(t, err)
	t.Cleanup(func() { _ = log.Close() })
	go func() { _, _ = io.Copy(io.Discard, log.(io.Reader)) }()
	fleetSSHD(t, betaIP, "ip", "netns", "exec", betaPool, "chroot", root)
	return root
}

// fleetSSHD starts an sshd with the command prefix in. It accepts Ansible's key and the
// authorized keys of the account.
func fleetSSHD(t *testing.T, address string, in ...string) {
	t.Helper()
	config := filepath.Join(labDir, "fleet-sshd-"+address)
	require.NoError(t, os.WriteFile(config, []byte(`Port 2222
ListenAddress `+address+`
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile `+labDir+`/user_key.pub .ssh/authorized_keys
PidFile none
PermitRootLogin yes
StrictModes no
UsePAM no
Subsystem sftp internal-sftp
`), 0o600))
	cmd := exec.Command(in[0], append(in[1:], "/usr/sbin/sshd", "-D", "-f", config, "-E", config+".log")...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(fileText(config + ".log"))
		}
	})
}

// fleetPackage builds a minimal Debian package of this zxfer and returns its path.
func fleetPackage(t *testing.T, dir, version string) string {
	t.Helper()
	tree := filepath.Join(dir, "tree")
	require.NoError(t, installSelf(t, tree+"/usr/bin/zxfer"))
	require.NoError(t, os.MkdirAll(tree+"/DEBIAN", 0o755))
	require.NoError(t, os.WriteFile(tree+"/DEBIAN/control", []byte("Package: zxfer\nVersion: "+version+"\nArchitecture: amd64\nMaintainer: t <t@example.org>\nDescription: zxfer\n"), 0o644))
	run(t, "dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, dir+"/"+version+".deb")
	return dir + "/" + version + ".deb"
}

// fleetJobs returns a job file for several hosts. Its job for web1 sends src to a child of
// dst on backup1 on a schedule, and drills.
func fleetJobs(src, dst, schedule, rsh string) string {
	return fmt.Sprintf(`
[metrics]
textfile = "%s/zxfer.prom"
[[host]]
name = "web"
names = ["web1"]
address = "root@10.77.0.1"
vars = { vault = "backup1" }
[[template]]
name = "base"
schedule = %q
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 3 }
transfer = { rsh = %q }
drill = { schedule = "weekly" }
freeze = [{ kind = "command", freeze = ["/bin/true"], thaw = ["/bin/true"] }]
target = [{ name = "{vault}", to = "{vault}:%s/{host}" }]
[[job]]
name = "home"
template = "base"
hosts = ["web"]
source = %q
`, fleetTextfiles, schedule, rsh, dst, src)
}

// withoutSeries matches the metrics that only pools with data errors have, and disks that come and
// go.
var withoutSeries = regexp.MustCompile(`^zxfer_replicate_(pool_(data_errors|repairable)|disk_[a-z_]+)\{`)

const fleetTextfiles = "/var/lib/prometheus/node-exporter" // the default on Debian

// TestZFSFleetMonitoring runs a job and a drill. It expects the alert rules and the dashboard
// to find their metrics in Prometheus.
func TestZFSFleetMonitoring(t *testing.T) {
	tools := fleetTools(t)
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	fill(t, src, "f", 1<<20)
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(fleetTextfiles, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(fleetTextfiles)) })
	jobs := filepath.Join(dir, "replicate.toml")
	require.NoError(t, os.WriteFile(jobs, []byte(strings.ReplaceAll(fleetJobs(src, dst, "hourly", "ssh -F "+labDir+"/ssh_config"), "backup1", "beta")), 0o644))
	for _, verb := range []string{"run", "drill"} {
		end := start(t, "replicate", verb, "--config", jobs, "--host", "web1", "--state-dir", filepath.Join(dir, "state"), "home").wait(t)
		require.Equal(t, 0, end.code, end)
	}
	checkMonitoring(t, tools)
}

// TestZFSFleet applies the Ansible role to two hosts, and expects a timer to send a dataset
// between them with a restricted key. A second run changes nothing, a newer package is
// installed, and zxfer_state=absent removes everything.
func TestZFSFleet(t *testing.T) {
	tools := fleetTools(t)
	if !testenv.Long() {
		t.Skip("only at the long level: Ansible is slow")
	}
	python := filepath.Join(tools, "ansible/usr/lib/python3/dist-packages")
	if out, err := exec.Command("env", "PYTHONPATH="+python, "python3", "-c", "import apt_pkg").CombinedOutput(); err != nil {
		t.Skipf("Ansible is for another Python than this one: %s", out)
	}
	m := bootSystemd(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	fill(t, src, "f", 1<<20)
	beta := fleetBeta(t)
	fleetSSHD(t, "10.77.0.1", m.command().Args...)
	for _, root := range []string{"/", beta} { // python3-apt, which Debian hosts have
		run(t, "sh", "-c", fmt.Sprintf("cp -r %[1]s/apt %[1]s/apt_*.so %s/usr/lib/python3/dist-packages", python, root))
	}
	const stateDir = "/var/lib/zxfer"
	require.NoError(t, os.MkdirAll(fleetTextfiles, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(fleetTextfiles)) })
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	inventory := file("inventory.yml", fmt.Sprintf(`
all:
  vars:
    ansible_user: root
    ansible_port: 2222
    ansible_ssh_private_key_file: %s/user_key
    ansible_python_interpreter: /usr/bin/python3
    zxfer_package: %s
  children:
    backup:
      hosts:
        backup1: {ansible_host: %s}
    sources:
      hosts:
        web1.example.org: {ansible_host: 10.77.0.1}
      vars:
        zxfer_jobs: %s
        zxfer_status_key: %[6]s/status_key.pub
        zxfer_targets:
          - {host: backup1, allow: ['receive=%[5]s/web1', 'drill=%[5]s/web1']}
`, labDir, fleetPackage(t, dir, "0.9.1"), betaIP, file("replicate.toml", fleetJobs(src, dst, "*:*:0/5", "ssh -F /etc/zxfer/ssh_config")), dst, dir))
	run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "status", "-f", dir+"/status_key")
	run(t, "hostname", "web1")
	t.Cleanup(func() { _ = exec.Command("hostname", "guest").Run() })
	recap := regexp.MustCompile(`(?m)^(\w+)\S* +: ok=(\d+) +changed=(\d+) +unreachable=0 +failed=0 `)
	play := func(args ...string) (changed map[string]string) {
		t.Helper()
		cmd := exec.Command("ip", append([]string{"netns", "exec", alphaPool, "env", "PYTHONPATH=" + python, "LC_ALL=C.UTF-8", "ANSIBLE_HOME=" + dir,
			"ANSIBLE_CONFIG=" + fleetFile("ansible", "ansible.cfg"), "ANSIBLE_HOST_KEY_CHECKING=False", "ANSIBLE_PIPELINING=True", "python3",
			filepath.Join(tools, "ansible/usr/bin/ansible-playbook"), "-i", inventory, fleetFile("ansible", "site.yml")}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		changed = map[string]string{}
		for _, host := range recap.FindAllStringSubmatch(string(out), -1) {
			changed[host[1]] = host[3]
		}
		require.Len(t, changed, 2, "%s", out)
		t.Logf("%s\n%s", args, out)
		return changed
	}
	nothing := map[string]string{"web1": "0", "backup1": "0"}

	require.NotEqual(t, nothing, play("--check"))
	for _, path := range []string{"/etc/zxfer", "/usr/bin/zxfer", beta + "/usr/bin/zxfer", "/var/cache/zxfer"} {
		require.NoFileExists(t, path, "check mode changes nothing")
	}
	require.NotEqual(t, nothing, play())
	keys := beta + "/root/.ssh/authorized_keys"
	require.Regexp(t, `^restrict,command="/usr/bin/zxfer agent --allow \S+ --allow \S+ --append-only" ssh-ed25519 \S+ zxfer:web1.example.org\n$`, fileText(keys))
	out, err := m.command("ssh", "-F", "/etc/zxfer/ssh_config", "backup1", "id").CombinedOutput()
	require.NotContains(t, string(out), "uid=", err)
	const unit = "zxfer-replicate-home.service"
	require.Eventually(t, func() bool {
		runs, err := statedir.Peek(stateDir, "home").Runs(1)
		return err == nil && len(runs) == 1 && runs[0].Succeeded()
	}, testenv.Timeout(), time.Second, "the timer does not start the job: %s", m.journal(unit))
	require.NotEmpty(t, guids(t, dst+"/web1"), m.journal(unit))
	require.Contains(t, fileText(fleetTextfiles+"/zxfer.prom"), `zxfer_replicate_last_run_success{job="home"} 1`)
	m.run(t, "systemctl", "start", "zxfer-drill-home.service")
	ssh := "ssh -p 2222 -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -i " + dir + "/status_key"
	status := run(t, "ip", "netns", "exec", alphaPool, "unshare", "--uts", "sh", "-c", `hostname admin; exec "$@"`, "sh",
		alphaBin, "replicate", "status", "--hosts", "--config", dir+"/replicate.toml", "--rsh", ssh)
	require.Regexp(t, `(?m)^web1 +home +ok +1 of 1 copy ok`, status)
	out, _ = m.command("sh", "-c", ssh+" root@10.77.0.1 id").CombinedOutput()
	require.NotContains(t, string(out), "uid=")
	require.Equal(t, nothing, play(), "a second run must not change anything")

	fleetPackage(t, dir, "0.9.2")
	web := exec.Command("ip", "netns", "exec", alphaPool, "python3", "-m", "http.server", "--directory", dir, "--bind", "10.77.0.1", "8000")
	require.NoError(t, web.Start())
	defer func() { _ = web.Process.Kill(); _ = web.Wait() }()
	require.Equal(t, map[string]string{"web1": "1", "backup1": "1"}, play("-e", "zxfer_package=http://10.77.0.1:8000/0.9.2.deb"), "only the package changes")
	for _, root := range []string{"/", beta} {
		require.Equal(t, "0.9.2", run(t, "dpkg-query", "--root="+root, "-W", "-f", "${Version}", "zxfer"))
	}

	require.NotEqual(t, nothing, play("-e", "zxfer_state=absent"))
	for _, path := range []string{"/etc/zxfer", "/usr/bin/zxfer", beta + "/usr/bin/zxfer", "/var/cache/zxfer", "/etc/systemd/system/zxfer-replicate-home.timer"} {
		require.NoFileExists(t, path)
	}
	require.Empty(t, strings.TrimSpace(fileText(keys)+fileText("/root/.ssh/authorized_keys")))
	require.NotEmpty(t, guids(t, dst+"/web1"), "the copies were destroyed")
	require.NoError(t, os.RemoveAll(stateDir))
}

// checkMonitoring checks that Prometheus evaluates each expression of the dashboard and each
// rule on the metrics in fleetTextfiles.
func checkMonitoring(t *testing.T, tools string) {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(fleetFile("prometheus", "zxfer.rules.yml"))
	require.NoError(t, err)
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, []byte(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [`+rules+`]
scrape_configs:
  - job_name: node
    static_configs: [{targets: ['127.0.0.1:9100']}]
`), 0o644))
	for _, argv := range [][]string{
		{"prometheus-node-exporter", "--web.listen-address=127.0.0.1:9100", "--collector.disable-defaults", "--collector.textfile", "--collector.textfile.directory=" + fleetTextfiles},
		{"prometheus", "--web.listen-address=127.0.0.1:9090", "--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data")},
	} {
		cmd := exec.Command(filepath.Join(tools, argv[0]), argv[1:]...)
		log, err := os.Create(filepath.Join(dir, argv[0]+".log"))
		require.NoError(t, err)
		cmd.Stdout, cmd.Stderr = log, log
		require.NoError(t, cmd.Start())
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Log(fileText(log.Name()))
			}
		}()
	}
	query := func(path string, into any) error {
		answer, err := http.Get("http://127.0.0.1:9090/api/v1/" + path)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var reply struct {
			Status, Error string
			Data          json.RawMessage
		}
		if err := json.NewDecoder(answer.Body).Decode(&reply); err != nil {
			return err
		}
		if reply.Status != "success" {
			return fmt.Errorf("%s", reply.Error)
		}
		return json.Unmarshal(reply.Data, into)
	}
	series := func(expr string) (n int, err error) {
		var vector struct{ Result []json.RawMessage }
		err = query("query?query="+url.QueryEscape(expr), &vector)
		return len(vector.Result), err
	}
	require.Eventually(t, func() bool {
		n, err := series(`zxfer_replicate_drill_good{exported_job="home"}`)
		return err == nil && n > 0
	}, testenv.Timeout(), 500*time.Millisecond, "no metrics in Prometheus")
	n, err := series("node_textfile_scrape_error == 0")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	d := fleetDashboard(t)
	for _, expr := range d.expressions() {
		n, err := series(strings.ReplaceAll(expr, "$instance", ".*"))
		require.NoError(t, err, expr)
		if !withoutSeries.MatchString(expr) {
			require.Positive(t, n, "no result of %s", expr)
		}
	}
	var instances []string
	require.NoError(t, query("label/instance/values?match[]=zxfer_replicate_last_run_success", &instances))
	require.Equal(t, []string{"127.0.0.1:9100"}, instances)
	require.Eventually(t, func() bool {
		var all struct {
			Groups []struct {
				Rules []struct{ Name, Health, State string }
			}
		}
		if query("rules", &all) != nil || len(all.Groups) != 1 || len(all.Groups[0].Rules) < 9 {
			return false
		}
		for _, r := range all.Groups[0].Rules {
			if r.Health == "unknown" {
				return false
			}
			require.Equal(t, []string{"ok", "inactive"}, []string{r.Health, r.State}, r.Name)
		}
		return true
	}, testenv.Timeout(), 500*time.Millisecond, "the rules are not evaluated")
}
