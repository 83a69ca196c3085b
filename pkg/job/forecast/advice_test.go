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
	network, target := limit(transfer.LimitNetwork, "local", Link), limit(transfer.LimitTarget, "beta", probe.TargetWrite)
	sender := limit(transfer.LimitSenderCPU, "local", Link)
	all := limit(transfer.LimitSenderCPU, "local", "")
	idle := Machines{"local": {CPUs: 1}, "beta": {CPUs: 8}}
	for name, c := range map[string]struct {
		Adviser
		remedy, why string
	}{
		"what fails comes first":        {Adviser{Expected: network, Found: []finding.Finding{warn("link", "local"), {ID: "space", Severity: finding.Fail, Host: "beta", Remedy: "make room"}}}, "make room", ""},
		"nothing measured":              {Adviser{Found: []finding.Finding{warn("nic", "beta")}}, "mend nic", "pool vault is at fault"},
		"nothing found":                 {Adviser{Found: []finding.Finding{warn("netcat", "beta")}}, "", "no check found a fault"},
		"a full link":                   {Adviser{Expected: network, Found: []finding.Finding{warn("fletcher", "local")}}, "", "it is the link"},
		"a link held back":              {Adviser{Expected: network, Found: []finding.Finding{warn("fletcher", "local"), warn("link", "local")}}, "mend link", ""},
		"only the way back":             {Adviser{Expected: network, Found: []finding.Finding{warn("link", "beta")}}, "", "it is the link"},
		"a bad interface":               {Adviser{Expected: network, Found: []finding.Finding{warn("nic", "beta")}}, "mend nic", ""},
		"a link in a crowd":             {Adviser{Expected: network, Machines: Machines{"local": {CPUs: 2}, "beta": {CPUs: 2, OtherLoad: 1.9}}}, "end what else runs there, or wait for it", ""},
		"processors, not window":        {Adviser{Expected: all, Machines: idle, Found: []finding.Finding{warn("link", "local")}}, "", "it is what the one processor of local does"},
		"a limit asked for":             {Adviser{Expected: limit(transfer.LimitBandwidth, "", "")}, "raise {{bwlimit}}, if more is wanted", ""},
		"processors of the link":        {Adviser{Expected: sender, Machines: idle, Found: []finding.Finding{warn("fletcher", "local")}}, "", "it is what the one processor of local does"},
		"processors of all":             {Adviser{Expected: all, Machines: idle, Found: []finding.Finding{warn("fletcher", "local")}}, "mend fletcher", ""},
		"more streams":                  {Adviser{Expected: sender, Found: []finding.Finding{warn("link", "local")}}, "mend link", ""},
		"a busy machine":                {Adviser{Expected: all, Machines: Machines{"local": {CPUs: 2, OtherLoad: 1}}}, "end what else runs there, or wait for it", "1.0 of 2 processors are busy with other things"},
		"tls by hand":                   {Adviser{Expected: sender, Sealable: true, Transport: transport.Settings{Wire: "tls"}}, "leave {{wire tls}} out", ""},
		"tls by decryption":             {Adviser{Expected: all, Sealable: true, Decrypt: true}, "leave {{decrypt}} out", ""},
		"tls of open data":              {Adviser{Expected: sender, Machines: idle, Transport: transport.Settings{Wire: "tls"}}, "", "it is what the one processor of local does"},
		"disks":                         {Adviser{Expected: target, Ceilings: part(probe.TargetWrite, 1, 2), Pools: map[string]string{"beta": "tank"}, Found: []finding.Finding{warn("fletcher", "beta"), warn("pools", "beta")}}, "", "it is the disks of pool tank on beta"},
		"a pool at fault":               {Adviser{Expected: target, Ceilings: part(probe.TargetWrite, 0.2, 0), Pools: map[string]string{"beta": "vault"}, Found: []finding.Finding{warn("fletcher", "beta"), warn("pools", "beta")}}, "mend pools", ""},
		"slow checksums":                {Adviser{Expected: target, Machines: idle, Ceilings: part(probe.TargetWrite, 1.1, 0), Found: []finding.Finding{warn("fletcher", "beta"), warn("aes", "beta")}}, "mend fletcher", ""},
		"another host's":                {Adviser{Expected: target, Machines: idle, Ceilings: part(probe.TargetWrite, 1.1, 0), Found: []finding.Finding{warn("fletcher", "local")}}, "", "it is ZFS on a processor of beta"},
		"a share":                       {Adviser{Expected: limit(transfer.LimitTarget, "beta", probe.PathWrite), Ceilings: part(probe.PathWrite, 1.1, 0)}, "", "it is the disks or the share at the path"},
		"this host alone":               {Adviser{Expected: limit(probe.LoopbackTLS, "local", probe.LoopbackTLS)}, "", "this host alone was looked at; name a TARGET"},
		"behind a restricted key":       {Adviser{Expected: limit(transfer.LimitSource, "local", probe.PathRead), Ceilings: part(probe.PathRead, 1, 0), Hidden: true}, "use a key that is not restricted, to measure all of the way", "this one does not allow it"},
		"a stream that is over at once": {Adviser{Expected: &Expected{BytesPerSecond: 1e6, LimitedBy: transfer.LimitSource, Bytes: 1000, Seconds: 0.001}}, "", "so little is there at once"},
		"ssh by hand":                   {Adviser{Expected: limit("ssh or network", "local", Link), Transport: transport.Settings{Wire: "ssh"}}, "leave {{wire ssh}} out, where a port can be opened", ""},
		"only ssh":                      {Adviser{Expected: sender, Machines: idle, Found: []finding.Finding{warn(preflight.WayID, "beta")}}, "mend way", ""},
		"what nobody tells":             {Adviser{Expected: limit("network or target", "local", Link), Transport: transport.Settings{Wire: "nc"}}, "", "{{wire nc}} does not tell more"},
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
