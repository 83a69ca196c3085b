// Package preflight checks a planned transfer against what is known of both
// hosts, before anything is changed. Checks are a table: an id, a title, and
// a function from facts to findings with evidence and remedy.
//
// It is pure: it looks at nothing by itself, and changes nothing. What a plan
// cannot do at all is a conflict of package plan, not a finding.
package preflight

import (
	"cmp"
	"slices"
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// Space is the id of the check of the target's room.
const Space = "space"

// Severity says how serious a finding is.
type Severity string

// The severities, in order. Fail stops a transfer before anything was changed.
const (
	OK   Severity = "ok"
	Note Severity = "note"
	Warn Severity = "warn"
	Fail Severity = "fail"
)

// Compare orders severities, the more serious last; what is none of them
// comes first.
func (s Severity) Compare(t Severity) int {
	all := []Severity{OK, Note, Warn, Fail}
	return cmp.Compare(slices.Index(all, s), slices.Index(all, t))
}

// Finding is what a check found.
type Finding struct {
	ID       string   `json:"id"` // of the check
	Host     string   `json:"host"`
	Severity Severity `json:"severity"`
	Summary  string   `json:"summary"`
	Evidence string   `json:"evidence,omitempty"` // what was read, and where
	Remedy   string   `json:"remedy,omitempty"`   // a command where there is one
	Dataset  string   `json:"dataset,omitempty"`  // of Space: that lacks room, with all below
}

// Host is one end, as far as checks need it.
type Host struct {
	Name   string `json:"name"` // as messages name it
	ZFS    string `json:"zfs"`  // kernel module version, "2.3.9-1"; "" = unknown
	Kernel string `json:"kernel"`
	User   string `json:"user"` // effective; "" = unknown
	Root   bool   `json:"root"`
	// System is what the host's files tell; nil where they were not read.
	System *sysinfo.System `json:"system,omitempty"`
}

// Input is everything that the checks of a send look at. Estimates are those
// of the plan's steps.
type Input struct {
	Source        Host        `json:"source"`
	Target        Host        `json:"target"`
	SourceListing zfs.Listing `json:"source_listing"`
	TargetListing zfs.Listing `json:"target_listing"`
	Plan          plan.Plan   `json:"plan"`
	// RTT is the round trip between the hosts, 0 = unknown or one host, and
	// Streams the connections that data will take.
	RTT     time.Duration `json:"rtt_ns"`
	Streams int           `json:"streams"`
	// Holds are tags by the full names of the source's snapshots; nil where
	// they were not asked for.
	Holds map[string][]string `json:"holds,omitempty"`
}

// Check is one row of the table. It has one of find and host.
type Check struct {
	ID    string // stable: users name it to --skip-check
	Title string // what holds where the check finds nothing
	Needs string // what it reads
	Docs  string // where to read on: the source or issue behind its threshold

	find func(*Input) []Finding          // of a planned transfer
	host func(*sysinfo.System) []Finding // of one host; Host and ID are filled in
	zfs  bool                            // of a host: of no interest to who copies devices
}

// Checks are all checks, in the order in which they are shown.
func Checks() []Check { return slices.Concat(hostChecks(), transferChecks()) }

// transferChecks are those of a planned send.
//
// Some conditions that doctor tells of are conflicts of package plan too,
// which refuses them by itself.
func transferChecks() []Check {
	return []Check{
		{ID: "pool-health", Title: "Both pools answer, and the target's takes writes", Needs: "the plan and both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zpoolconcepts.7.html", find: poolHealth},
		{ID: Space, Title: "The target has room for what will arrive", Needs: "the plan and both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zfsprops.7.html", find: space},
		{ID: "pool-full", Title: "The target's pool is not nearly full", Needs: "the plan and both listings", Docs: "https://openzfs.github.io/openzfs-docs/Performance%20and%20Tuning/Workload%20Tuning.html", find: poolFull},
		{ID: "permissions", Title: "The users may do what the plan needs", Needs: "the plan and both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-allow.8.html", find: permissions},
		{ID: "keys", Title: "What arrives can be read there without more ado", Needs: "the plan and both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-load-key.8.html", find: keys},
		{ID: "resume", Title: "No receive that was cut off waits on the target", Needs: "zfs get receive_resume_token", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-receive.8.html", find: resume},
		{ID: "keystatus", Title: "Keys are loaded where they are needed", Needs: "zfs get keystatus", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-load-key.8.html", find: keyStatus},
		{ID: "covered", Title: "Nothing is mounted over the target", Needs: "/proc/self/mounts, zfs get mountpoint", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zfsprops.7.html", find: covered},
		{ID: "holds", Title: "No job has left holds on snapshots that nobody needs", Needs: "zfs holds, both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-hold.8.html", find: holds},
		{ID: "features", Title: "The target's pool takes what the source's uses", Needs: "zpool get feature@… of both pools", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zpool-features.7.html", find: features},
		{ID: "zfs-defects", Title: "Both ZFS versions are free of defects that the plan would meet", Needs: "the plan and both listings", Docs: "https://github.com/openzfs/zfs/releases", find: defects},
		{ID: "window", Title: "TCP windows are large enough for the round trip", Needs: "net.ipv4.tcp_rmem, tcp_wmem, the round trip of the control connection", Docs: tcpSource, find: window},
	}
}

// Send evaluates all checks of a send: those of both hosts, where their files
// were read, and those of the plan.
func Send(in Input) []Finding {
	out := []Finding{}
	for _, c := range Checks() {
		if c.host != nil {
			out = append(out, c.serious(&in)...)
			continue
		}
		for _, f := range c.find(&in) {
			f.ID = c.ID
			out = append(out, f)
		}
	}
	return out
}

// Device evaluates the checks that concern the copy of a device: those of both
// hosts but for ZFS's, and of the way between them. Of the Input it takes the
// hosts, RTT and Streams.
func Device(in Input) []Finding {
	out := []Finding{}
	for _, c := range Checks() {
		if c.host != nil && !c.zfs {
			out = append(out, c.serious(&in)...)
		}
	}
	for _, f := range window(&in) {
		f.ID = "window"
		out = append(out, f)
	}
	return out
}

// serious evaluates a check of hosts for a transfer. What is well, or merely
// of interest, is doctor's to tell.
func (c Check) serious(in *Input) []Finding {
	return slices.DeleteFunc(c.onHosts(in), func(f Finding) bool { return f.Severity.Compare(Warn) < 0 })
}

// Doctor evaluates all checks and returns what is well too. skip tells the
// checks to leave out, by id. Without a plan only those of hosts find
// anything.
func Doctor(in Input, skip func(id string) bool) []Finding {
	out := []Finding{}
	for _, c := range Checks() {
		if skip(c.ID) {
			continue
		}
		if c.host != nil {
			out = append(out, c.onHosts(&in)...)
			continue
		}
		found := c.find(&in)
		if len(found) == 0 && in.Plan.Steps() > 0 {
			found = []Finding{{Host: in.Target.Name, Severity: OK, Summary: c.Title}}
		}
		for _, f := range found {
			f.ID = c.ID
			out = append(out, f)
		}
	}
	return out
}

// onHosts evaluates a check of hosts on one or both.
func (c Check) onHosts(in *Input) []Finding {
	var out []Finding
	for i, h := range []Host{in.Source, in.Target} {
		if h.System == nil || i == 1 && h.Name == in.Source.Name {
			continue
		}
		for _, f := range c.host(h.System) {
			f.ID, f.Host = c.ID, h.Name
			out = append(out, f)
		}
	}
	return out
}

// Blocking returns the findings that forbid the transfer, but for those whose
// ids are to be skipped.
func Blocking(findings []Finding, skip []string) []Finding {
	var out []Finding
	for _, f := range findings {
		if f.Severity == Fail && !slices.Contains(skip, f.ID) {
			out = append(out, f)
		}
	}
	return out
}

// Skippable tells whether an id is one that may be passed over: of a check, or of
// the one conflict of a plan that somebody may know better than what is looked at.
func Skippable(id string) bool {
	return id == string(plan.KeyChanged) || slices.ContainsFunc(Checks(), func(c Check) bool { return c.ID == id })
}

func command(argv ...string) string { return zfs.CommandLine(argv) }
