package forecast

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
)

// Advice names the most useful change.
type Advice struct {
	ID     string `json:"id,omitempty"` // of the finding it rests on
	Host   string `json:"host,omitempty"`
	Remedy string `json:"remedy,omitempty"` // empty if nothing needs to change
	Why    string `json:"why"`
}

// Adviser derives advice from the findings and the bottleneck. It considers only findings that
// affect the bottleneck: a slow checksum does not slow down a transfer that waits for disks.
type Adviser struct {
	Findings []finding.Finding
	Ceilings []probe.Ceiling
	Expected *Expected
	Machines Machines
	Pools    map[string]string // pools of the transfer, by host
	// Transport holds the requested transport settings. Encrypted means that the source's data is
	// encrypted.
	Transport transport.Settings
	Encrypted bool
	Decrypt   bool
	Hidden    bool // a restricted key hid measurements of the link
}

// Advice returns the most useful change.
func (a *Adviser) Advice() *Advice {
	advice := a.forLimit()
	if a.Expected.TooShort() && advice.ID == "" {
		return &Advice{Why: "for so little data"}
	}
	if a.Hidden && advice.Remedy == "" {
		return &Advice{Remedy: "to measure the whole path, use an unrestricted key", Why: "the key does not permit it"}
	}
	return advice
}

// forLimit returns the advice for the measured bottleneck.
func (a *Adviser) forLimit() *Advice {
	if f := a.worst(finding.Fail, notPipelineOnly); f != nil {
		return f
	}
	e := a.Expected
	if e == nil {
		return cmp.Or(a.worst(finding.Warn, notPipelineOnly), &Advice{Why: "no check failed"})
	}
	switch limit, closed := e.LimitedBy, a.worst(finding.Warn, checksOn("", preflight.PathID)); {
	case closed != nil && !slices.Contains([]string{transfer.LimitBandwidth, transfer.LimitSource, transfer.LimitTarget}, limit):
		return closed // ssh uses CPU on both ends only because no direct path is open
	case limit == transfer.LimitBandwidth:
		return &Advice{Remedy: "to go faster, raise {{bwlimit}}", Why: "the limit was requested"}
	case limit == transfer.LimitSenderCPU, limit == transfer.LimitReceiverCPU:
		return a.processors(e.Ceiling == "")
	case e.Ceiling == Link:
		return a.network()
	case e.Ceiling == probe.LoopbackTLS:
		return cmp.Or(a.worst(finding.Warn, notPipelineOnly), &Advice{Why: "only the local host was checked; name a TARGET"})
	case limit == transfer.LimitSource, limit == transfer.LimitTarget:
		if i := slices.IndexFunc(a.Ceilings, e.IsLimit); i >= 0 {
			return a.storage(a.Ceilings[i])
		}
	}
	return &Advice{Why: "limited by the " + e.LimitedBy}
}

// network returns the advice for a bottleneck in the link.
func (a *Adviser) network() *Advice {
	why := "limited by the link"
	if a.Transport.Wire == transport.NC {
		why = "{{wire nc}} gives no more detail"
	}
	return cmp.Or(
		a.port(),
		a.worst(finding.Warn, checksOn(a.Expected.Host, "link")),
		a.worst(finding.Warn, checksOn("", "tcp-scaling", "nic")),
		a.saturated(),
		&Advice{Why: why})
}

// processors returns the advice for a CPU bottleneck. If all is true, every part of the transfer
// shares the CPUs; otherwise only the link is limited.
func (a *Adviser) processors(all bool) *Advice {
	host := a.Expected.Host
	bearing := []string{}
	link := []string{"link"} // more CPUs allow more streams
	port := a.port()
	if all {
		bearing, link, port = a.kernel(), nil, nil
	}
	why := "limited by the processors of " + host
	if m := a.Machines[host]; m != nil && m.CPUs > 0 {
		why = fmt.Sprintf("limited by the capacity of %.0f processors of %s", m.CPUs, host)
		if m.CPUs == 1 {
			why = "limited by the capacity of the only processor of " + host
		}
	}
	return cmp.Or(
		a.signedRaw(),
		port,
		a.worst(finding.Warn, checksOn("", link...)),
		a.otherLoad(host),
		a.worst(finding.Warn, checksOn(host, bearing...)),
		a.worst(finding.Note, checksOn(host, "governor")),
		&Advice{Why: why})
}

// busyThread is the CPU use from which a single thread counts as the bottleneck.
const busyThread = 0.7

// storage returns the advice for a bottleneck in reading the source or writing the target: disks,
// or one computing ZFS thread.
func (a *Adviser) storage(c probe.Ceiling) *Advice {
	if c.ID == probe.PathRead || c.ID == probe.PathWrite {
		return &Advice{Why: "limited by the disks or the network file system at the path"}
	}
	other := 0.0
	if m := a.Machines[c.Host]; m != nil {
		other = m.OtherLoad
	}
	if c.CPU-other >= busyThread && c.IOWait < busyThread {
		return cmp.Or(
			a.otherLoad(c.Host),
			a.worst(finding.Warn, checksOn(c.Host, a.kernel()...)),
			a.worst(finding.Note, checksOn(c.Host, "governor")),
			&Advice{Why: "limited by ZFS on one processor core of " + c.Host})
	}
	pool := a.Pools[c.Host]
	its := func(f finding.Finding) bool {
		return checksOn(c.Host, "pools", "pool-health", "pool-full")(f) && strings.Contains(f.Summary+" ", "pool "+pool+" ")
	}
	return cmp.Or(a.worst(finding.Warn, its), &Advice{Why: "limited by the disks of pool " + pool + " on " + c.Host})
}

// kernel returns the IDs of the checks on computation inside ZFS.
func (a *Adviser) kernel() []string {
	ids := []string{"fpu", "fletcher"}
	if a.Decrypt {
		ids = append(ids, "aes", "gcm")
	}
	return ids
}

// signedRaw advises to send encrypted data raw: signing each frame costs less CPU than encrypting
// it again.
func (a *Adviser) signedRaw() *Advice {
	switch {
	case !a.Encrypted:
		return nil
	case a.Decrypt:
		return &Advice{Remedy: "omit {{decrypt}}", Why: "zxfer then sends encrypted data raw and signed, which needs less CPU than TLS"}
	case a.Transport.Wire == string(tcp.TLS):
		return &Advice{Remedy: "omit {{wire tls}}", Why: "zxfer then signs raw streams of encrypted data, which needs less CPU than TLS"}
	}
	return nil
}

// port advises to open a port instead of using ssh.
func (a *Adviser) port() *Advice {
	if a.Transport.Wire != transport.SSH {
		return nil
	}
	return &Advice{Remedy: "if a port can be opened, omit {{wire ssh}}", Why: "ssh uses one processor core on each host"}
}

// saturated advises to stop other load if a host has almost no free CPU: then any part may wait
// for it.
func (a *Adviser) saturated() *Advice {
	for _, host := range slices.Sorted(maps.Keys(a.Machines)) {
		if m := a.Machines[host]; m.CPUs > 0 && m.CPUs-m.OtherLoad < leastFree {
			return a.otherLoad(host)
		}
	}
	return nil
}

// otherLoad advises to stop other load on a host, nil if there is little.
func (a *Adviser) otherLoad(host string) *Advice {
	m := a.Machines[host]
	if m == nil || m.OtherLoad < 0.5 || m.OtherLoad < m.CPUs/4 {
		return nil
	}
	return &Advice{Host: host, Remedy: "stop other programs there, or wait until they end", Why: fmt.Sprintf("%.1f of %.0f processors are busy with other programs", m.OtherLoad, m.CPUs)}
}

// worst returns advice from the most serious finding that is at least as severe as least and
// satisfies bears, or nil.
func (a *Adviser) worst(least finding.Severity, bears func(finding.Finding) bool) *Advice {
	var most *finding.Finding
	for i, f := range a.Findings {
		if bears(f) && f.Severity.Compare(least) >= 0 && (most == nil || f.Severity.Compare(most.Severity) > 0) {
			most = &a.Findings[i]
		}
	}
	if most == nil {
		return nil
	}
	return &Advice{ID: most.ID, Host: most.Host, Remedy: cmp.Or(most.Remedy, most.Summary), Why: most.Summary}
}

// notPipelineOnly excludes findings that matter only to pipelines typed by hand.
func notPipelineOnly(f finding.Finding) bool { return f.ID != "netcat" }

// checksOn matches findings of the given checks on a host; "" matches any host.
func checksOn(host string, ids ...string) func(finding.Finding) bool {
	return func(f finding.Finding) bool { return (host == "" || f.Host == host) && slices.Contains(ids, f.ID) }
}
