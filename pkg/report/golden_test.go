package report

import (
	"path/filepath"
	"testing"
	"time"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	testenv.Golden(t, filepath.Join("testdata", name), got)
}

// clock is a time that tests advance.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time { return c.now }

func (c *clock) add(d time.Duration) { c.now = c.now.Add(d) }

// planned is a job with a dataset of every kind.
func planned() *send.Report {
	available := uint64(1 << 40)
	raw := zfs.StreamFlags{Raw: true}
	return &send.Report{
		Schema: "zxfer.send/v1", Source: "tank/home@d", Target: "backup1:vault/", DryRun: true, Conclusion: outcome.Conclusion{Outcome: "planned"},
		Hosts: []ends.HostReport{
			{Name: "local", Role: "source", ZFS: "2.3.9-1", Backend: "libzfs_core (pyzfs 1.0.0)", Version: "v0.1.0"},
			{Name: "backup1", Role: "target", ZFS: "2.1.11-1", Backend: "zfs command line (no pyzfs)", Version: "v0.1.0"},
		},
		Wire: connect.Report{Mode: "signed", Why: "raw streams of encrypted data are already secret", Streams: 2, Dial: "source", Address: "10.0.0.2"},
		Plan: &plan.Plan{
			Notes: []string{"tank/home/vol: mountpoint is not carried: volumes have none"},
			Datasets: []*plan.Dataset{
				{
					Source: "tank/home", Target: "vault/home", Type: zfs.Filesystem, CreateParents: true, Encrypted: true,
					Final: zfs.Version{Kind: zfs.Snapshot, Name: "d", GUID: 4},
					Steps: []plan.Step{
						{Kind: plan.Full, Why: "the target does not exist", Bytes: 3 << 30, ToGUID: 1,
							Send: zfs.SendSpec{Dataset: "tank/home", To: "a", Flags: raw}, Receive: zfs.ReceiveSpec{Target: "vault/home"}},
						{Kind: plan.Incremental, Why: "2 snapshots between are carried", Bytes: 34 << 20, BaseGUID: 1, ToGUID: 4,
							Send: zfs.SendSpec{Dataset: "tank/home", From: "@a", Through: []string{"b", "c"}, To: "d", Flags: raw}, Receive: zfs.ReceiveSpec{Target: "vault/home"}},
					},
				},
				{
					Source: "tank/home/ann", Target: "vault/home/ann", Type: zfs.Filesystem, Needs: []string{"tank/home"}, Encrypted: true,
					Final: zfs.Version{Kind: zfs.Snapshot, Name: "d", GUID: 14},
					Steps: []plan.Step{{Kind: plan.Resume, Why: "an interrupted receive is there", Done: 5 << 30, Bytes: 1 << 30, ToGUID: 14,
						Send: zfs.SendSpec{Dataset: "tank/home/ann", To: "d", Token: "1-abc", Flags: raw}, Receive: zfs.ReceiveSpec{Target: "vault/home/ann"}}},
				},
				{
					Source: "tank/home/bob", Target: "vault/home/bob", Type: zfs.Filesystem, Needs: []string{"tank/home"},
					Final: zfs.Version{Kind: zfs.Snapshot, Name: "d", GUID: 24},
				},
				{
					Source: "tank/home/vol", Target: "vault/home/vol", Type: zfs.Volume, Needs: []string{"tank/home"},
					Final: zfs.Version{Kind: zfs.Snapshot, Name: "d", GUID: 34}, Loses: []string{"vault/home/vol@theirs"},
					Discard: "its snapshot is deleted on the source",
					Steps: []plan.Step{{Kind: plan.Incremental, Why: "from the latest common bookmark", BaseGUID: 31, ToGUID: 34,
						Send: zfs.SendSpec{Dataset: "tank/home/vol", From: "#a", To: "d"}, Receive: zfs.ReceiveSpec{Target: "vault/home/vol", Rollback: true}}},
				},
			},
		},
		Findings: []finding.Finding{
			{ID: "space", Host: "backup1", Severity: "ok", Summary: "enough space"},
			{ID: "raw-ashift", Host: "backup1", Severity: "warn", Summary: "raw receive to a larger ashift needs 2.1.3", Evidence: "ashift 9 to 12", Remedy: "upgrade OpenZFS on backup1\nor use --decrypt"},
		},
		Growth: &preflight.Growth{Bytes: 4<<30 + 34<<20, Bound: preflight.AtMost, Unknown: 1, Target: "vault", Available: &available,
			Reasons: []string{"the transfer first destroys data of the target"}},
		Commands: []string{"zfs send -w tank/home@a | zfs receive -s -u vault/home"},
	}
}

// diverged is a refused job.
func diverged() *send.Report {
	r := planned()
	r.Outcome = "refused"
	r.Findings, r.Growth, r.Commands = nil, nil, nil
	r.Plan = &plan.Plan{Conflicts: plan.Conflicts{{
		ID: "diverged", Source: "local:tank/home", Target: "backup1:vault/home",
		Summary:        "local:tank/home and backup1:vault/home have no common snapshot: source has @d @c, target has @theirs",
		Remedy:         "send to another dataset, or destroy the target's first",
		SourceVersions: []string{"@d", "@c", "#b"}, TargetVersions: nil,
	}}}
	return r
}

// finished is planned after its end.
func finished() *send.Report {
	r := planned()
	r.DryRun, r.Outcome = false, "done"
	r.Bytes, r.Seconds, r.LimitedBy = 4<<30, 20.5, "write on the target"
	r.Results = []*send.StepResult{
		{Source: "tank/home", Target: "vault/home", Snapshot: "@a", Kind: plan.Full, Bytes: 1 << 30, Speed: connect.Speed{Seconds: 5}, Tries: 1, Wire: "signed", Error: "connection cut"},
		{Source: "tank/home", Target: "vault/home", Snapshot: "@a", Kind: plan.Resume, Bytes: 2 << 30, Speed: connect.Speed{Seconds: 10, Rate: 2 << 30 / 10}, Resumed: true, Tries: 2,
			Wire: "signed", Verified: "guid", Bottleneck: connect.Bottleneck{LimitedBy: "write on the target",
				Stages:  []transfer.Stage{{Name: transfer.StageRead, Bytes: 2 << 30, Busy: time.Second, WaitOut: 9 * time.Second}, {Name: transfer.StageWrite, Bytes: 2 << 30, Busy: 10 * time.Second}},
				Network: &transfer.Network{Streams: 2, RTT: 1200 * time.Microsecond, Retransmits: 3, SendBuffer: 4 << 20, ReceiveBuffer: 6 << 20, Congestion: "cubic"}}},
		{Source: "tank/home", Target: "vault/home", Snapshot: "@d", Kind: plan.Incremental, Bytes: 1 << 30, Speed: connect.Speed{Seconds: 5, Rate: 1 << 30 / 5}, Tries: 1, Wire: "signed", Verified: "guid and content", Digest: "00ff"},
	}
	return r
}

// replay calls rep as a job with the result of finished would.
func replay(rep send.Reporter, c *clock, r *send.Report) {
	home := r.Plan.Datasets[0]
	rep.Planned(r)
	rep.Started(1, home, 0)
	for i := range 24 {
		c.add(500 * time.Millisecond)
		rep.Progress(1, connect.Progress{Bytes: uint64(i+1) << 26, Total: 3 << 30, Rate: 128 << 20, Elapsed: time.Duration(i+1) * 500 * time.Millisecond, LimitedBy: "write on the target"})
	}
	rep.Finished(1, r.Results[0])
	rep.Log("tank/home: connection cut; try 1 of 5 in 1s")
	rep.Started(2, home, 0)
	c.add(61 * time.Second)
	rep.Progress(2, connect.Progress{Bytes: 4 << 30, Total: 3 << 30, Rate: 200 << 20, Elapsed: 61 * time.Second})
	rep.Finished(2, r.Results[1])
	rep.Started(3, home, 1)
	rep.Finished(3, r.Results[2])
	rep.Ended(home, nil)
}
