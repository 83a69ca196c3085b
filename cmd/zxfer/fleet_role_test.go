package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// roleWorld is a controller with Ansible and four hosts: the sources web1 and web2, and the backup
// hosts backup1 and backup2. Each has its own root directory. Ansible runs a host's modules with
// a program that stands for the host's Python. It changes their answers if the host lies.
type roleWorld struct {
	dir   string
	tools string
	// config replaces the ansible.cfg of the documentation, unless it is "".
	config string
}

// enterRoot runs a command in the root directory ROOT, which shares the system, ZXFER_DIR and
// ZXFER_TOOLS with this one. It needs its own mount namespace.
const enterRoot = `#!/bin/sh
set -e
root=$1; shift
for d in usr bin sbin lib lib32 lib64 libx32; do
	if [ -L /$d ]; then [ -L "$root/$d" ] || cp -P /$d "$root/$d"
	elif [ -d /$d ]; then mkdir -p "$root/$d"; mount --rbind /$d "$root/$d"; fi
done
for d in /proc /dev $ZXFER_DIR $ZXFER_TOOLS; do mkdir -p "$root$d"; mount --rbind $d "$root$d"; done
mkdir -p -m 1777 "$root/tmp"
exec chroot "$root" "$@"
`

// roleHost is the Python of a host. It runs a module in the host's root directory. The file lie
// of the host, if it exists, holds pairs of a pattern and an object: zxfer adds the object to
// the answer of each module whose file name and standard output match the pattern.
const roleHost = `import json, os, re, subprocess, sys
root = os.path.dirname(os.path.abspath(sys.argv[0]))
run = ['unshare', '-m', '--propagation=unchanged', os.environ['ZXFER_DIR'] + '/enter', root, os.environ['ZXFER_PYTHON']] + sys.argv[1:]
p = subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
out = p.stdout.decode()
if os.path.exists(root + '/lie'):
    for pattern, more in json.load(open(root + '/lie')):
        if re.search(pattern, ' '.join(sys.argv) + '\n' + out):
            try:
                answer = json.loads(out)
            except ValueError:
                continue
            for key in more:
                if isinstance(more[key], dict) and isinstance(answer.get(key), dict):
                    answer[key].update(more[key])
                else:
                    answer[key] = more[key]
            out = json.dumps(answer)
sys.stdout.write(out)
sys.stderr.write(p.stderr.decode())
sys.exit(p.returncode)
`

// newRoleWorld creates the hosts. TMPDIR may be small: it gets only a copy of zxfer.
func newRoleWorld(t *testing.T) *roleWorld {
	t.Helper()
	tools := fleetTools(t)
	if os.Getuid() != 0 {
		t.Skip("needs root for mount namespaces")
	}
	if _, err := os.Stat(filepath.Join(tools, "ansible-oldest")); err != nil {
		t.Skipf("the tools have no Ansible for this Python: %v", err)
	}
	w := &roleWorld{dir: t.TempDir(), tools: tools}
	require.NoError(t, installSelf(t, w.path("self/zxfer")))
	// A host without systemd: install and uninstall have nothing to do.
	w.program(t, "zxfer", "#!/bin/sh\n[ \"$2\" != install ] && [ \"$2\" != uninstall ] || exit 0\nexec "+w.path("self/zxfer")+" \"$@\"\n")
	// The program of an attacker, on each host.
	w.program(t, "evil", "#!/bin/sh\nread key; touch "+w.path("pwned")+"-$(cat /etc/hostname); echo \"$key\"\n")
	w.program(t, "enter", enterRoot)
	for _, host := range []string{"controller", "web1", "web2", "backup1", "backup2"} {
		root := w.path(host)
		for _, dir := range []string{"root", "etc/ssh", "var/cache", "var/lib"} {
			require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		}
		for _, name := range []string{"passwd", "group", "nsswitch.conf", "ld.so.cache"} {
			if text, err := os.ReadFile("/etc/" + name); err == nil {
				require.NoError(t, os.WriteFile(filepath.Join(root, "etc", name), text, 0o644))
			}
		}
		require.NoError(t, os.WriteFile(filepath.Join(root, "etc/hostname"), []byte(host), 0o644))
		w.program(t, host+"/python", "#!"+tools+"/python3\n"+roleHost)
		w.key(t, host+"/etc/ssh/ssh_host_ed25519_key", "root@"+host)
	}
	w.key(t, "status_key", "status")
	require.NoError(t, os.WriteFile(w.path("secret"), []byte("# secret of the controller\n"), 0o600))
	require.NoError(t, os.WriteFile(w.path("replicate.toml"), []byte("[[host]]\nname = \"web\"\nnames = [\"web[1-2]\"]\n[[job]]\nname = \"home\"\nsource = \"tank/home\"\nsnapshots = { adopt = [\"*\"] }\ntarget = [{ name = \"vault\", to = \"backup1:vault/{host}\" }]\n"), 0o600))
	return w
}

func (w *roleWorld) path(name string) string { return filepath.Join(w.dir, name) }

func (w *roleWorld) program(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	testenv.WriteProgram(t, w.path(name), []byte(text))
}

// key creates an ssh key.
func (w *roleWorld) key(t *testing.T, name, comment string) {
	t.Helper()
	run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", w.path(name))
}

// lie makes a host add objects to the answers of modules that match a pattern.
func (w *roleWorld) lie(t *testing.T, host string, pairs ...any) {
	t.Helper()
	var all [][2]any
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, [2]any{pairs[i], pairs[i+1]})
	}
	text, err := json.Marshal(all)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(w.path(host+"/lie"), text, 0o644))
}

// play runs the playbook of the documentation with one version of Ansible.
func (w *roleWorld) play(t *testing.T, version string, args ...string) (string, error) {
	t.Helper()
	inventory := `all:
  vars:
    ansible_connection: local
    ansible_become: false
    zxfer_program: DIR/zxfer
  children:
    backup:
      hosts: {backup1: {ansible_python_interpreter: DIR/backup1/python}, backup2: {ansible_python_interpreter: DIR/backup2/python}}
    sources:
      hosts: {web1: {ansible_python_interpreter: DIR/web1/python}, web2: {ansible_python_interpreter: DIR/web2/python}}
      vars:
        zxfer_jobs: DIR/replicate.toml
        zxfer_status_key: DIR/status_key.pub
        zxfer_targets:
          - {host: backup1, allow: ['receive=vault/{{ inventory_hostname }}']}
`
	require.NoError(t, os.WriteFile(w.path("inventory.yml"), []byte(strings.ReplaceAll(inventory, "DIR", w.dir)), 0o644))
	playbook := w.path("ansible")
	require.NoError(t, os.RemoveAll(playbook))
	require.NoError(t, os.CopyFS(playbook, os.DirFS(fleetFile("ansible"))))
	if w.config != "" {
		require.NoError(t, os.WriteFile(filepath.Join(playbook, "ansible.cfg"), []byte(w.config), 0o644))
	}
	shared := []string{w.tools}
	for _, name := range []string{"oldest.d", "newest.d"} {
		if real, err := filepath.EvalSymlinks(filepath.Join(w.tools, name)); err == nil {
			shared = append(shared, real)
		}
	}
	cmd := exec.Command("unshare", append([]string{"-m", w.path("enter"), w.path("controller"),
		"sh", "-c", "cd " + playbook + " && exec \"$@\"", "sh", filepath.Join(w.tools, "ansible-"+version), "-i", w.path("inventory.yml"), "site.yml"}, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "LC_ALL=C.UTF-8", "ZXFER_DIR=" + w.dir, "ZXFER_TOOLS=" + strings.Join(shared, " "),
		"ZXFER_PYTHON=" + filepath.Join(w.tools, "python3"), "ANSIBLE_REMOTE_TEMP=" + w.path("remote"), "ANSIBLE_NOCOLOR=1", "ANSIBLE_LOCALHOST_WARNING=False"}
	out, err := cmd.CombinedOutput()
	t.Logf("%s %s\n%s", version, args, out)
	return string(out), err
}

// text returns the text of a file of a host, "" if it does not exist.
func (w *roleWorld) text(name string) string {
	text, _ := os.ReadFile(w.path(name))
	return string(text)
}

// TestFleetRoleDistrustsHosts runs the role while one host lies in the answers of its modules. It
// expects no effect on the controller, and effects only on hosts of the inventory.
func TestFleetRoleDistrustsHosts(t *testing.T) {
	const other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFuAwPm5Yx6DdZ7vEEcrjoLIBLvi3NTAGVnmpHd0FGkN"
	facts := func(pairs ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1]
		}
		return map[string]any{"ansible_facts": m}
	}
	content := func(text string) map[string]any {
		return map[string]any{"content": base64.StdEncoding.EncodeToString([]byte(text)), "encoding": "base64"}
	}
	const slurp = `AnsiballZ_slurp|"encoding": "base64"`
	template := func(w *roleWorld) string {
		return "{{lookup('pipe','touch" + "${IFS}" + w.path("pwned-controller") + "')}}"
	}
	for _, c := range []struct {
		name, host string
		long       bool // only at the long level: Ansible is slow
		lies       func(w *roleWorld) []any
	}{
		{"facts of a source name targets", "web1", true, func(w *roleWorld) []any {
			return []any{"", facts("zxfer_targets", []any{map[string]any{"host": "backup2", "allow": []any{"receive=vault"}, "append_only": false}})}
		}},
		{"facts of a source name a program", "web1", true, func(w *roleWorld) []any {
			return []any{"", facts("zxfer_program", w.path("evil"))}
		}},
		{"facts of a source name a file", "web1", true, func(w *roleWorld) []any {
			return []any{"", facts("zxfer_jobs", w.path("secret"), "zxfer_status_key", w.path("secret"), "zxfer_package", w.path("secret"))}
		}},
		{"facts of a source name itself", "web1", false, func(w *roleWorld) []any {
			return []any{"", facts("inventory_hostname", "web2", "inventory_hostname_short", "web2", "zxfer_host", "web2",
				"ansible_host", "backup2", "ansible_connection", "ssh", "ansible_ssh_executable", w.path("evil"), "ansible_become", true, "ansible_become_exe", w.path("evil"),
				"ansible_python_interpreter", w.path("evil"), "discovered_interpreter_python", w.path("evil"), "ansible_shell_executable", w.path("evil"),
				"role_path", w.dir, "ansible_check_mode", true, "groups", map[string]any{}, "hostvars", map[string]any{"backup1": map[string]any{"ansible_host": "evil"}})}
		}},
		{"facts of a source name frozen values", "web1", true, func(w *roleWorld) []any {
			frozen := map[string]any{"state": "present", "program": w.path("evil"), "jobs": w.path("secret"), "package": "", "host": "web2",
				"status_key": "", "targets": []any{map[string]any{"host": "backup2", "allow": []any{"receive=vault"}}}}
			return []any{"", facts("zxfer_frozen", frozen, "zxfer_addresses", map[string]any{"backup1": "evil"}, "zxfer_own_key", other, "zxfer_host_keys", map[string]any{"backup1": other}, "zxfer_mark", "zxfer:web2"),
				"", map[string]any{"_ansible_facts_cacheable": true}}
		}},
		{"a source adds keys of the controller", "web1", true, func(w *roleWorld) []any {
			return []any{"", map[string]any{"add_host": map[string]any{"host_name": "backup2", "groups": []any{"sources"}, "host_vars": map[string]any{"ansible_python_interpreter": w.path("evil")}},
				"add_group": "sources", "_ansible_delegated_vars": map[string]any{"ansible_host": "backup2"}, "ansible_delegated_vars": map[string]any{"backup1": map[string]any{"ansible_python_interpreter": w.path("evil")}},
				"include_variables": map[string]any{"zxfer_program": w.path("evil")}, "invocation": map[string]any{"module_args": map[string]any{"path": "/etc/shadow"}},
				"_ansible_notify": []any{"x"}, "include_args": map[string]any{"zxfer_program": w.path("evil")}}}
		}},
		{"a source's key is a template", "web1", true, func(w *roleWorld) []any {
			return []any{slurp, content("ssh-ed25519 " + template(w) + " zxfer:web1\n")}
		}},
		{"a source sends several keys", "web1", true, func(w *roleWorld) []any {
			return []any{slurp, content(other + " zxfer:web1\n" + other + " zxfer:web2\n")}
		}},
		{"a source's key has options", "web1", true, func(w *roleWorld) []any {
			return []any{slurp, content("command=\"id\" " + other + " zxfer:web1\n")}
		}},
		{"a source's key has the comment of another source", "web1", false, func(w *roleWorld) []any {
			return []any{slurp, content(other + " zxfer:web2\n")}
		}},
		{"a source's key has no comment", "web1", true, func(w *roleWorld) []any {
			return []any{slurp, content(other + "\n")}
		}},
		{"facts of a target", "backup1", false, func(w *roleWorld) []any {
			return []any{"", facts("zxfer_program", w.path("evil"), "zxfer_jobs", w.path("secret"), "inventory_hostname", "backup2", "inventory_hostname_short", "backup2", "zxfer_host", "x",
				"zxfer_targets", []any{map[string]any{"host": "backup2", "allow": []any{"receive=vault"}}}, "zxfer_lie", "believed")}
		}},
		{"a target's host key is a template", "backup1", true, func(w *roleWorld) []any {
			return []any{slurp, content("ssh-ed25519 " + template(w) + "\n")}
		}},
		{"a target's host key is for all hosts", "backup1", true, func(w *roleWorld) []any {
			return []any{slurp, content("ssh-ed25519 AAAA\v*\u2028" + other + "\n")}
		}},
		{"a target's line is a template", "backup1", true, func(w *roleWorld) []any {
			return []any{"AnsiballZ_command", map[string]any{"stdout": template(w), "stdout_lines": []any{template(w)}},
				"AnsiballZ_stat", map[string]any{"stat": map[string]any{"exists": template(w)}}}
		}},
	} {
		for _, version := range []string{"oldest", "newest"} {
			t.Run(c.name+"/"+version, func(t *testing.T) {
				t.Parallel()
				if c.long && !testenv.Long() {
					t.Skip("only at the long level: Ansible is slow")
				}
				w := newRoleWorld(t)
				w.lie(t, c.host, c.lies(w)...)
				out, _ := w.play(t, version)
				w.requireNoHarm(t, c.host, out)
				if c.host == "backup1" {
					return
				}
				// The source is withdrawn. The role removes its key and no other key.
				before := w.text("backup1/root/.ssh/authorized_keys")
				out, _ = w.play(t, version, "--limit", "web1", "-e", "zxfer_state=absent")
				w.requireNoHarm(t, c.host, out)
				var want string
				for line := range strings.Lines(before) {
					if strings.HasSuffix(line, " zxfer:web2\n") {
						want += line
					}
				}
				require.Equal(t, want, w.text("backup1/root/.ssh/authorized_keys"))
			})
		}
	}
}

// TestFleetRole expects a key of each source on its target, and a refusal if facts could replace
// variables.
func TestFleetRole(t *testing.T) {
	for _, version := range []string{"oldest", "newest"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			w := newRoleWorld(t)
			config := w.path("ansible/ansible.cfg")
			w.config = "[defaults]\ninject_facts_as_vars = True\n"
			out, err := w.play(t, version)
			require.Error(t, err)
			require.Contains(t, out, "write inject_facts_as_vars = False below [defaults] of ansible.cfg")
			require.NoDirExists(t, w.path("web1/etc/zxfer"))
			w.config = ""
			out, err = w.play(t, version)
			require.NoError(t, err, out)
			require.FileExists(t, config)
			require.Len(t, strings.Split(strings.TrimSpace(w.text("backup1/root/.ssh/authorized_keys")), "\n"), 2)
			require.Contains(t, w.text("web1/root/.ssh/authorized_keys"), strings.Fields(w.text("status_key.pub"))[1])
			require.Contains(t, w.text("web1/etc/zxfer/ssh_config"), "Host backup1\n    HostName backup1\n    Port 22\n")
			w.requireNoHarm(t, "", out)
			out, err = w.play(t, version)
			require.NoError(t, err, out)
			require.Regexp(t, `(?m)^web1 .* changed=0 `, out)
			require.Regexp(t, `(?m)^backup1 .* changed=0 `, out)
		})
	}
}

// requireNoHarm checks the controller and the hosts that did not lie.
func (w *roleWorld) requireNoHarm(t *testing.T, liar, out string) {
	t.Helper()
	require.NotContains(t, out, "zxfer_lie")
	for _, host := range []string{"controller", "web1", "web2", "backup1", "backup2"} {
		if host != liar {
			require.NoFileExists(t, w.path("pwned-"+host), "a host ran the program of %s", liar)
		}
		for _, file := range []string{"etc/zxfer/replicate.toml", "root/.ssh/authorized_keys", "var/cache/zxfer/zxfer.deb"} {
			require.NotContains(t, w.text(host+"/"+file), "secret", "%s of %s", file, host)
		}
	}
	require.Empty(t, w.text("backup2/root/.ssh/authorized_keys"), "a host that no source names")
	require.Empty(t, w.text("controller/root/.ssh/authorized_keys"))
	if liar != "backup1" {
		for line := range strings.Lines(w.text("backup1/root/.ssh/authorized_keys")) {
			require.Regexp(t, `^restrict,command="\S+ agent --allow receive=vault/(web1" ssh-ed25519 \S+ zxfer:web1|web2" ssh-ed25519 \S+ zxfer:web2)\n$`, strings.Replace(line, ` --append-only`, "", 1))
		}
		require.Contains(t, w.text("web2/etc/zxfer/known_hosts"), "backup1 "+strings.Join(strings.Fields(w.text("backup1/etc/ssh/ssh_host_ed25519_key.pub"))[:2], " ")+"\n")
	}
	for _, source := range []string{"web1", "web2"} {
		require.Regexp(t, `^(backup1 ssh-ed25519 AAAA[A-Za-z0-9+/]{64}\n)?$`, w.text(source+"/etc/zxfer/known_hosts"))
		require.NotContains(t, w.text(source+"/etc/zxfer/ssh_config"), "evil")
	}
}
