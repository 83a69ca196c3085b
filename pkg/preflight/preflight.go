// Package preflight checks a planned transfer against the facts of both hosts, before anything
// changes. Its nouns:
//
//   - Check: an ID, a title and a function from an Input to findings.
//   - Input: the facts, listings, plan and measurements that checks read.
//   - finding: a result with severity, evidence and remedy (package finding).
//   - Host: one end of a transfer; its System holds facts from files.
//   - Link: a measurement of the network in one direction.
//   - defect: a known defect of an OpenZFS release.
//
// It is pure: it queries and changes nothing. It does not decide whether datasets can be
// transferred; package plan does.
package preflight

import (
	"slices"
	"time"

	"zxfer/pkg/finding"
	"zxfer/pkg/option"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// Space is the ID of the check of the target's space, PathID of the network path.
const (
	Space  = "space"
	PathID = "way"
)

// Host is one end of a transfer.
type Host struct {
	Name string `json:"name"` // for messages
	// At is the host for commands of remedies.
	At     remedy.Host `json:"-"`
	ZFS    string      `json:"zfs"` // kernel module version, "2.3.9-1"; "" = unknown
	Kernel string      `json:"kernel"`
	User   string      `json:"user"` // effective; "" = unknown
	Root   bool        `json:"root"`
	// Permitted holds the permissions of User on the dataset of Input.Grantees; nil = unknown.
	Permitted *zfs.Permitted `json:"permitted,omitempty"`
	// System holds the facts read from the host's files; nil if they were not read.
	System *sysinfo.System `json:"system,omitempty"`
	// NoAgent is why zxfer does not run on the host; "" = it runs.
	NoAgent string `json:"no_agent,omitempty"`
	// Lacking is what zxfer cannot do there then.
	Lacking []string `json:"lacking,omitempty"`
	// UnreadReason is why doctor could not read them.
	UnreadReason string `json:"unseen,omitempty"`
}

// Input is the input of all checks. The plan's steps include estimates.
type Input struct {
	Source        Host        `json:"source"`
	Target        Host        `json:"target"`
	SourceListing zfs.Listing `json:"source_listing"`
	TargetListing zfs.Listing `json:"target_listing"`
	Plan          plan.Plan   `json:"plan"`
	// RTT is the round trip between the hosts, 0 = unknown or one host. Streams is the number
	// of data connections.
	RTT     time.Duration `json:"rtt_ns"`
	Streams int           `json:"streams"`
	// Path is the result of the search for a network path.
	Path transport.PathSearch `json:"-"`
	// Links are the measured links, in order.
	Links []MeasuredLink `json:"-"`
	// Holds maps full names of source snapshots to hold tags; nil if not queried.
	Holds map[string][]string `json:"holds,omitempty"`
}

// Check is one row of the table. It has exactly one of the functions.
type Check struct {
	ID    string // stable: users pass it to --skip-check
	Title string // what is true if the check finds nothing
	Needs string // what it reads
	Docs  string // source or issue that explains the threshold

	find     func(*Input) []finding.Finding          // checks a planned transfer
	host     func(*sysinfo.System) []finding.Finding // checks one host; System is not nil
	access   func(*Host) []finding.Finding           // checks how zxfer reaches a host
	way      func(*Input) []finding.Finding          // checks the network path that was found
	link     func(*MeasuredLink) []finding.Finding   // checks a measured link
	conflict func(id string) bool                    // selects conflicts of the plan
	device   bool                                    // also applies to device copies
}

// Checks returns all checks in display order.
func Checks() []Check {
	return slices.Concat(hostChecks(), transferChecks(), linkChecks(), planChecks())
}

// transferChecks returns the checks of a planned send. Package plan refuses some of these
// conditions itself.
func transferChecks() []Check {
	return []Check{
		{ID: "pool-health", Title: "Both pools respond, and the target's is writable", Needs: "plan, both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zpoolconcepts.7.html", find: poolHealth},
		{ID: Space, Title: "The target has room for the transfer", Needs: "plan, both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zfsprops.7.html", find: space},
		{ID: "clones", Title: "The streams contain no cloned blocks several times", Needs: "plan, zpool get bclonesaved", Docs: "https://github.com/openzfs/zfs/issues/16961", find: clones},
		{ID: "dedup", Title: "The copies of deduplicated datasets are deduplicated, too", Needs: "plan, zpool get dedupratio, zfs get dedup", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-send.8.html", find: deduplicated},
		{ID: "rewritten", Title: "No increment is as large as its dataset", Needs: "plan, both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.4/8/zfs-rewrite.8.html", find: rewritten},
		{ID: "pool-full", Title: "The target's pool is not nearly full", Needs: "plan, both listings", Docs: "https://openzfs.github.io/openzfs-docs/Performance%20and%20Tuning/Workload%20Tuning.html", find: poolFull},
		{ID: "permissions", Title: "The users have the permissions that the plan needs", Needs: "plan, both listings, zfs allow", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-allow.8.html", find: permissions},
		{ID: "keys", Title: "The copies can be read on the target", Needs: "plan, both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-load-key.8.html", find: keys},
		{ID: "resume", Title: "No interrupted receive is pending on the target", Needs: "zfs get receive_resume_token", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-receive.8.html", find: resume},
		{ID: "keystatus", Title: "All required keys are loaded", Needs: "zfs get keystatus", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-load-key.8.html", find: keyStatus},
		{ID: "covered", Title: "No other file system is mounted over the target", Needs: "/proc/self/mounts, zfs get mountpoint", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zfsprops.7.html", find: mountedOver},
		{ID: "holds", Title: "No job left stale holds", Needs: "zfs holds, both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-hold.8.html", find: holds},
		{ID: "features", Title: "The target's pool supports the source pool's features", Needs: "zpool get feature@… of both pools", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/7/zpool-features.7.html", find: features},
		{ID: "zfs-defects", Title: "No known defect of the ZFS versions affects the plan", Needs: "plan, both listings", Docs: "https://github.com/openzfs/zfs/releases", find: defects},
		{ID: "direction", Title: "Block sizes were compared after each change of roles", Needs: "plan, both listings", Docs: "https://github.com/openzfs/zfs/pull/18663", find: direction},
		{ID: "window", Title: "TCP windows are large enough for the round-trip time", Needs: "net.ipv4.tcp_rmem, tcp_wmem, round-trip time of the control connection", Docs: tcpSource, find: window, device: true},
	}
}

// linkChecks returns the checks of the network path and of measured links.
func linkChecks() []Check {
	return []Check{
		{ID: PathID, Title: "Data reaches the listening host", Needs: "a test connection to the data port", Docs: "https://www.netfilter.org/documentation/HOWTO/packet-filtering-HOWTO.html", way: checkPath, device: true},
		{ID: "link", Title: "The network is as fast as the hosts", Needs: "TCP_INFO of a measured link", Docs: tcpInfoSource, link: checkRate, device: true},
		{ID: "mtu", Title: "Packets of the interfaces' MTU pass unfragmented", Needs: "TCP_INFO of a measured link, MTU of the interfaces", Docs: tcpInfoSource, link: checkMTU, device: true},
	}
}

// planChecks returns the conflicts of a plan as checks of doctor. A send reports them itself.
func planChecks() []Check {
	return []Check{
		{ID: plan.KeyChanged, Title: "The copy's encryption root still has the source's key", Needs: "zfs get encryptionroot,keyformat,pbkdf2salt", Docs: "https://github.com/openzfs/zfs/issues/12614",
			conflict: func(id string) bool { return id == plan.KeyChanged }},
		{ID: planCheck, Title: "A transfer from the source to the target can be planned", Needs: "both listings", Docs: "https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-send.8.html",
			conflict: func(id string) bool { return id != plan.KeyChanged }},
	}
}

// planCheck is the check that cannot be skipped.
const planCheck = "plan"

// Send evaluates the checks of a send. It omits findings that only doctor reports.
func Send(in Input) []finding.Finding {
	return filterSeverity(&in, slices.Concat(hostChecks(), transferChecks(), linkChecks()))
}

// Device evaluates the checks that apply to device copies: of both hosts without ZFS, and of
// the network. It uses the hosts, RTT, Streams and Links of the Input.
func Device(in Input) []finding.Finding {
	return filterSeverity(&in, slices.DeleteFunc(Checks(), func(c Check) bool { return !c.device }))
}

func filterSeverity(in *Input, checks []Check) []finding.Finding {
	out := []finding.Finding{}
	for _, c := range checks {
		least := finding.Note
		if c.host != nil || c.access != nil {
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

// Doctor evaluates all checks and also returns passed ones. skip reports whether to skip a
// check by ID. Without a plan or a measured link, only host checks find anything.
func Doctor(in Input, skip func(id string) bool) []finding.Finding {
	out := []finding.Finding{}
	for _, c := range Checks() {
		if skip(c.ID) {
			continue
		}
		found := c.evaluate(&in)
		if c.find != nil && len(found) == 0 && in.Plan.Steps() > 0 {
			found = findings(finding.Finding{ID: c.ID, Host: in.Target.Name, Severity: finding.OK, Summary: c.Title})
		}
		out = append(out, found...)
	}
	return out
}

// evaluate returns the findings of a check.
func (c Check) evaluate(in *Input) []finding.Finding {
	var out []finding.Finding
	switch {
	case c.find != nil:
		out = c.find(in)
	case c.host != nil || c.access != nil:
		out = c.evaluateHosts(in)
	case c.way != nil && in.Path.Path != "":
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
		at := in.Target.At
		if out[i].Host == in.Source.Name {
			at = in.Source.At
		}
		out[i].Remedy = at.Commands(out[i].Remedy)
	}
	return out
}

// evaluateHosts applies a host check to one or both hosts.
func (c Check) evaluateHosts(in *Input) []finding.Finding {
	var out []finding.Finding
	for i, h := range []Host{in.Source, in.Target} {
		var found []finding.Finding
		switch {
		case i == 1 && h.Name == in.Source.Name:
		case c.access != nil:
			found = c.access(&h)
		case h.System != nil:
			found = c.host(h.System)
		case h.UnreadReason != "":
			found = findings(finding.Finding{Severity: finding.Note, Unchecked: true, Summary: "not checked: " + h.UnreadReason})
		}
		for _, f := range found {
			f.Host = h.Name
			out = append(out, f)
		}
	}
	return out
}

// Blocking returns the findings that prevent the transfer, except those with IDs in skip. Each
// remedy says how to skip the check.
func Blocking(findings []finding.Finding, skip []string) []finding.Finding {
	var out []finding.Finding
	for _, f := range finding.Failed(findings) {
		if slices.Contains(skip, f.ID) {
			continue
		}
		if f.Remedy != "" {
			f.Remedy += "\n"
		}
		f.Remedy += option.Name("skip-check", f.ID) + " skips this check"
		out = append(out, f)
	}
	return out
}

// Measured reports whether the check needs a measurement.
func (c Check) Measured() bool { return c.link != nil || c.way != nil }

// Skippable reports whether id is that of a check that may be skipped.
func Skippable(id string) bool {
	return id != planCheck && slices.ContainsFunc(Checks(), func(c Check) bool { return c.ID == id })
}

// command returns a command of a remedy, which acts on the host of its finding.
func command(argv ...string) string { return remedy.Mark(remedy.Command(argv...)) }
