package job

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/finding"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
)

// The advice follows the bottleneck and ignores unrelated findings.
func TestAdvice(t *testing.T) {
	t.Parallel()
	warn := func(id, host string) finding.Finding {
		return finding.Finding{ID: id, Host: host, Severity: finding.Warn, Summary: "pool vault is at fault", Remedy: "mend " + id}
	}
	limit := func(by, host, ceiling string) *Expected {
		return &Expected{BytesPerSecond: 1e8, LimitedBy: by, Host: host, Ceiling: ceiling}
	}
	part := func(id string, cpu, disks float64) []probe.Ceiling {
		return []probe.Ceiling{{ID: id, Host: "beta", BytesPerSecond: 1e8, CPU: cpu, IOWait: disks}}
	}
	network, target := limit(transfer.LimitNetwork, "local", linkOut), limit(transfer.LimitTarget, "beta", probe.TargetWrite)
	sender := limit(transfer.LimitSenderCPU, "local", linkOut)
	all := limit(transfer.LimitSenderCPU, "local", "")
	idle := machines{"local": {cpus: 1}, "beta": {cpus: 8}}
	for name, c := range map[string]struct {
		adviser
		remedy, why string
	}{
		"what fails comes first":        {adviser{expected: network, found: []finding.Finding{warn("link", "local"), {ID: "space", Severity: finding.Fail, Host: "beta", Remedy: "make room"}}}, "make room", ""},
		"nothing measured":              {adviser{found: []finding.Finding{warn("nic", "beta")}}, "mend nic", "pool vault is at fault"},
		"nothing found":                 {adviser{found: []finding.Finding{warn("netcat", "beta")}}, "", "no check found a fault"},
		"a full link":                   {adviser{expected: network, found: []finding.Finding{warn("fletcher", "local")}}, "", "it is the link"},
		"a link held back":              {adviser{expected: network, found: []finding.Finding{warn("fletcher", "local"), warn("link", "local")}}, "mend link", ""},
		"only the way back":             {adviser{expected: network, found: []finding.Finding{warn("link", "beta")}}, "", "it is the link"},
		"a bad interface":               {adviser{expected: network, found: []finding.Finding{warn("nic", "beta")}}, "mend nic", ""},
		"a link in a crowd":             {adviser{expected: network, machines: machines{"local": {cpus: 2}, "beta": {cpus: 2, otherLoad: 1.9}}}, "end what else runs there, or wait for it", ""},
		"processors, not window":        {adviser{expected: all, machines: idle, found: []finding.Finding{warn("link", "local")}}, "", "it is what the one processor of local does"},
		"a limit asked for":             {adviser{expected: limit(transfer.LimitBandwidth, "", "")}, "raise {{bwlimit}}, if more is wanted", ""},
		"processors of the link":        {adviser{expected: sender, machines: idle, found: []finding.Finding{warn("fletcher", "local")}}, "", "it is what the one processor of local does"},
		"processors of all":             {adviser{expected: all, machines: idle, found: []finding.Finding{warn("fletcher", "local")}}, "mend fletcher", ""},
		"more streams":                  {adviser{expected: sender, found: []finding.Finding{warn("link", "local")}}, "mend link", ""},
		"a busy machine":                {adviser{expected: all, machines: machines{"local": {cpus: 2, otherLoad: 1}}}, "end what else runs there, or wait for it", "1.0 of 2 processors are busy with other things"},
		"tls by hand":                   {adviser{expected: sender, sealable: true, way: transport.Settings{Wire: "tls"}}, "leave {{wire tls}} out", ""},
		"tls by decryption":             {adviser{expected: all, sealable: true, decrypt: true}, "leave {{decrypt}} out", ""},
		"tls of open data":              {adviser{expected: sender, machines: idle, way: transport.Settings{Wire: "tls"}}, "", "it is what the one processor of local does"},
		"disks":                         {adviser{expected: target, ceilings: part(probe.TargetWrite, 1, 2), pools: map[string]string{"beta": "tank"}, found: []finding.Finding{warn("fletcher", "beta"), warn("pools", "beta")}}, "", "it is the disks of pool tank on beta"},
		"a pool at fault":               {adviser{expected: target, ceilings: part(probe.TargetWrite, 0.2, 0), pools: map[string]string{"beta": "vault"}, found: []finding.Finding{warn("fletcher", "beta"), warn("pools", "beta")}}, "mend pools", ""},
		"slow checksums":                {adviser{expected: target, machines: idle, ceilings: part(probe.TargetWrite, 1.1, 0), found: []finding.Finding{warn("fletcher", "beta"), warn("aes", "beta")}}, "mend fletcher", ""},
		"another host's":                {adviser{expected: target, machines: idle, ceilings: part(probe.TargetWrite, 1.1, 0), found: []finding.Finding{warn("fletcher", "local")}}, "", "it is ZFS on a processor of beta"},
		"a share":                       {adviser{expected: limit(transfer.LimitTarget, "beta", probe.PathWrite), ceilings: part(probe.PathWrite, 1.1, 0)}, "", "it is the disks or the share at the path"},
		"this host alone":               {adviser{expected: limit(probe.LoopbackTLS, "local", probe.LoopbackTLS)}, "", "this host alone was looked at; name a TARGET"},
		"behind a restricted key":       {adviser{expected: limit(transfer.LimitSource, "local", probe.PathRead), ceilings: part(probe.PathRead, 1, 0), hidden: true}, "use a key that is not restricted, to measure all of the way", "this one does not allow it"},
		"a stream that is over at once": {adviser{expected: &Expected{BytesPerSecond: 1e6, LimitedBy: transfer.LimitSource, Bytes: 1000, Seconds: 0.001}}, "", "so little is there at once"},
		"ssh by hand":                   {adviser{expected: limit("ssh or network", "local", linkOut), way: transport.Settings{Wire: "ssh"}}, "leave {{wire ssh}} out, where a port can be opened", ""},
		"only ssh":                      {adviser{expected: sender, machines: idle, found: []finding.Finding{warn(preflight.WayID, "beta")}}, "mend way", ""},
		"what nobody tells":             {adviser{expected: limit("network or target", "local", linkOut), way: transport.Settings{Wire: "nc"}}, "", "{{wire nc}} does not tell more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.advice()
			require.NotNil(t, got)
			require.Equal(t, c.remedy, got.Remedy)
			if c.why != "" {
				require.Equal(t, c.why, got.Why)
			}
		})
	}
}

// A pool has known copies if a job names it on that host as source or as copy.
func TestPoolsThatCopiesAreKnownOf(t *testing.T) {
	t.Parallel()
	d := Doctor{Copies: []Copy{{Source: endpoint.Endpoint{Name: "tank/home"}, Target: endpoint.Endpoint{Host: "backup1", Name: "vault/home"}}}}
	for host, want := range map[string][]string{"": {"tank", "", ""}, "backup1": {"", "backup1:vault", ""}, "backup2": {"", "", ""}} {
		pools := []sysinfo.Pool{{Name: "tank"}, {Name: "vault"}, {Name: "other"}}
		d.markKnownPools(pools, host)
		for i, p := range pools {
			require.Equal(t, want[i], p.Known, "%s on %q", p.Name, host)
		}
	}
}
