package forecast

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
)

// TestAdvice expects that the advice follows the bottleneck and ignores unrelated findings.
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
	network, target := limit(transfer.LimitNetwork, "local", Link), limit(transfer.LimitTarget, "beta", probe.TargetWrite)
	sender := limit(transfer.LimitSenderCPU, "local", Link)
	all := limit(transfer.LimitSenderCPU, "local", "")
	idle := Machines{"local": {CPUs: 1}, "beta": {CPUs: 8}}
	for name, c := range map[string]struct {
		Adviser
		remedy, why string
	}{
		"failures first":              {Adviser{Expected: network, Findings: []finding.Finding{warn("link", "local"), {ID: "space", Severity: finding.Fail, Host: "beta", Remedy: "free space there"}}}, "free space there", ""},
		"nothing measured":            {Adviser{Findings: []finding.Finding{warn("nic", "beta")}}, "mend nic", "pool vault is at fault"},
		"nothing found":               {Adviser{Findings: []finding.Finding{warn("netcat", "beta")}}, "", "no check failed"},
		"a full link":                 {Adviser{Expected: network, Findings: []finding.Finding{warn("fletcher", "local")}}, "", "limited by the link"},
		"a limited link":              {Adviser{Expected: network, Findings: []finding.Finding{warn("fletcher", "local"), warn("link", "local")}}, "mend link", ""},
		"only the opposite direction": {Adviser{Expected: network, Findings: []finding.Finding{warn("link", "beta")}}, "", "limited by the link"},
		"a bad interface":             {Adviser{Expected: network, Findings: []finding.Finding{warn("nic", "beta")}}, "mend nic", ""},
		"a link with busy processors": {Adviser{Expected: network, Machines: Machines{"local": {CPUs: 2}, "beta": {CPUs: 2, OtherLoad: 1.9}}}, "stop other programs there, or wait until they end", ""},
		"processors, not window":      {Adviser{Expected: all, Machines: idle, Findings: []finding.Finding{warn("link", "local")}}, "", "limited by the capacity of the only processor of local"},
		"a requested limit":           {Adviser{Expected: limit(transfer.LimitBandwidth, "", "")}, "to go faster, raise {{bwlimit}}", ""},
		"processors of the link":      {Adviser{Expected: sender, Machines: idle, Findings: []finding.Finding{warn("fletcher", "local")}}, "", "limited by the capacity of the only processor of local"},
		"processors of all":           {Adviser{Expected: all, Machines: idle, Findings: []finding.Finding{warn("fletcher", "local")}}, "mend fletcher", ""},
		"more streams":                {Adviser{Expected: sender, Findings: []finding.Finding{warn("link", "local")}}, "mend link", ""},
		"a busy machine":              {Adviser{Expected: all, Machines: Machines{"local": {CPUs: 2, OtherLoad: 1}}}, "stop other programs there, or wait until they end", "1.0 of 2 processors are busy with other programs"},
		"requested tls":               {Adviser{Expected: sender, Encrypted: true, Transport: transport.Settings{Wire: "tls"}}, "omit {{wire tls}}", ""},
		"tls because of decryption":   {Adviser{Expected: all, Encrypted: true, Decrypt: true}, "omit {{decrypt}}", ""},
		"tls of plain data":           {Adviser{Expected: sender, Machines: idle, Transport: transport.Settings{Wire: "tls"}}, "", "limited by the capacity of the only processor of local"},
		"disks":                       {Adviser{Expected: target, Ceilings: part(probe.TargetWrite, 1, 2), Pools: map[string]string{"beta": "tank"}, Findings: []finding.Finding{warn("fletcher", "beta"), warn("pools", "beta")}}, "", "limited by the disks of pool tank on beta"},
		"a faulty pool":               {Adviser{Expected: target, Ceilings: part(probe.TargetWrite, 0.2, 0), Pools: map[string]string{"beta": "vault"}, Findings: []finding.Finding{warn("fletcher", "beta"), warn("pools", "beta")}}, "mend pools", ""},
		"slow checksums":              {Adviser{Expected: target, Machines: idle, Ceilings: part(probe.TargetWrite, 1.1, 0), Findings: []finding.Finding{warn("fletcher", "beta"), warn("aes", "beta")}}, "mend fletcher", ""},
		"another host":                {Adviser{Expected: target, Machines: idle, Ceilings: part(probe.TargetWrite, 1.1, 0), Findings: []finding.Finding{warn("fletcher", "local")}}, "", "limited by ZFS on one processor core of beta"},
		"a network share":             {Adviser{Expected: limit(transfer.LimitTarget, "beta", probe.PathWrite), Ceilings: part(probe.PathWrite, 1.1, 0)}, "", "limited by the disks or the network file system at the path"},
		"only the local host":         {Adviser{Expected: limit(probe.LoopbackTLS, "local", probe.LoopbackTLS)}, "", "only the local host was checked; name a TARGET"},
		"behind a restricted key":     {Adviser{Expected: limit(transfer.LimitSource, "local", probe.PathRead), Ceilings: part(probe.PathRead, 1, 0), Hidden: true}, "to measure the whole path, use an unrestricted key", "the key does not permit it"},
		"a short stream":              {Adviser{Expected: &Expected{BytesPerSecond: 1e6, LimitedBy: transfer.LimitSource, Bytes: 1000, Seconds: 0.001}}, "", "for so little data"},
		"requested ssh":               {Adviser{Expected: limit("ssh or network", "local", Link), Transport: transport.Settings{Wire: "ssh"}}, "if a port can be opened, omit {{wire ssh}}", ""},
		"only ssh":                    {Adviser{Expected: sender, Machines: idle, Findings: []finding.Finding{warn(preflight.PathID, "beta")}}, "mend way", ""},
		"no detail known":             {Adviser{Expected: limit("network or target", "local", Link), Transport: transport.Settings{Wire: "nc"}}, "", "{{wire nc}} gives no more detail"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.Advice()
			require.NotNil(t, got)
			require.Equal(t, c.remedy, got.Remedy)
			if c.why != "" {
				require.Equal(t, c.why, got.Why)
			}
		})
	}
}
