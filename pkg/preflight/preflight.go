// Package preflight checks a planned transfer against what is known of both
// hosts, before anything is changed. Checks are a table: an id, a title, and
// a function from facts to findings with evidence and remedy.
//
// It is pure: it looks at nothing by itself, and changes nothing. What a plan
// cannot do at all package plan finds by itself.
package preflight

import (
	"slices"
	"time"

	"zxfer/pkg/finding"
	"zxfer/pkg/option"
	"zxfer/pkg/plan"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// Space is the id of the check of the target's room, WayID that of the way there.
const (
	Space = "space"
	WayID = "way"
)

// Unlooked begins the summary of a check that a host's policy forbids.
const Unlooked = "not looked at: "

// Host is one end, as far as checks need it.
type Host struct {
	Name   string `json:"name"` // as messages name it
	ZFS    string `json:"zfs"`  // kernel module version, "2.3.9-1"; "" = unknown
	Kernel string `json:"kernel"`
	User   string `json:"user"` // effective; "" = unknown
	Root   bool   `json:"root"`
	// System is what the host's files tell; nil where they were not read.
	System *sysinfo.System `json:"system,omitempty"`
	// Unseen is why a doctor could not read them.
	Unseen string `json:"unseen,omitempty"`
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
	// Way is how it went to find a way between the hosts that passes.
	Way transport.PathSearch `json:"-"`
	// Links are what was measured of the network, in order.
	Links []Measured `json:"-"`
	// Holds are tags by the full names of the source's snapshots; nil where
	// they were not asked for.
	Holds map[string][]string `json:"holds,omitempty"`
}

// Check is one row of the table. It has one of the functions.
type Check struct {
	ID    string // stable: users name it to --skip-check
	Title string // what holds where the check finds nothing
	Needs string // what it reads
	Docs  string // where to read on: the source or issue behind its threshold

	find     func(*Input) []finding.Finding          // of a planned transfer
	host     func(*sysinfo.System) []finding.Finding // of one host, which is filled in
	way      func(*Input) []finding.Finding          // of the way that was looked for
	link     func(*Measured) []finding.Finding       // of a measured link
	conflict func(id string) bool                    // which conflicts of the plan it tells
	device   bool                                    // concerns who copies devices too
}

// Checks are all checks, in the order in which they are shown.
func Checks() []Check {
	return slices.Concat(hostChecks(), transferChecks(), linkChecks(), planChecks())
}

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
		{ID: "window", Title: "TCP windows are large enough for the round trip", Needs: "net.ipv4.tcp_rmem, tcp_wmem, the round trip of the control connection", Docs: tcpSource, find: window, device: true},
	}
}

// linkChecks are those of a link that was tried, or measured.
func linkChecks() []Check {
	return []Check{
		{ID: WayID, Title: "Data passes from the host that connects to the one that listens", Needs: "a connection to the data port, made and closed", Docs: "https://www.netfilter.org/documentation/HOWTO/packet-filtering-HOWTO.html", way: passes, device: true},
		{ID: "link", Title: "The network carries what the hosts could move", Needs: "TCP_INFO of a measured link", Docs: tcpInfoSource, link: carries, device: true},
		{ID: "mtu", Title: "Packets of the interfaces' size pass unfragmented", Needs: "TCP_INFO of a measured link, the interfaces' MTU", Docs: tcpInfoSource, link: mtu, device: true},
	}
}

// planChecks are the conflicts of a plan, as doctor tells them. A send shows
// these by themselves.
func planChecks() []Check {
	return []Check{
		{ID: plan.KeyChanged, Title: "The copy's encryption root is still one whose key the source's is", Needs: "zfs get encryptionroot,keyformat,pbkdf2salt", Docs: "https://github.com/openzfs/zfs/issues/12614",
			conflict: func(id string) bool { return id == plan.KeyChanged }},
		{ID: noWay, Title: "A way from the source's state to the target's exists", Needs: "both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-send.8.html",
			conflict: func(id string) bool { return id != plan.KeyChanged }},
	}
}

// noWay is the check that nobody may pass over.
const noWay = "plan"

// evaluate is what a check finds.
func (c Check) evaluate(in *Input) []finding.Finding {
	var out []finding.Finding
	switch {
	case c.find != nil:
		out = c.find(in)
	case c.host != nil:
		out = c.onHosts(in)
	case c.way != nil && in.Way.Path != "":
		out = c.way(in)
	case c.link != nil:
		for i := range in.Links {
			out = append(out, c.link(&in.Links[i])...)
		}
	case c.conflict != nil:
		for _, f := range in.Plan.Conflicts {
			if c.conflict(f.ID) {
				f.Host, f.Evidence = in.Target.Name, "both listings"
				out = append(out, f)
			}
		}
	}
	for i := range out {
		out[i].ID = c.ID
	}
	return out
}

// onHosts evaluates a check of hosts on one or both.
func (c Check) onHosts(in *Input) []finding.Finding {
	var out []finding.Finding
	for i, h := range []Host{in.Source, in.Target} {
		var found []finding.Finding
		switch {
		case i == 1 && h.Name == in.Source.Name:
		case h.System != nil:
			found = c.host(h.System)
		case h.Unseen != "":
			found = one(finding.Finding{Severity: finding.Note, Summary: Unlooked + h.Unseen})
		}
		for _, f := range found {
			f.Host = h.Name
			out = append(out, f)
		}
	}
	return out
}

// Send evaluates the checks of a send. What is well, or of a host merely of
// interest, is doctor's to tell.
func Send(in Input) []finding.Finding {
	return serious(&in, slices.Concat(hostChecks(), transferChecks(), linkChecks()))
}

// Device evaluates the checks that concern the copy of a device: those of both
// hosts but for ZFS's, and of the way between them. Of the Input it takes the
// hosts, RTT, Streams and Links.
func Device(in Input) []finding.Finding {
	return serious(&in, slices.DeleteFunc(Checks(), func(c Check) bool { return !c.device }))
}

func serious(in *Input, checks []Check) []finding.Finding {
	out := []finding.Finding{}
	for _, c := range checks {
		least := finding.Note
		if c.host != nil {
			least = finding.Warn
		}
		for _, f := range c.evaluate(in) {
			if f.Severity.Compare(least) >= 0 {
				out = append(out, f)
			}
		}
	}
	return out
}

// Doctor evaluates all checks and returns what is well too. skip tells the
// checks to leave out, by id. Without a plan or a measured link only those of
// hosts find anything.
func Doctor(in Input, skip func(id string) bool) []finding.Finding {
	out := []finding.Finding{}
	for _, c := range Checks() {
		if skip(c.ID) {
			continue
		}
		found := c.evaluate(&in)
		if c.find != nil && len(found) == 0 && in.Plan.Steps() > 0 {
			found = one(finding.Finding{ID: c.ID, Host: in.Target.Name, Severity: finding.OK, Summary: c.Title})
		}
		out = append(out, found...)
	}
	return out
}

// Blocking returns the findings that forbid the transfer, but for those whose
// ids are to be skipped, and says how to skip the others.
func Blocking(findings []finding.Finding, skip []string) []finding.Finding {
	var out []finding.Finding
	for _, f := range finding.Failed(findings) {
		if slices.Contains(skip, f.ID) {
			continue
		}
		if f.Remedy != "" {
			f.Remedy += "\n"
		}
		f.Remedy += option.Name("skip-check", f.ID) + " passes over this check"
		out = append(out, f)
	}
	return out
}

// Measured tells that the check judges a measurement.
func (c Check) Measured() bool { return c.link != nil || c.way != nil }

// Skippable tells whether an id is of a check that may be passed over.
func Skippable(id string) bool {
	return id != noWay && slices.ContainsFunc(Checks(), func(c Check) bool { return c.ID == id })
}

func command(argv ...string) string { return zfs.CommandLine(argv) }
