package doctor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// hostArchive returns a small capture of a host.
func hostArchive(role, host, duplex string) Capture {
	return Capture{Role: role, Host: host, Text: []byte(`-- zxfer/platform --
linux/amd64
-- sys/module/zfs/version --
2.3.9-1
-- proc/sys/net/ipv4/tcp_rmem --
4096	131072	131072
-- proc/sys/net/ipv4/tcp_wmem --
4096	16384	4194304
-- sys/class/net/eth0/operstate --
up
-- sys/class/net/eth0/duplex --
` + duplex + "\n")}
}

// TestJudgeTransfer expects EvaluateCaptures to find the same in a transfer's archives as the checks of the
// live transfer.
func TestJudgeTransfer(t *testing.T) {
	t.Parallel()
	snapshot := zfs.Version{Kind: zfs.Snapshot, Name: "x", GUID: 1<<64 - 1, CreateTXG: 7}
	in := preflight.Input{
		Source: preflight.Host{Name: "local", ZFS: "2.3.9-1", User: "ann"}, Target: preflight.Host{Name: "beta", At: remedy.Host{Name: "beta"}, ZFS: "2.1.2", Root: true},
		SourceListing: zfs.Listing{Root: "tank/a", Datasets: []*zfs.Dataset{{Name: "tank/a", Versions: []zfs.Version{snapshot}, Properties: map[string]zfs.Property{
			"encryption": {Value: "aes-256-gcm"}, "keystatus": {Value: "unavailable"}}}}},
		TargetListing: zfs.Listing{Root: "vault/a", Pool: zfs.Pool{Name: "vault", Properties: map[string]string{"capacity": "97", "health": "ONLINE"}},
			Ancestors: []*zfs.Dataset{{Name: "vault", Properties: map[string]zfs.Property{"available": {Value: "1000"}}}}},
		Plan: plan.Plan{
			Datasets: []*plan.Dataset{{Source: "tank/a", Target: "vault/a", Encrypted: true, Steps: []plan.Step{{Kind: plan.Full, Bytes: 1 << 40,
				Send: zfs.SendSpec{Dataset: "tank/a", To: "x", Flags: zfs.StreamFlags{Raw: true}}, Receive: zfs.ReceiveSpec{Target: "vault/a"}}}}},
			Conflicts: plan.Conflicts{{ID: plan.IVSetMismatch, Severity: finding.Fail, Source: "tank/a", Target: "vault/a", Summary: "the raw chain is broken"}},
		},
		RTT: 50 * time.Millisecond, Streams: 2, Holds: map[string][]string{"tank/a@x": {"zxfer:j:t"}},
	}
	transfer, err := transferArchive(in)
	require.NoError(t, err)
	archives := []Capture{hostArchive("source", "local", "half"), hostArchive("target", "beta", "full"), transfer}
	r, err := EvaluateCaptures(archives, Request{})
	require.NoError(t, err)

	for i, h := range []*preflight.Host{&in.Source, &in.Target} {
		a, err := hostOf(archives[i])
		require.NoError(t, err)
		h.System = a.System
	}
	require.Equal(t, findings(in, Request{}), r.Findings)
	var worst []string
	for _, f := range r.Findings {
		if f.Severity != finding.OK {
			worst = append(worst, f.ID)
		}
	}
	require.Subset(t, worst, []string{"nic", "window", "space", "pool-full", "permissions", "keys", "keystatus", "zfs-defects", "plan"})
	require.NotEmpty(t, r.Allow)
	require.Len(t, r.Plan, 1)

	only, err := EvaluateCaptures(archives, Request{Only: []string{"plan"}})
	require.NoError(t, err)
	require.Len(t, only.Findings, 1)
}

func TestJudgeRefuses(t *testing.T) {
	t.Parallel()
	for name, archives := range map[string][]Capture{
		"no host":  nil,
		"transfer": {hostArchive("source", "local", "full"), {Role: roleTransfer, Text: []byte("-- " + transferFile + " --\n{\"plan\":7}\n")}},
	} {
		_, err := EvaluateCaptures(archives, Request{})
		require.Equal(t, fault.Usage, fault.ClassOf(err), name)
	}
}

// FuzzJudge expects a report or a usage error for any content, because doctor --facts accepts files
// from unknown sources.
func FuzzJudge(f *testing.F) {
	f.Add("source", []byte("-- proc/meminfo --\nMemTotal: 1 kB\n-- etc/os-release --\nPRETTY_NAME=x\n"), []byte("{}"))
	f.Add("target", []byte("-- a --\n-- a/b --\n-- .. --\n"), []byte(`{"plan":{"datasets":[{}]},"source":{"name":"x"}}`))
	f.Add("", []byte(""), []byte(`{"Source":{"Name":"a"},"Plan":{"Datasets":[{"Steps":[{}]}]}}`))
	f.Add("source", []byte("-- zxfer/transfer.json --\n{"), []byte("null"))
	f.Fuzz(func(t *testing.T, role string, host, transfer []byte) {
		all := []Capture{{Role: role, Host: "h", Text: host}, {Role: roleTransfer, Host: "-", Text: append([]byte("-- "+transferFile+" --\n"), transfer...)}}
		for _, archives := range [][]Capture{all[:1], all} {
			r, err := EvaluateCaptures(archives, Request{})
			if err != nil {
				require.Equal(t, fault.Usage, fault.ClassOf(err))
				continue
			}
			for _, finding := range r.Findings {
				require.NotEmpty(t, finding.ID)
				require.NotEmpty(t, finding.Severity)
			}
		}
	})
}
