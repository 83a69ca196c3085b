package job

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Advice is the one thing to change.
type Advice struct {
	ID     string `json:"id,omitempty"`     // of the finding that it rests on
	Host   string `json:"host,omitempty"`   // where
	Remedy string `json:"remedy,omitempty"` // missing where nothing is to be changed
	Why    string `json:"why"`
}

// adviser makes the advice of what was found and what limits the transfer. A
// finding counts where it bears on that limit: a slow checksum does not slow
// down what waits for disks.
type adviser struct {
	found    []finding.Finding
	ceilings []probe.Ceiling
	expected *Expected
	machines machines
	pools    map[string]string // of the transfer, by host
	// way is what was asked for, sealable that the source's data is encrypted.
	way      transport.Settings
	sealable bool
	decrypt  bool
	hidden   bool // a restricted key hides parts of the way
}

func (d *doctor) advise() *Advice {
	a := &adviser{found: d.report.Findings, ceilings: d.report.Ceilings, expected: d.report.Expected, machines: d.machines,
		way: d.req.Send.Settings, decrypt: d.req.Send.Plan.Decrypt, pools: map[string]string{}}
	for _, s := range d.state.Source.Datasets {
		a.sealable = a.sealable || s.Encrypted()
	}
	if len(d.planned.Datasets) > 0 {
		a.pools[d.source.Label()] = zfs.PoolOf(d.planned.Datasets[0].Source)
		a.pools[d.target.Label()] = zfs.PoolOf(d.planned.Datasets[0].Target)
	}
	for _, g := range d.report.Grants {
		a.hidden = a.hidden || slices.Contains(g.Unseen, linkOut)
	}
	return a.advice()
}

func (a *adviser) advice() *Advice {
	said := a.ofLimit()
	if a.expected.Brief() && said.ID == "" {
		return &Advice{Why: "so little is there at once"}
	}
	if a.hidden && said.Remedy == "" {
		return &Advice{Remedy: "use a key that is not restricted, to measure all of the way", Why: "this one does not allow it"}
	}
	return said
}

// ofLimit is the advice for what was measured.
func (a *adviser) ofLimit() *Advice {
	if f := a.worst(finding.Fail, anywhere); f != nil {
		return f
	}
	e := a.expected
	if e == nil {
		return cmp.Or(a.worst(finding.Warn, anywhere), &Advice{Why: "no check found a fault"})
	}
	switch limit, closed := e.LimitedBy, a.worst(finding.Warn, of("", preflight.WayID)); {
	case closed != nil && !slices.Contains([]string{transfer.LimitBandwidth, transfer.LimitSource, transfer.LimitTarget}, limit):
		return closed // what ssh takes of both ends, too, is for want of a way
	case limit == transfer.LimitBandwidth:
		return &Advice{Remedy: "raise {{bwlimit}}, if more is wanted", Why: "it was asked for"}
	case limit == transfer.LimitSenderCPU, limit == transfer.LimitReceiverCPU:
		return a.processors(e.Ceiling == "")
	case e.Ceiling == linkOut:
		return a.network()
	case e.Ceiling == probe.LoopbackTLS:
		return cmp.Or(a.worst(finding.Warn, anywhere), &Advice{Why: "this host alone was looked at; name a TARGET"})
	case limit == transfer.LimitSource, limit == transfer.LimitTarget:
		if i := slices.IndexFunc(a.ceilings, e.Names); i >= 0 {
			return a.storage(a.ceilings[i])
		}
	}
	return &Advice{Why: "it is the " + e.LimitedBy}
}

// worst is the most serious finding, at least of a severity, of those that
// bears tells of; nil where there is none.
func (a *adviser) worst(least finding.Severity, bears func(finding.Finding) bool) *Advice {
	var most *finding.Finding
	for i, f := range a.found {
		if bears(f) && f.Severity.Compare(least) >= 0 && (most == nil || f.Severity.Compare(most.Severity) > 0) {
			most = &a.found[i]
		}
	}
	if most == nil {
		return nil
	}
	return &Advice{ID: most.ID, Host: most.Host, Remedy: cmp.Or(most.Remedy, most.Summary), Why: most.Summary}
}

// anywhere leaves out what matters to pipelines by hand only.
func anywhere(f finding.Finding) bool { return f.ID != "netcat" }

// of are the findings of some checks on a host, "" for any.
func of(host string, ids ...string) func(finding.Finding) bool {
	return func(f finding.Finding) bool { return (host == "" || f.Host == host) && slices.Contains(ids, f.ID) }
}

// network is the advice where the link limits.
func (a *adviser) network() *Advice {
	why := "it is the link"
	if a.way.Wire == transport.NC {
		why = "{{wire nc}} does not tell more"
	}
	return cmp.Or(
		a.port(),
		a.worst(finding.Warn, of(a.expected.Host, "link")),
		a.worst(finding.Warn, of("", "tcp-scaling", "nic")),
		a.crowded(),
		&Advice{Why: why})
}

// processors is the advice where a host's processors limit: the link alone, or
// all parts of the transfer that share them.
func (a *adviser) processors(all bool) *Advice {
	host := a.expected.Host
	bearing := []string{}
	link := []string{"link"} // which may have more streams for more processors
	port := a.port()
	if all {
		bearing, link, port = a.kernel(), nil, nil
	}
	why := "it is the processors of " + host
	if m := a.machines[host]; m != nil && m.cpus > 0 {
		why = fmt.Sprintf("it is what %.0f processors of %s do", m.cpus, host)
		if m.cpus == 1 {
			why = "it is what the one processor of " + host + " does"
		}
	}
	return cmp.Or(
		a.signed(),
		port,
		a.worst(finding.Warn, of("", link...)),
		a.others(host),
		a.worst(finding.Warn, of(host, bearing...)),
		a.worst(finding.Note, of(host, "governor")),
		&Advice{Why: why})
}

// kernel are the checks of what ZFS computes.
func (a *adviser) kernel() []string {
	ids := []string{"fpu", "fletcher"}
	if a.decrypt { // raw streams are not decrypted
		ids = append(ids, "aes", "gcm")
	}
	return ids
}

// signed is the advice to let encrypted data go as it is: a tag on every frame
// costs less than to encrypt it once more.
func (a *adviser) signed() *Advice {
	switch {
	case !a.sealable:
		return nil
	case a.decrypt:
		return &Advice{Remedy: "leave {{decrypt}} out", Why: "encrypted data goes raw and signed then, which costs processors less than TLS"}
	case a.way.Wire == string(tcp.TLS):
		return &Advice{Remedy: "leave {{wire tls}} out", Why: "raw streams of encrypted data go signed then, which costs processors less than TLS"}
	}
	return nil
}

// port is the advice to let data take a port of its own.
func (a *adviser) port() *Advice {
	if a.way.Wire != transport.SSH {
		return nil
	}
	return &Advice{Remedy: "leave {{wire ssh}} out, where a port can be opened", Why: "ssh moves it all by one processor at each end"}
}

// crowded is that advice where a host has next to nothing free: any part waits for
// a processor there then.
func (a *adviser) crowded() *Advice {
	for _, host := range slices.Sorted(maps.Keys(a.machines)) {
		if m := a.machines[host]; m.cpus > 0 && m.cpus-m.other < leastFree {
			return a.others(host)
		}
	}
	return nil
}

// others is the advice to end what else runs on a host.
func (a *adviser) others(host string) *Advice {
	m := a.machines[host]
	if m == nil || m.other < 0.5 || m.other < m.cpus/4 {
		return nil
	}
	return &Advice{Host: host, Remedy: "end what else runs there, or wait for it", Why: fmt.Sprintf("%.1f of %.0f processors are busy with other things", m.other, m.cpus)}
}

// aThread is how busy a processor is that limits what runs on it alone.
const aThread = 0.7

// storage is the advice where reading the source or writing the target limits:
// by disks, or by one thread of ZFS that computes.
func (a *adviser) storage(c probe.Ceiling) *Advice {
	if c.ID == probe.PathRead || c.ID == probe.PathWrite {
		return &Advice{Why: "it is the disks or the share at the path"}
	}
	other := 0.0
	if m := a.machines[c.Host]; m != nil {
		other = m.other
	}
	if c.CPU-other >= aThread && c.IOWait < aThread {
		return cmp.Or(
			a.others(c.Host),
			a.worst(finding.Warn, of(c.Host, a.kernel()...)),
			a.worst(finding.Note, of(c.Host, "governor")),
			&Advice{Why: "it is ZFS on a processor of " + c.Host})
	}
	pool := a.pools[c.Host]
	its := func(f finding.Finding) bool {
		return of(c.Host, "pools", "pool-health", "pool-full")(f) && strings.Contains(f.Summary+" ", "pool "+pool+" ")
	}
	return cmp.Or(a.worst(finding.Warn, its), &Advice{Why: "it is the disks of pool " + pool + " on " + c.Host})
}
