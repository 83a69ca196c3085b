// Package unit makes systemd services and timers, or lines of cron, of the
// jobs of a job file. It writes text only; who calls it puts the files where
// systemd reads them.
package unit

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
)

// Marker is the first line of every unit made here: what does not begin with
// it is not ours to overwrite or remove.
const Marker = "# Written by zxfer replicate install; changes belong into a drop-in (systemctl edit)."

// Paths are what units name. All are absolute.
type Paths struct {
	Binary, JobFile, StateDir string
	Textfile                  string // "" = none
	Host                      string // whose part of the job file, where it was named
}

// flags are those of every command of a unit.
func (p Paths) flags() string {
	flags := "--config " + p.JobFile + " --state-dir " + p.StateDir
	if p.Host != "" {
		flags += " --host " + p.Host
	}
	return flags
}

// Check refuses paths that a unit cannot name.
func (p Paths) Check() error {
	var errs []error
	for _, s := range []string{p.Binary, p.JobFile, p.StateDir, p.Textfile} {
		err := error(nil)
		if s != "" {
			err = replicate.CheckPath(s)
		}
		if err == nil && strings.Contains(s, " ") {
			err = fault.Usagef("choose a path without blanks", "%q: a unit needs an absolute path without blanks", s)
		}
		errs = append(errs, err)
	}
	if strings.Contains(p.StateDir, ":") {
		errs = append(errs, fault.Usagef("choose a directory without a colon", "%q: in StateDirectory= of a unit a colon has a meaning", p.StateDir))
	}
	return errors.Join(errs...)
}

// Reachable refuses paths that a unit does not see: it has a /tmp of its own.
func (p Paths) Reachable() error {
	var errs []error
	for _, s := range []string{p.Binary, p.JobFile, p.StateDir, p.Textfile} {
		if strings.HasPrefix(s, "/tmp/") || strings.HasPrefix(s, "/var/tmp/") {
			errs = append(errs, fmt.Errorf("%s: the units have a /tmp and a /var/tmp of their own", s))
		}
	}
	return errors.Join(errs...)
}

// Name is the name of a job's units, without suffix.
func Name(job string) string { return "zxfer-replicate-" + job }

// DrillName is that of the units that drill its copies.
func DrillName(job string) string { return "zxfer-drill-" + job }

// task is what a service does for a job.
//
// own are directives of root's own service.
type task struct{ verb, what, restart, namespaces, calls, suid, own string }

func runs() task {
	return task{"run --wait --service", "replicate", "on-failure", "yes", "@system-service", "yes", ""}
}

// drills is what a drill needs more: mounts that nobody else sees, and a command's own
// processes; and openat2(2), to follow no link, which RestrictSUIDSGID= has fail, as its
// mode cannot be filtered. One that was interrupted begins anew with the timer's next,
// not in a circle. Those that load one key find each other in the run directory.
func drills() task {
	return task{"drill", "drill", "no", "mnt pid", "@system-service @mount", "no",
		runDirectory}
}

// runDirectory has systemd make the directory where processes find each other.
const runDirectory = "RuntimeDirectory=zxfer\nRuntimeDirectoryMode=0700\nRuntimeDirectoryPreserve=yes\n"

// Service is the service of a job: one run, hardened to what a run needs.
//
// Exit code 4 says that the run was interrupted and its state kept: the unit
// is started again. After 1 (failed), 2 (usage) and 3 (refused) the same
// command would end the same way, and the timer's next run tries anyway. Where it
// was systemd that interrupted it, the run ends with 0, unless something failed before:
// systemctl stop leaves the unit inactive, and what the network interrupted is not taken
// for that. A run that SIGTERM killed is a failure.
//
// There is no limit of starts: systemd counts those of the timer, too, and a job
// that runs every quarter of an hour would be locked out. RestartSec paces.
//
// It tells systemd what it is doing (NotifyAccess=, STATUS= of sd_notify(3)), for
// systemctl status, and no more: a oneshot is ready when it has ended.
//
// A job on this host alone waits for no network.
//
// What is left open: the network, /dev/zfs with CAP_SYS_ADMIN (which is what
// ZFS asks of root), the state directory. CAP_DAC_OVERRIDE lets root read keys
// and records, and write metrics, where the files are another account's, as
// node_exporter's directory often is. That this directory is missing stops no
// job. Memory may become executable: the Python helper needs that.
//
// A user's job reads no other's records and writes no metrics: once it has ended,
// its unit does that, with the rights of systemd itself ("+").
func Service(j *replicate.Job, p Paths) string { return service(j, p, runs()) }

// DrillService is the service of a job's drills: what a Service is left, and what
// drills need besides.
func DrillService(j *replicate.Job, p Paths) string { return service(j, p, drills()) }

func service(j *replicate.Job, p Paths, t task) string {
	writable, metrics := []string{p.StateDir}, ""
	switch {
	case p.Textfile == "":
	case j.User == "":
		writable = append(writable, "-"+filepath.Dir(p.Textfile))
	default:
		metrics = fmt.Sprintf("ExecStopPost=+%s replicate metrics %s\n", p.Binary, p.flags())
	}
	capabilities, user := "CAP_SYS_ADMIN CAP_DAC_OVERRIDE", t.own
	if j.User != "" {
		capabilities, user = "", "User="+j.User+"\n"
		if below, ok := strings.CutPrefix(p.StateDir, "/var/lib/"); ok { // systemd makes it, and gives it to the user
			user += "StateDirectory=" + filepath.Join(below, j.Name) + "\nStateDirectoryMode=0750\n"
		}
	}
	kill := "mixed"
	if e, err := endpoint.Parse(j.Source); err == nil && e.Local() && len(j.Freeze) > 0 && t.what == "replicate" {
		kill = "process" // the watchdog of what is frozen outlives the run; all else ends with it
		if j.User == "" {
			user += runDirectory // for what both leave that are killed at once
		}
		if j.User == "" && slices.ContainsFunc(j.Freeze, func(z replicate.Freeze) bool { return z.RunAs != "" }) {
			capabilities += " CAP_SETUID CAP_SETGID CAP_KILL"
		}
	}
	network, after := "", "zfs.target"
	if reachesOut(j) {
		network, after = "Wants=network-online.target\n", "network-online.target zfs.target"
	}
	return fmt.Sprintf(`%s
[Unit]
Description=zxfer: %s %s
%sAfter=%s
ConditionPathExists=%s
StartLimitIntervalSec=0

[Service]
Type=oneshot
NotifyAccess=main
ExecStart=%s replicate %s %s %s
%sRestart=%s
RestartSec=5min
RestartPreventExitStatus=1 2 3
TimeoutStartSec=infinity
TimeoutStopSec=90s
KillMode=%s
%sNice=10
IOSchedulingClass=best-effort
IOSchedulingPriority=7
UMask=0077
CapabilityBoundingSet=%s
DeviceAllow=/dev/zfs rw
DevicePolicy=closed
LockPersonality=yes
NoNewPrivileges=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
ReadWritePaths=%s
RemoveIPC=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=%s
RestrictRealtime=yes
RestrictSUIDSGID=%s
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=%s
`, Marker, t.what, j.Name, network, after, p.JobFile, p.Binary, t.verb, p.flags(), j.Name, metrics, t.restart, kill, user, capabilities,
		strings.Join(writable, " "), t.namespaces, t.suid, t.calls)
}

// reachesOut tells whether the source or any target is on another host.
func reachesOut(j *replicate.Job) bool {
	all := []string{j.Source}
	for i := range j.Targets {
		all = append(all, j.Targets[i].To)
	}
	return slices.ContainsFunc(all, func(s string) bool {
		e, err := endpoint.Parse(s)
		return err != nil || !e.Local()
	})
}

// Timer is the timer of a job that has a schedule. A run that was missed while
// the host was off is made up for.
func Timer(j *replicate.Job) string { return timer(j, runs(), j.Schedule) }

// DrillTimer is that of a job whose drills have one.
func DrillTimer(j *replicate.Job) string { return timer(j, drills(), j.DrillSchedule()) }

func timer(j *replicate.Job, t task, schedule string) string {
	jitter := ""
	if j.Jitter > 0 {
		jitter = fmt.Sprintf("RandomizedDelaySec=%d\n", int(time.Duration(j.Jitter).Seconds()))
	}
	return fmt.Sprintf(`%s
[Unit]
Description=zxfer: schedule of %s %s

[Timer]
OnCalendar=%s
%sAccuracySec=1s
Persistent=yes

[Install]
WantedBy=timers.target
`, Marker, t.what, j.Name, schedule, jitter)
}

// Files are the units of a job file, by file name. Jobs without a schedule
// get a service only.
func Files(f *replicate.File, p Paths) (map[string]string, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for i := range f.Jobs {
		j := &f.Jobs[i]
		out[Name(j.Name)+".service"] = Service(j, p)
		if j.Schedule != "" {
			out[Name(j.Name)+".timer"] = Timer(j)
		}
		if j.DrillSchedule() != "" {
			out[DrillName(j.Name)+".service"], out[DrillName(j.Name)+".timer"] = DrillService(j, p), DrillTimer(j)
		}
	}
	return out, nil
}

// Cron is the line of a system crontab, with its user, that runs a job on a
// host without systemd.
func Cron(j *replicate.Job, p Paths) (string, error) { return cron(j, p, j.Schedule, "run") }

// DrillCron is the line that drills its copies.
func DrillCron(j *replicate.Job, p Paths) (string, error) {
	return cron(j, p, j.DrillSchedule(), "drill")
}

func cron(j *replicate.Job, p Paths, schedule, verb string) (string, error) {
	e, err := calendar.Parse(schedule)
	if err != nil {
		return "", err
	}
	fields, err := e.Cron()
	if err != nil {
		return "", fault.Failf("choose a schedule that cron has too", "schedule %q: %w", schedule, err)
	}
	user := cmp.Or(j.User, "root")
	if strings.Trim(user, "0123456789") == "" {
		return "", fault.Failf("write the account's name", "user %q: cron takes no number", user)
	}
	return fmt.Sprintf("%s %s %s replicate %s %s %s", fields, user, p.Binary, verb, p.flags(), j.Name), nil
}
