package unit

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/jobfile"
)

// Prefix starts the name of every unit that this package writes, and Marker is its first line.
// zxfer lists, overwrites and deletes exactly the units that have both.
const (
	Prefix = "zxfer-"
	Marker = "# Written by zxfer replicate install; changes belong into a drop-in (systemctl edit)."
)

// Families of units, by the start of their names.
const (
	runFamily   = Prefix + "replicate-" // services and timers
	drillFamily = Prefix + "drill-"     // services and timers
	diskFamily  = Prefix + "disk-"      // services
)

// fileName matches the file names of units of any family, also of other versions. Drop-in directories do not match.
var fileName = regexp.MustCompile(`^` + Prefix + `[A-Za-z0-9_.-]+\.(service|timer)$`)

// IsFile reports whether a file with that name may be a unit that this package wrote. Its text starts with Marker then.
func IsFile(name string) bool { return fileName.MatchString(name) }

// IsTimer reports whether a unit is a timer. systemd starts its service from now on.
func IsTimer(name string) bool { return strings.HasSuffix(name, ".timer") }

// Enabled reports whether systemd starts a unit by itself, once it is enabled: a timer, or the service of a disk.
func Enabled(name string) bool { return IsTimer(name) || strings.HasPrefix(name, diskFamily) }

// Files returns the units of a job file by file name. Jobs without a schedule only have a service.
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
		for k := range j.Targets {
			if t := &j.Targets[k]; t.Disk != nil && t.Disk.Import {
				out[DiskName(j.Name, t.Name)+".service"] = DiskService(j, t, p)
			}
		}
	}
	return out, nil
}

// Name returns the name of a job's units without a suffix.
func Name(job string) string { return runFamily + job }

// DrillName returns the name of the units that drill a job's copies.
func DrillName(job string) string { return drillFamily + job }

// DiskName returns the name of the service that runs a job when a disk appears. The separator is in no
// name of a job or target.
func DiskName(job, target string) string { return diskFamily + job + "." + target }

// DiskService returns the service that runs a job when the disk of a target appears.
//
// udev gives each device with a pool the link /dev/disk/by-uuid/GUID, because blkid(8) reports the
// pool's GUID as the UUID of a filesystem. systemd makes a device unit of each link. When the device
// appears, the device unit becomes active and systemd starts the units that it wants. A service that ended
// is not started again before the device has disappeared. A path unit would start it again as long as
// the link exists.
//
// The service is separate from that of the timer: systemd ignores a start of a running service, and a
// run in progress may not notice a disk that appears. It waits for the lock of the job instead.
func DiskService(j *replicate.Job, t *replicate.Target, p Paths) string {
	run := runs()
	run.disk = t
	return service(j, p, run)
}

// Service returns the service of a job, hardened to the needs of a run.
//
// Exit code 4 means that the run was interrupted and can resume, so systemd restarts it. After 1
// (failed), 2 (usage) and 3 (refused), a restart would fail again, and the timer starts the next
// run anyway. If systemd stops the run, it exits with 0 unless something failed before. Therefore
// systemctl stop leaves the unit inactive, and network interruptions are distinct from it. A run
// killed by SIGTERM has failed.
//
// StartLimitIntervalSec=0, because systemd also counts starts by the timer and would block a job
// that runs every 15 minutes. RestartSec limits the rate.
//
// The service reports its activity for systemctl status (NotifyAccess=, STATUS= of sd_notify(3)),
// but not its readiness: a oneshot service is ready when it ends.
//
// A job without remote hosts does not wait for the network.
//
// The service may use the network, /dev/zfs with CAP_SYS_ADMIN, which ZFS requires of root, and
// the state directory. CAP_DAC_OVERRIDE lets root read keys and records, and write metrics, of
// other accounts; node_exporter often owns its directory. If that directory is missing, the job
// still runs. Memory may be executable, because the Python helper needs that.
//
// A user's job cannot read other jobs' records and writes no metrics. After it ends, its unit
// writes them with full privileges ("+").
//
// In the same way, a unit sends mail: a sendmail with a setgid program, such as postfix's, cannot
// queue a mail under NoNewPrivileges= and ProtectSystem=strict. systemd tells this command if the
// run was killed. Its failure ("-") is not a failure of the run.
func Service(j *replicate.Job, p Paths) string { return service(j, p, runs()) }

// DrillService returns the service of a job's drills, hardened to their needs.
func DrillService(j *replicate.Job, p Paths) string { return service(j, p, drills()) }

// Timer returns the timer of a job with a schedule. It catches up on runs that were missed while
// the host was off.
func Timer(j *replicate.Job) string { return timer(j, runs(), j.Schedule) }

// DrillTimer returns the timer of a job's drills.
func DrillTimer(j *replicate.Job) string { return timer(j, drills(), j.DrillSchedule()) }

// Paths are the absolute paths in units.
type Paths struct {
	Binary, JobFile, StateDir string
	Textfile                  string // "" = none
	Host                      string // host whose part of the job file to use, "" = this one
}

// Check returns an error for paths that a unit cannot contain.
func (p Paths) Check() error {
	var errs []error
	for _, s := range []string{p.Binary, p.JobFile, p.StateDir, p.Textfile} {
		err := error(nil)
		if s != "" {
			err = jobfile.CheckPath(s)
		}
		if err == nil && strings.Contains(s, " ") {
			err = fault.Usagef("use a path without blanks", "%q is not an absolute path without blanks, as units require", s)
		}
		errs = append(errs, err)
	}
	if strings.Contains(p.StateDir, ":") {
		errs = append(errs, fault.Usagef("use a directory without a colon", "%q contains a colon, which is special in StateDirectory=", p.StateDir))
	}
	return errors.Join(errs...)
}

// Reachable returns an error for paths in /tmp or /var/tmp, because units have private ones.
func (p Paths) Reachable() error {
	var errs []error
	for _, s := range []string{p.Binary, p.JobFile, p.StateDir, p.Textfile} {
		if strings.HasPrefix(s, "/tmp/") || strings.HasPrefix(s, "/var/tmp/") {
			errs = append(errs, fmt.Errorf("%s: units have a private /tmp and /var/tmp", s))
		}
	}
	return errors.Join(errs...)
}

// flags returns the common flags of all commands.
func (p Paths) flags() string {
	flags := "--config " + p.JobFile + " --state-dir " + p.StateDir
	if p.Host != "" {
		flags += " --host " + p.Host
	}
	return flags
}

// task holds the directives that differ between runs and drills. own are more directives of root's
// service.
type task struct {
	verb, subject, restart, namespaces, syscalls, suid, own string
	disk                                                    *replicate.Target // its appearance starts the service; nil = none
}

func runs() task {
	return task{"run --wait --service", "replicate", "on-failure", "yes", "@system-service", "yes", "", nil}
}

// drills returns the task of a drill. It needs private mounts, a PID namespace for the command,
// and openat2(2) for paths without symlinks. RestrictSUIDSGID= would block openat2(2), because it
// cannot filter its mode. After an interruption, the timer starts the next drill. Drills that load
// the same key coordinate in the run directory.
func drills() task {
	return task{"drill --service", "drill", "no", "mnt pid", "@system-service @mount", "no", runDirectory, nil}
}

// rootCapabilities are the capabilities of root's services (see Service).
const rootCapabilities = "CAP_SYS_ADMIN CAP_DAC_OVERRIDE"

// runDirectory makes systemd create the directory for coordination between processes.
const runDirectory = "RuntimeDirectory=zxfer\nRuntimeDirectoryMode=0700\nRuntimeDirectoryPreserve=yes\n"

func service(j *replicate.Job, p Paths, t task) string {
	writable, after := []string{p.StateDir}, ""
	switch {
	case p.Textfile == "":
	case j.User == "":
		writable = append(writable, "-"+filepath.Dir(p.Textfile))
	default:
		after = fmt.Sprintf("ExecStopPost=+%s replicate metrics %s\n", p.Binary, p.flags())
	}
	verb := t.verb
	if t.subject == "replicate" && j.Notify.HasMail() {
		verb += " --no-mail"
		after += fmt.Sprintf("ExecStopPost=-+%s replicate notify --due %s %s\n", p.Binary, p.flags(), j.Name)
	}
	capabilities, user := rootCapabilities, t.own
	if j.ImportsDisks() && t.subject == "replicate" {
		user += runDirectory + "DeviceAllow=block-* rw\n" // zpool import reads all devices
	}
	if j.User != "" {
		capabilities, user = "", "User="+j.User+"\n"
		if below, ok := strings.CutPrefix(p.StateDir, "/var/lib/"); ok { // systemd creates it for the user
			user += "StateDirectory=" + filepath.Join(below, j.Name) + "\nStateDirectoryMode=0750\n"
		}
	}
	kill := "mixed"
	if e, err := endpoint.Parse(j.Source); err == nil && e.Local() && len(j.Freeze) > 0 && t.subject == "replicate" {
		kill = "process"                       // the watchdog of a freeze survives the run; everything else ends with it
		if j.User == "" && !j.ImportsDisks() { // the directory is there already
			user += runDirectory // for coordination after both processes are killed
		}
		if j.User == "" && slices.ContainsFunc(j.Freeze, func(z replicate.Freeze) bool { return z.RunAs != "" }) {
			capabilities += " CAP_SETUID CAP_SETGID CAP_KILL"
		}
	}
	network, order := "", "zfs.target"
	if hasRemote(j) || j.Notify.HasPing() {
		network, order = "Wants=network-online.target\n", "network-online.target zfs.target"
	}
	disk, install := "", ""
	if t.disk != nil {
		disk, install = " to disk "+t.disk.Name, fmt.Sprintf("\n[Install]\nWantedBy=dev-disk-by\\x2duuid-%d.device\n", t.disk.Disk.GUID())
	}
	return fmt.Sprintf(`%s
[Unit]
Description=zxfer: %s %s%s
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
%s%s%s`, Marker, t.subject, j.Name, disk, network, order, p.JobFile, p.Binary, verb, p.flags(), j.Name, after, t.restart, kill, user, t.restrictions(capabilities, writable), install)
}

// restrictions returns the directives that limit a service to the needs of a task.
func (t task) restrictions(capabilities string, writable []string) string {
	return fmt.Sprintf(`Nice=10
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
`, capabilities, strings.Join(writable, " "), t.namespaces, t.suid, t.syscalls)
}

// hasRemote reports whether the source or any target is remote.
func hasRemote(j *replicate.Job) bool {
	all := []string{j.Source}
	for i := range j.Targets {
		all = append(all, j.Targets[i].To)
	}
	return slices.ContainsFunc(all, func(s string) bool {
		e, err := endpoint.Parse(s)
		return err != nil || !e.Local()
	})
}

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
`, Marker, t.subject, j.Name, schedule, jitter)
}

// Cron returns a line of a system crontab, with the user, that runs a job on a host without
// systemd.
func Cron(j *replicate.Job, p Paths) (string, error) { return cron(j, p, j.Schedule, "run --service") }

// DrillCron returns the line that drills a job's copies.
func DrillCron(j *replicate.Job, p Paths) (string, error) {
	return cron(j, p, j.DrillSchedule(), "drill --service")
}

func cron(j *replicate.Job, p Paths, schedule, verb string) (string, error) {
	e, err := calendar.Parse(schedule)
	if err != nil {
		return "", err
	}
	fields, err := e.Cron()
	if err != nil {
		return "", fault.Failf("use a schedule that cron supports", "schedule %q: %w", schedule, err)
	}
	user := cmp.Or(j.User, "root")
	if strings.Trim(user, "0123456789") == "" {
		return "", fault.Failf("write the account's name", "user %q: cron does not accept numbers", user)
	}
	return fmt.Sprintf("%s %s %s replicate %s %s %s", fields, user, p.Binary, verb, p.flags(), j.Name), nil
}
