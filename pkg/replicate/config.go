package replicate

import (
	"cmp"
	"slices"
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/transport"
)

// File is a job file, or a host's part of one.
type File struct {
	Metrics Metrics `toml:"metrics,omitempty"`
	// Hosts and Templates are those of a file that hosts share; a host's part has
	// none (see Inventory).
	Hosts     []Host `toml:"host,omitempty"`
	Templates []Job  `toml:"template,omitempty"`
	Jobs      []Job  `toml:"job"`

	// Host is whose part this is, "" where the file has one alone.
	Host      string   `toml:"-"`
	elsewhere []string // jobs of other hosts
}

// Host is a group of hosts that share a job file, or one host.
type Host struct {
	// Name is the group's: letters, digits, "-" and "_".
	Name string `toml:"name"`
	// Names are the hosts' own names, without domains: "web1", ranges "web[2-9]",
	// patterns "db-*" and regular expressions "re:^db-[a-z]+$". None = Name.
	Names []string `toml:"names,omitempty"`
	// Address is how others reach them, as "[user@]host", in which {host} is the
	// host's name; "" = by that.
	Address string `toml:"address,omitempty"`
	// RSH is the remote shell for that, "" = ssh.
	RSH string `toml:"rsh,omitempty"`
	// Vars are what jobs write as {name}.
	Vars map[string]string `toml:"vars,omitempty"`
}

// Metrics says where figures for Prometheus go.
type Metrics struct {
	// Textfile is a file below the directory of node_exporter's textfile
	// collector; its name ends in ".prom". "" = none.
	Textfile string `toml:"textfile,omitempty"`
}

// Job brings the snapshots of a dataset, and of what is below it, to one or
// more targets. Without a target it only takes snapshots, or removes them, or
// both.
type Job struct {
	// Name is unique in the file: letters, digits, "-" and "_".
	Name string `toml:"name"`
	// Template is the name of a template, or an array of names; a host's part has
	// none.
	Template any `toml:"template,omitempty"`
	// Hosts are the names of hosts or of groups of them whose job this is, empty =
	// all; a host's part has none.
	Hosts []string `toml:"hosts,omitempty"`
	// Source is "[[user@]host:]dataset".
	Source string `toml:"source"`
	// Recursive takes in every dataset below Source.
	Recursive bool `toml:"recursive,omitempty"`
	Choice

	// Schedule is when to run, in the syntax of systemd's OnCalendar=; "" =
	// only by hand.
	Schedule string `toml:"schedule,omitempty"`
	// Jitter delays each run by a random time up to this.
	Jitter Duration `toml:"jitter,omitempty"`
	// Grace is how long after it was due a dataset may arrive before status
	// calls it late; 0 = 15 minutes.
	Grace Duration `toml:"grace,omitempty"`
	// User runs the job's unit; "" = root.
	User string `toml:"user,omitempty"`

	Snapshots Snapshots `toml:"snapshots"`
	// Retention is what to keep on the source; nil keeps everything.
	Retention *Grid `toml:"retention,omitempty"`
	// PruneLimit is how many snapshots of one dataset, of those that an earlier
	// run kept, one run removes though nothing has overtaken them; nil = 100.
	PruneLimit *int `toml:"prune_limit,omitempty"`
	// Targets is where the snapshots go; with none they stay where they are.
	Targets []Target `toml:"target,omitempty"`

	// Parallel is how many datasets move at once, over all targets; 0 = 2.
	Parallel int `toml:"parallel,omitempty"`
	// Retries are tries after a cut, for each dataset; nil = 5.
	Retries *int `toml:"retries,omitempty"`
	// Transfer is how data crosses; a target may have its own instead.
	Transfer Transfer `toml:"transfer,omitempty"`
	// First is how a dataset begins that a target does not have; "" = "all". A target may
	// have its own instead.
	First plan.First `toml:"first,omitempty"`
	// Holds is where the newest common snapshot of each target is held:
	// "both", "source", "target" or "none"; "" = both.
	Holds string `toml:"holds,omitempty"`
	// Bookmarks is "sent", which bookmarks on the source what was sent, or
	// "none"; "" = sent.
	Bookmarks string `toml:"bookmarks,omitempty"`

	// Drill is how copies are proved to be restorable; nil = by hand, all of it.
	Drill *Drill `toml:"drill,omitempty"`

	// Freeze are the applications that stand still while snapshots are taken.
	Freeze []Freeze `toml:"freeze,omitempty"`

	Before []Hook `toml:"before,omitempty"`
	After  []Hook `toml:"after,omitempty"`
	// Alert runs after a run that failed.
	Alert *Hook `toml:"alert,omitempty"`
}

// Snapshots says which snapshots a job makes or adopts. Only these are sent,
// and only these are ever removed.
type Snapshots struct {
	// Take is the template of the names of own snapshots (see Naming); "" =
	// the job takes none.
	Take string `toml:"take,omitempty"`
	// SkipUnchanged takes no snapshot of a dataset that holds nothing new
	// since the job's last one.
	SkipUnchanged bool `toml:"skip_unchanged,omitempty"`
	// Adopt are patterns (see plan.Pattern) of names of snapshots that others take.
	Adopt []string `toml:"adopt,omitempty"`
	Sent
}

// Sent is which of the snapshots that a job concerns are sent: each narrows what the
// others leave, and the newest is always sent.
type Sent struct {
	// Newest is how many, the newest; 0 = all.
	Newest int `toml:"newest,omitempty"`
	// Since is how long ago they were taken at most, by the source's clock; 0 = ever.
	Since Duration `toml:"since,omitempty"`
	// LatestOnly sends the newest and none in between.
	LatestOnly bool `toml:"latest_only,omitempty"`
}

// Choice is which datasets a job, or a target of it, takes, of those at and below the
// job's source.
type Choice struct {
	// Include and Exclude are patterns (see Selects); empty Include means all.
	Include []string `toml:"include,omitempty"`
	Exclude []string `toml:"exclude,omitempty"`
	// Property is NAME=VALUE, or the NAME alone, of a user property that a dataset has,
	// set or inherited; "" = none is asked for.
	Property string `toml:"property,omitempty"`
}

// SourceSide names the source where sides are told apart by name, as in
// what retention removes; no target has that name.
const SourceSide = "source"

// Target is one place that a job's snapshots go to.
type Target struct {
	// Name is unique in the job: letters, digits, "-" and "_"; it is part of
	// holds' tags.
	Name string `toml:"name"`
	// To is "[[user@]host:]dataset": a pool, or a name that ends in "/",
	// receives the source's path below its pool.
	To string `toml:"to"`
	// Choice leaves out datasets of those that the job takes.
	Choice
	// Snapshots narrows what is sent.
	Snapshots TargetSnapshots `toml:"snapshots,omitempty"`
	// Retention is what to keep there; nil keeps everything.
	Retention  *Grid      `toml:"retention,omitempty"`
	Properties Properties `toml:"properties,omitempty"`
	// First replaces the job's.
	First plan.First `toml:"first,omitempty"`
	// OnDivergence is what becomes of a copy that no stream brings back: "refuse", or
	// "rotate", which sets it aside under another name and begins it anew; "" = refuse.
	OnDivergence string `toml:"on_divergence,omitempty"`
	// Mirror has what the source no longer has go from there; nil keeps it.
	Mirror *Mirror `toml:"mirror,omitempty"`
	// Transfer replaces the job's.
	Transfer *Transfer `toml:"transfer,omitempty"`
	// Drill replaces the job's, but for the schedule.
	Drill *Drill `toml:"drill,omitempty"`
}

// TargetSnapshots is what is sent to a target of what the job concerns.
type TargetSnapshots struct {
	// Only are patterns of names; empty means all.
	Only []string `toml:"only,omitempty"`
	// Sent replaces the job's, where it says anything.
	Sent
}

// Properties are the properties of a target's datasets.
type Properties struct {
	// Carry is true for all harmless properties that are set on the source, not only
	// those that shape data; or an array of names that are carried too. See Carries.
	Carry   any               `toml:"carry,omitempty"`
	Set     map[string]string `toml:"set,omitempty"`     // on the target, instead of what would be carried
	Exclude []string          `toml:"exclude,omitempty"` // not carried
}

// Carries returns what Carry asks for.
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

// Transfer is how data crosses.
type Transfer struct {
	transport.Settings
	Decrypt    bool     `toml:"decrypt,omitempty"`     // send encrypted datasets decrypted; never without this
	SkipChecks []string `toml:"skip_checks,omitempty"` // preflight checks to pass over, by id
}

// Hook is a command that runs before or after a job. It is an argument list:
// no shell reads it. What it finds in its environment is described at
// runner.HookEnvironment.
type Hook struct {
	Command []string `toml:"command"`
	Timeout Duration `toml:"timeout,omitempty"` // 0 = 1 minute
	// OnFailure of a hook before the run: "stop" ends the run, "continue"
	// does not; "" = stop. It has no meaning after the run.
	OnFailure string `toml:"on_failure,omitempty"`
}

// Drill is how a copy is proved to be restorable: its newest snapshot is cloned,
// read and compared with the source's.
type Drill struct {
	// Schedule is when, in the syntax of systemd's OnCalendar=; "" = only by hand.
	// Of a job, not of a target.
	Schedule string `toml:"schedule,omitempty"`
	// Sample is the part of the files that is read; 0 = all.
	Sample Share `toml:"sample,omitempty"`
	// Command runs in the clone, on the copy's host: an argument list, which no
	// shell reads. Its exit code 0 says that what the copy holds is good.
	Command []string `toml:"command,omitempty"`
	Timeout Duration `toml:"timeout,omitempty"` // of Command; 0 = 1 hour
	// Writable has Command write to the clone, as a database that recovers does.
	Writable bool `toml:"writable,omitempty"`
	// KeyFile is a file on the copy's host with the key of what is encrypted; it is
	// loaded while the drill reads. Without it a key is never loaded.
	KeyFile string `toml:"key_file,omitempty"`
}

// Grid is what retention keeps: the newest Last snapshots, and the newest
// snapshot of each of the newest N hours, days … (ISO weeks) that have any. What
// one rule keeps no other drops.
type Grid struct {
	// Timezone is where hours, days … begin.
	Timezone Zone `toml:"timezone,omitempty"`

	Last    int `toml:"last,omitempty"`
	Hourly  int `toml:"hourly,omitempty"`
	Daily   int `toml:"daily,omitempty"`
	Weekly  int `toml:"weekly,omitempty"`
	Monthly int `toml:"monthly,omitempty"`
	Yearly  int `toml:"yearly,omitempty"`
	// Also is what is kept beside, by name: the rules of another tool.
	Also []Also `toml:"also,omitempty,inline"`
}

// Also keeps snapshots of some names: the newest Last, and all that are at most
// Age older than the newest snapshot that the job concerns.
type Also struct {
	Names []string `toml:"names"` // patterns
	Last  int      `toml:"last,omitempty"`
	Age   Duration `toml:"age,omitempty"`
	// Before leaves out what was taken then or later; zero leaves nothing out.
	Before time.Time `toml:"before,omitempty"`
}

// Empty tells that the grid has no rule.
func (g *Grid) Empty() bool {
	return len(g.Also) == 0 && g.Last|g.Hourly|g.Daily|g.Weekly|g.Monthly|g.Yearly == 0
}

// defaultPruneLimit is more than a run removes for any other reason than that
// the job file was changed, or that something is wrong.
const defaultPruneLimit = 100

// PruneAtMost is the limit of one run for one dataset.
func (j *Job) PruneAtMost() int {
	if j.PruneLimit == nil {
		return defaultPruneLimit
	}
	return *j.PruneLimit
}

// Tries is how often what was cut is tried again.
func (j *Job) Tries() int {
	if j.Retries == nil {
		return transport.Retries
	}
	return *j.Retries
}

// Find returns the job of that name, nil if there is none.
func (f *File) Find(name string) *Job {
	for i := range f.Jobs {
		if f.Jobs[i].Name == name {
			return &f.Jobs[i]
		}
	}
	return nil
}

// TransferTo is how data crosses to a target.
func (j *Job) TransferTo(t *Target) *Transfer {
	if t.Transfer != nil {
		return t.Transfer
	}
	return &j.Transfer
}

// SentTo is which snapshots are sent to a target.
func (j *Job) SentTo(t *Target) Sent { return cmp.Or(t.Snapshots.Sent, j.Snapshots.Sent) }

// FirstAt is how a dataset begins that a target does not have.
func (j *Job) FirstAt(t *Target) plan.First { return cmp.Or(t.First, j.First, plan.FirstAll) }

// Begin has all datasets that a target does not have begin so; "" changes nothing.
func (j *Job) Begin(first plan.First) {
	if first == "" {
		return
	}
	j.First = first
	for i := range j.Targets {
		j.Targets[i].First = ""
	}
}

// DrillAt is how a target's copies are drilled.
func (j *Job) DrillAt(t *Target) Drill {
	for _, d := range []*Drill{t.Drill, j.Drill} {
		if d != nil {
			return *d
		}
	}
	return Drill{}
}

// DrillSchedule is when its copies are drilled, "" = only by hand.
func (j *Job) DrillSchedule() string {
	if j.Drill == nil {
		return ""
	}
	return j.Drill.Schedule
}

// Drills tells whether the job file says how its copies are drilled.
func (j *Job) Drills() bool {
	return j.Drill != nil || slices.ContainsFunc(j.Targets, func(t Target) bool { return t.Drill != nil })
}
