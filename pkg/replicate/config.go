package replicate

import (
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/transport"
)

// File is a job file, or one host's part of it.
type File struct {
	Metrics Metrics `toml:"metrics,omitempty"`
	// Notify applies to all jobs. In a file from Parse, each job has its complete Notify.
	Notify Notify `toml:"notify,omitempty"`
	// Hosts and Templates are set only in a shared file, not in a part (see Inventory).
	Hosts     []Host `toml:"host,omitempty"`
	Templates []Job  `toml:"template,omitempty"`
	Jobs      []Job  `toml:"job"`

	// Host is the host of this part, or "" if the file is not shared.
	Host string `toml:"-"`
	// Elsewhere are the names of other hosts' jobs.
	Elsewhere []string `toml:"-"`
}

// Host is a host, or a group of hosts, of a shared job file.
type Host struct {
	// Name is the group's name: letters, digits, "-" and "_".
	Name string `toml:"name"`
	// Names are short host names: "web1", ranges "web[2-9]" and patterns "db-*". If nil, Name is
	// the only one.
	Names []string `toml:"names,omitempty"`
	// Address is the ssh address, "[user@]host". It may contain {host}, the host's name. "" = the
	// host's name.
	Address string `toml:"address,omitempty"`
	// RSH is the remote shell, "" = ssh.
	RSH string `toml:"rsh,omitempty"`
	// Vars are values for {name} in jobs.
	Vars map[string]string `toml:"vars,omitempty"`
}

// Metrics configures the export to Prometheus.
type Metrics struct {
	// Textfile is a file in the directory of node_exporter's textfile collector. Its name ends in
	// ".prom". "" = no export.
	Textfile string `toml:"textfile,omitempty"`
}

// Job replicates the snapshots of a dataset, and of its descendants, to targets. Without a target,
// it only takes or prunes snapshots.
type Job struct {
	// Name is unique in the file: letters, digits, "-" and "_".
	Name string `toml:"name"`
	// Template is a template's name, or an array of names; nil in a part.
	Template any `toml:"template,omitempty"`
	// Hosts are hosts or groups that have this job, empty = all; nil in a part.
	Hosts []string `toml:"hosts,omitempty"`
	// Source is "[[user@]host:]dataset".
	Source string `toml:"source"`
	// Recursive includes the descendants of Source.
	Recursive bool `toml:"recursive,omitempty"`
	Selection
	// MountBelow are directories at or below which promote and switch may mount a copy if the source records
	// that mountpoint. Further ones are permitted without it; see failover.md.
	MountBelow []string `toml:"mount_below,omitempty"`

	// Schedule is in the syntax of systemd's OnCalendar=, "" = manual runs only.
	Schedule string `toml:"schedule,omitempty"`
	// Jitter is the maximum random delay of a run.
	Jitter calendar.Duration `toml:"jitter,omitempty"`
	// Grace is the delay after which status reports a dataset as late; 0 = 15 minutes.
	Grace calendar.Duration `toml:"grace,omitempty"`
	// User is the account of the job's unit, "" = root.
	User string `toml:"user,omitempty"`

	Snapshots Snapshots `toml:"snapshots"`
	// Retention applies to the source; nil keeps everything.
	Retention *retention.Grid `toml:"retention,omitempty"`
	// PruneLimit limits how many snapshots of one dataset a run destroys although an earlier run
	// kept them and no newer snapshot supersedes them; nil = 100.
	PruneLimit *int `toml:"prune_limit,omitempty"`
	// Targets may be empty: then nothing is sent.
	Targets []Target `toml:"target,omitempty"`

	// Parallel is the number of concurrent datasets over all targets; 0 = 2.
	Parallel int `toml:"parallel,omitempty"`
	// Retries is the number of retries per dataset; nil = 5.
	Retries *int `toml:"retries,omitempty"`
	// Transfer holds transfer options; a target may replace them.
	Transfer Transfer `toml:"transfer,omitempty"`
	// First is the history to send for a dataset that is new on the target, "" = "all". A target
	// may replace it.
	First plan.First `toml:"first,omitempty"`
	// Holds selects the sides that hold the most recent common snapshot: "both", "source",
	// "target" or "none"; "" = both.
	Holds string `toml:"holds,omitempty"`
	// Bookmarks is "sent", which bookmarks sent snapshots on the source, or "none"; "" = sent.
	Bookmarks string `toml:"bookmarks,omitempty"`

	// Drill configures restore tests. If it is nil, they are manual and use the defaults.
	Drill *Drill `toml:"drill,omitempty"`

	// Freeze lists applications to freeze while snapshots are taken.
	Freeze []Freeze `toml:"freeze,omitempty"`

	Before []Hook `toml:"before,omitempty"`
	After  []Hook `toml:"after,omitempty"`
	// Alert runs after a failed run.
	Alert *Hook `toml:"alert,omitempty"`
	// Notify replaces keys of the file's table.
	Notify *Notify `toml:"notify,omitempty"`
}

// Snapshots defines the scope of a job. A job sends and destroys only these snapshots.
type Snapshots struct {
	// Take is the name template of the job's own snapshots (see Naming); "" = the job takes none.
	Take string `toml:"take,omitempty"`
	// SkipUnchanged skips datasets without changes since the job's last snapshot.
	SkipUnchanged bool `toml:"skip_unchanged,omitempty"`
	// Adopt are patterns (see plan.Pattern) of the names of foreign snapshots.
	Adopt []string `toml:"adopt,omitempty"`
	// ReceivedFrom is "JOB:TARGET": the job of another host, and its target, that sends the source to
	// this host. The job sends only snapshots that that job has confirmed by its holds. Empty Adopt
	// then means all names. "" = the source is no copy.
	ReceivedFrom string `toml:"received_from,omitempty"`
	// Late is the time without a new snapshot of ReceivedFrom after which the copies are late; 0 = two
	// scheduled runs in succession that find none.
	Late calendar.Duration `toml:"late,omitempty"`
	SnapshotLimits
}

// SnapshotLimits selects snapshots to send. The fields are combined; the most recent snapshot is always
// sent.
type SnapshotLimits struct {
	// Newest is the number of most recent snapshots; 0 = all.
	Newest int `toml:"newest,omitempty"`
	// Since is the maximum age by the source's clock; 0 = unlimited.
	Since calendar.Duration `toml:"since,omitempty"`
	// LatestOnly is Newest = 1.
	LatestOnly bool `toml:"latest_only,omitempty"`
}

// Selection selects datasets of a job, or of a target, among the source and its descendants.
type Selection struct {
	// Include and Exclude are patterns (see SelectsName); empty Include means all.
	Include []string `toml:"include,omitempty"`
	Exclude []string `toml:"exclude,omitempty"`
	// Property is NAME=VALUE, or NAME, of a user property that is set or inherited; "" = no
	// condition.
	Property string `toml:"property,omitempty"`
}

// SourceSide is the name of the source in lists of sides. No target may have it.
const SourceSide = "source"

// Target is a destination of a job.
type Target struct {
	// Name is unique in the job: letters, digits, "-" and "_". Hold tags contain it.
	Name string `toml:"name"`
	// To is "[[user@]host:]dataset". If it is a pool, or ends in "/", zxfer appends the source's
	// path without its pool.
	To string `toml:"to"`
	// Selection excludes more of the job's datasets.
	Selection
	// Snapshots narrows the job's scope.
	Snapshots TargetSnapshots `toml:"snapshots,omitempty"`
	// Retention applies to the target; nil keeps everything.
	Retention *retention.Grid `toml:"retention,omitempty"`
	// SentOnBy are jobs on the target's host that send this copy on. Retention and Mirror keep
	// snapshots that they have not sent, and "holds --gc" keeps their holds.
	SentOnBy   []string   `toml:"sent_on_by,omitempty"`
	Properties Properties `toml:"properties,omitempty"`
	// First replaces the job's.
	First plan.First `toml:"first,omitempty"`
	// OnDivergence is "refuse", or "rotate", which renames a diverged copy and replaces it with a
	// full send; "" = refuse.
	OnDivergence string `toml:"on_divergence,omitempty"`
	// OnRename is "refuse", or "follow", which renames a copy whose source dataset was renamed; "" =
	// refuse.
	OnRename string `toml:"on_rename,omitempty"`
	// Mirror destroys snapshots and datasets that were deleted on the source; nil keeps them.
	Mirror *Mirror `toml:"mirror,omitempty"`
	// Transfer replaces the job's.
	Transfer *Transfer `toml:"transfer,omitempty"`
	// Drill replaces the job's, except for the schedule.
	Drill *Drill `toml:"drill,omitempty"`
	// Disk is set if the target's pool comes and goes.
	Disk *Disk `toml:"disk,omitempty"`

	// PairName is the result of Pair, "" = Name.
	PairName string `toml:"-"`
}

// TargetSnapshots selects the snapshots of the scope that a target gets.
type TargetSnapshots struct {
	// Only are patterns of names; empty means all.
	Only []string `toml:"only,omitempty"`
	// SnapshotLimits replaces the job's if it is not zero.
	SnapshotLimits
}

// Properties configures the properties of a target's datasets.
type Properties struct {
	// Carry is true (all harmless properties that are set on the source, not only those that shape
	// data), or an array of additional names. See Carries.
	Carry   any               `toml:"carry,omitempty"`
	Set     map[string]string `toml:"set,omitempty"`     // overrides carried values
	Exclude []string          `toml:"exclude,omitempty"` // never carried
}

// Carries returns the two meanings of Carry: all properties, or a list of names.
func (p *Properties) Carries() (all bool, named []string) {
	switch c := p.Carry.(type) {
	case bool:
		return c, nil
	case []any:
		for _, name := range c {
			if text, ok := name.(string); ok {
				named = append(named, text)
			}
		}
	}
	return len(named) > 0, named
}

// Transfer holds transfer options.
type Transfer struct {
	transport.Settings
	Decrypt    bool     `toml:"decrypt,omitempty"`     // sends encrypted datasets decrypted; otherwise never
	SkipChecks []string `toml:"skip_checks,omitempty"` // IDs of preflight checks to skip
}

// Hook is a command that runs before or after a job, as an argument list without a shell. See
// hook.Environment for its environment.
type Hook struct {
	Command []string          `toml:"command"`
	Timeout calendar.Duration `toml:"timeout,omitempty"` // 0 = 1 minute
	// OnFailure applies to hooks before the run: "stop" ends the run, "continue" does not; "" =
	// stop.
	OnFailure string `toml:"on_failure,omitempty"`
}

// Drill configures a restore test: it clones the copy's most recent snapshot, reads the clone and
// compares it with the source.
type Drill struct {
	// Schedule is in the syntax of systemd's OnCalendar=, "" = manual drills only. It is valid in
	// jobs, not in targets.
	Schedule string `toml:"schedule,omitempty"`
	// Sample is the part of the files to read; 0 = all.
	Sample Fraction `toml:"sample,omitempty"`
	// Command runs in the clone, on the copy's host, as an argument list without a shell. Exit
	// code 0 means that the data is good.
	Command []string          `toml:"command,omitempty"`
	Timeout calendar.Duration `toml:"timeout,omitempty"` // of Command; 0 = 1 hour
	// Writable lets Command write to the clone, for example to recover a database.
	Writable bool `toml:"writable,omitempty"`
	// Deadline limits the whole drill of a job; 0 = until a day after the next one is due. It is valid in jobs,
	// not in targets.
	Deadline calendar.Duration `toml:"deadline,omitempty"`
	// KeyFile is a key file on the copy's host. The drill loads the key while it reads. If it is
	// "", the drill never loads a key.
	KeyFile string `toml:"key_file,omitempty"`
}

// DrillGrace is how long after its due time a drill may end. A drill can read for hours.
const DrillGrace = 24 * time.Hour

// Mirror destroys on a target what was deleted on the source.
type Mirror struct {
	// Limit is the maximum number of snapshots per dataset, and of datasets, that one run
	// destroys; nil = 100.
	Limit *int `toml:"limit,omitempty"`
	// Gone is the grace period before a run destroys an orphan. 0, written "keep", means never.
	Gone calendar.Grace `toml:"gone,omitempty"`
}
