package unit

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/freeze"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/testenv"
)

func file() *replicate.File {
	return &replicate.File{Jobs: []replicate.Job{
		{Name: "home", Source: "tank/home", Schedule: "hourly", Jitter: calendar.Duration(2 * time.Minute), Targets: []replicate.Target{{Name: "near", To: "vault:pool"}}},
		{Name: "by-hand", Source: "tank/x"},
		{Name: "user_1", Source: "tank/y", Schedule: "Mon..Fri 06:30", User: "backup"},
	}}
}

func paths() Paths {
	return Paths{Binary: "/usr/bin/true", JobFile: "/etc/zxfer/replicate.toml", StateDir: "/var/lib/zxfer", Textfile: "/var/lib/prometheus/zxfer.prom"}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	files, err := Files(file(), paths())
	require.NoError(t, err)
	require.Len(t, files, 5)
	for name, text := range files { // uninstall finds only such units
		require.True(t, strings.HasPrefix(name, Prefix) && strings.HasPrefix(text, Marker+"\n"), name)
	}
	require.NotContains(t, files, "zxfer-replicate-by-hand.timer", "without a schedule there is no timer")
	service := files["zxfer-replicate-home.service"]
	for _, want := range []string{
		"ExecStart=/usr/bin/true replicate run --wait --service --config /etc/zxfer/replicate.toml --state-dir /var/lib/zxfer home\n",
		"Type=oneshot\n", "NotifyAccess=main\n", "Restart=on-failure\n", "RestartPreventExitStatus=1 2 3\nTimeoutStartSec=infinity\n", "ProtectSystem=strict\n",
		"ReadWritePaths=/var/lib/zxfer -/var/lib/prometheus\n", "CapabilityBoundingSet=CAP_SYS_ADMIN CAP_DAC_OVERRIDE\n", "StartLimitIntervalSec=0\n", "DeviceAllow=/dev/zfs rw\n", "RestrictSUIDSGID=yes\n",
	} {
		require.Contains(t, service, want)
	}
	require.Contains(t, service, "Wants=network-online.target\nAfter=network-online.target zfs.target\n")
	require.Contains(t, files["zxfer-replicate-user_1.service"], "\nAfter=zfs.target\n", "a job on this host alone waits for no network")
	require.NotContains(t, files["zxfer-replicate-user_1.service"], "network-online")
	require.Contains(t, files["zxfer-replicate-user_1.service"], "User=backup\nStateDirectory=zxfer/user_1\nStateDirectoryMode=0750\n")
	require.NotContains(t, service, "StateDirectory")
	require.Contains(t, files["zxfer-replicate-user_1.service"], "ExecStopPost=+/usr/bin/true replicate metrics --config /etc/zxfer/replicate.toml --state-dir /var/lib/zxfer\n")
	require.Contains(t, files["zxfer-replicate-user_1.service"], "ReadWritePaths=/var/lib/zxfer\n")
	require.NotContains(t, service, "ExecStopPost")
	require.Contains(t, files["zxfer-replicate-user_1.service"], "CapabilityBoundingSet=\n", "a user needs no privilege: zfs allow gives the permissions")
	timer := files["zxfer-replicate-home.timer"]
	require.Contains(t, timer, "OnCalendar=hourly\nRandomizedDelaySec=120\n")
	require.Contains(t, timer, "Persistent=yes\n")

	p := paths()
	p.JobFile = "/etc/my jobs.toml"
	_, err = Files(file(), p)
	require.ErrorContains(t, err, "my jobs")
	require.NoError(t, p.Reachable())
	p.Binary = "/tmp/zxfer"
	require.ErrorContains(t, p.Reachable(), "/tmp/zxfer: units have a private /tmp")
	p.JobFile = "jobs.toml"
	_, err = Files(file(), p)
	require.Error(t, err)
}

// TestFreezeUnit expects that systemd accepts the units. The watchdog of a freeze survives a killed
// run, may change to another account, and is remote if the source is remote.
func TestFreezeUnit(t *testing.T) {
	t.Parallel()
	f := file()
	f.Jobs[0].Freeze = []replicate.Freeze{{Spec: freeze.Spec{Kind: freeze.PostgreSQL, RunAs: "postgres"}}}
	for source, want := range map[string]string{"tank/home": "KillMode=process\n", "far:tank/home": "KillMode=mixed\n"} {
		f.Jobs[0].Source = source
		files, err := Files(f, paths())
		require.NoError(t, err)
		service := files["zxfer-replicate-home.service"]
		require.Contains(t, service, want)
		require.Equal(t, source == "tank/home", strings.Contains(service, "CapabilityBoundingSet=CAP_SYS_ADMIN CAP_DAC_OVERRIDE CAP_SETUID CAP_SETGID CAP_KILL\n"))
	}
}

// healService returns a template of a service that heals the pool in its instance name with the
// copies of the job file. No command installs it: a script of zed may start it after a scrub
// (docs/zed). A heal transfers data as a run does, and reads files as a drill does.
//
// A heal ends with a scrub, whose end is another event. As long as the heal runs, that event does
// not start it again. Later, the start limit prevents a loop if some errors cannot be healed: the
// service has failed then, and systemd unloads only inactive services with their start limits.
func healService(p Paths) string {
	t := drills()
	return fmt.Sprintf(`[Unit]
Description=zxfer: heal pool %%I
Wants=network-online.target
After=network-online.target zfs.target
ConditionPathExists=%s
StartLimitIntervalSec=1d
StartLimitBurst=1

[Service]
Type=oneshot
ExecStart=%s heal %s -- %%I
TimeoutStartSec=infinity
TimeoutStopSec=90s
KillMode=mixed
%s%s`, p.JobFile, p.Binary, p.flags(), t.own, t.restrictions(rootCapabilities, []string{p.StateDir}))
}

func TestUnitsVerify(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	dir := t.TempDir()
	files, err := Files(file(), paths())
	require.NoError(t, err)
	args := []string{"verify", "--man=no"}
	files["zxfer-heal@tank.service"] = healService(paths())
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		args = append(args, filepath.Join(dir, name))
	}
	out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))
}

// TestHealServiceIsCurrent expects docs/zed to have the service for the default paths.
func TestHealServiceIsCurrent(t *testing.T) {
	t.Parallel()
	const renew = "UPDATE_GOLDEN=1 go test ./pkg/replicate/unit -run TestHealServiceIsCurrent"
	want := healService(Paths{Binary: "/usr/bin/zxfer", JobFile: "/etc/zxfer/replicate.toml", StateDir: "/var/lib/zxfer"})
	page := filepath.Join(testenv.Root(t), "docs", "zed", "zxfer-heal@.service")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
	}
	have, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "%s is stale; run: %s", page, renew)
	require.Contains(t, want, "ExecStart=/usr/bin/zxfer heal --config /etc/zxfer/replicate.toml --state-dir /var/lib/zxfer -- %I\n")
	require.Contains(t, want, "StartLimitIntervalSec=1d\nStartLimitBurst=1\n", "the scrub of a heal must not start another heal forever")
}

// TestScrubScript runs the script of zed with replaced commands. It expects one start of the unit of
// the pool if there are errors, whatever characters the name of the pool has.
func TestScrubScript(t *testing.T) {
	t.Parallel()
	script := filepath.Join(testenv.Root(t), "docs", "zed", "scrub_finish-zxfer.sh")
	for name, tt := range map[string]struct {
		event, pool string
		healthy     bool
		code        int
		started     string
	}{
		"errors":            {"scrub_finish", "tank", false, 0, "start --no-block -- zxfer-heal@tank.service\n"},
		"healthy":           {"scrub_finish", "tank", true, 3, ""},
		"another event":     {"resilver_finish", "tank", false, 9, ""},
		"no event":          {"", "", false, 9, ""},
		"a blank":           {"scrub_finish", "my tank", false, 0, `start --no-block -- zxfer-heal@my\x20tank.service` + "\n"},
		"a host":            {"scrub_finish", "evil.example:tank", false, 1, ""},
		"shell characters":  {"scrub_finish", "$(touch pwned);`x`'\"", false, 0, `start --no-block -- zxfer-heal@\x24\x28touch\x20pwned\x29\x3b\x60x\x60\x27\x22.service` + "\n"},
		"like an option":    {"scrub_finish", "--version", false, 0, `start --no-block -- zxfer-heal@\x2d\x2dversion.service` + "\n"},
		"another directory": {"scrub_finish", "../x", false, 0, "start --no-block -- zxfer-heal@\\x2e.-x.service\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("systemd-escape"); err != nil {
				t.Skip("systemd-escape is not installed")
			}
			dir := t.TempDir()
			fake := func(command, text string) {
				testenv.WriteProgram(t, filepath.Join(dir, command), "#!/bin/sh\n"+text+"\n")
			}
			status := "Permanent errors have been detected in the following files:"
			if tt.healthy {
				status = "No known data errors"
			}
			fake("zpool", "[ \"$1 $2 $3\" = \"status -- $ZEVENT_POOL\" ] || exit 2\nprintf '  pool: x\\nerrors: "+status+"\\n'")
			fake("systemctl", `printf '%s\n' "$*" >>started`)
			fake("logger", "exit 0")
			cmd := exec.Command(script)
			cmd.Dir, cmd.Env = dir, []string{"PATH=" + dir + ":/usr/bin:/bin", "ZEVENT_SUBCLASS=" + tt.event, "ZEVENT_POOL=" + tt.pool}
			out, err := cmd.CombinedOutput()
			if tt.code == 0 {
				require.NoError(t, err, "%s", out)
			} else {
				require.Equal(t, tt.code, cmd.ProcessState.ExitCode(), "%s", out)
			}
			require.Empty(t, string(out))
			started, _ := os.ReadFile(filepath.Join(dir, "started"))
			require.Equal(t, tt.started, string(started))
			require.NoFileExists(t, filepath.Join(dir, "pwned"))
		})
	}
}

func TestCron(t *testing.T) {
	t.Parallel()
	f := file()
	line, err := Cron(&f.Jobs[0], paths())
	require.NoError(t, err)
	require.Equal(t, "0 * * * * root /usr/bin/true replicate run --service --config /etc/zxfer/replicate.toml --state-dir /var/lib/zxfer home", line)
	line, err = Cron(&f.Jobs[2], paths())
	require.NoError(t, err)
	require.Equal(t, "30 6 * * 1,2,3,4,5 backup", line[:len("30 6 * * 1,2,3,4,5 backup")])
	f.Jobs[0].Schedule = "*:*:30"
	_, err = Cron(&f.Jobs[0], paths())
	require.ErrorContains(t, err, "seconds")
}

// TestDrillUnits expects that a drill with a schedule has its own units, which may create private
// mounts.
func TestDrillUnits(t *testing.T) {
	t.Parallel()
	f := file()
	f.Jobs[0].Drill = &replicate.Drill{Schedule: "weekly"}
	f.Jobs[1].Drill = &replicate.Drill{}
	files, err := Files(f, paths())
	require.NoError(t, err)
	require.Len(t, files, 7)
	require.Contains(t, files["zxfer-drill-home.timer"], "OnCalendar=weekly\n")
	service := files["zxfer-drill-home.service"]
	for _, want := range []string{"ExecStart=/usr/bin/true replicate drill --service --config /etc/zxfer/replicate.toml --state-dir /var/lib/zxfer home\n",
		"Restart=no\n", "RestrictSUIDSGID=no\n", "RestrictNamespaces=mnt pid\n", "SystemCallFilter=@system-service @mount\n"} {
		require.Contains(t, service, want)
	}
	line, err := DrillCron(&f.Jobs[0], paths())
	require.NoError(t, err)
	require.Contains(t, line, "root /usr/bin/true replicate drill --service --config")
}

// TestMailUnits expects that a unit sends mail outside of its restrictions, and not in the run.
func TestMailUnits(t *testing.T) {
	t.Parallel()
	p := Paths{Binary: "/usr/bin/true", JobFile: "/etc/zxfer/replicate.toml", StateDir: "/var/lib/zxfer"}
	j := &replicate.Job{Name: "home", Source: "tank/home", Schedule: "hourly", Drill: &replicate.Drill{Schedule: "weekly"}}
	require.NotContains(t, Service(j, p), "notify")
	j.Notify = &replicate.Notify{Mail: []string{"root"}}
	service := Service(j, p)
	require.Contains(t, service, "ExecStart=/usr/bin/true replicate run --wait --service --no-mail --config /etc/zxfer/replicate.toml --state-dir /var/lib/zxfer home\n")
	require.Contains(t, service, "ExecStopPost=-+/usr/bin/true replicate notify --due --config /etc/zxfer/replicate.toml --state-dir /var/lib/zxfer home\n")
	require.NotContains(t, service, "network-online", "mail is queued")
	require.NotContains(t, DrillService(j, p), "notify")
	j.Notify = &replicate.Notify{Ping: "https://hc.example/5bf66975"}
	service = Service(j, p)
	require.Contains(t, service, "Wants=network-online.target\n")
	require.NotContains(t, service, "5bf66975")
	require.NotContains(t, service, "notify")
}

// TestFamilies lists the units of a job with everything. It expects uninstall to know each, and that systemd starts by
// itself exactly those with an [Install] section.
func TestFamilies(t *testing.T) {
	t.Parallel()
	j := replicate.Job{Name: "home", Source: "tank/home", Schedule: "hourly", Drill: &replicate.Drill{Schedule: "weekly"},
		Targets: []replicate.Target{{Name: "usb-red", To: "usb/home", Disk: &replicate.Disk{Import: true, Label: "red", Pools: map[string]string{"red": "1"}}}}}
	files, err := Files(&replicate.File{Jobs: []replicate.Job{j}}, paths())
	require.NoError(t, err)
	require.Equal(t, []string{"zxfer-disk-home.usb-red.service", "zxfer-drill-home.service", "zxfer-drill-home.timer", "zxfer-replicate-home.service", "zxfer-replicate-home.timer"},
		slices.Sorted(maps.Keys(files)))
	for name, text := range files {
		require.True(t, IsFile(name) && strings.HasPrefix(text, Marker+"\n"), name)
		require.Equal(t, strings.Contains(text, "\n[Install]\n"), Enabled(name), name)
	}
	for _, name := range []string{"zxfer-replicate-home.service.d", "other.service", "zxfer-.service", "zxfer-a/b.service", "zxfer-a.timer\n"} {
		require.False(t, IsFile(name), name)
	}
}

// TestDiskService expects a service for each disk, which its device starts.
func TestDiskService(t *testing.T) {
	t.Parallel()
	f, err := jobfile.Parse("x.toml", []byte(`[[job]]
name = "home"
source = "tank/home"
schedule = "hourly"
snapshots = { take = "s_%Y-%m-%d_%H:%M:%S" }
[[job.target]]
name = "offsite"
to = "offsite/home"
disk = { pools = { red = "18446744073709551615", blue = "1" }, import = true }
`))
	require.NoError(t, err)
	files, err := Files(f, paths())
	require.NoError(t, err)
	require.Len(t, files, 4)
	service := files["zxfer-disk-home.offsite-red.service"]
	require.Contains(t, service, "\n[Install]\nWantedBy=dev-disk-by\\x2duuid-18446744073709551615.device\n")
	require.Contains(t, service, "Description=zxfer: replicate home to disk offsite-red\n")
	require.Contains(t, service, "replicate run --wait --service")
	for _, text := range []string{service, files["zxfer-replicate-home.service"]} {
		require.Contains(t, text, "RuntimeDirectory=zxfer\n")
		require.Contains(t, text, "DeviceAllow=block-* rw\n", "zpool import reads devices")
	}
	require.NotContains(t, files["zxfer-replicate-home.service"], "[Install]")
	if escape, err := exec.LookPath("systemd-escape"); err == nil {
		out, err := exec.Command(escape, "--path", "--suffix=device", "/dev/disk/by-uuid/18446744073709551615").Output()
		require.NoError(t, err)
		require.Contains(t, service, "WantedBy="+string(out))
	}
	f.Jobs[0].Targets[0].Disk.Import, f.Jobs[0].Targets[1].Disk.Import = false, false
	require.NotContains(t, Service(&f.Jobs[0], paths()), "block-")
}
