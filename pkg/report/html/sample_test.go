package html

import (
	"errors"
	"fmt"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/finding"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/probe"
	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/report/history"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// sampleAbout has a Monday morning as its time.
func sampleAbout() About {
	return About{Version: "v1.2.3", Host: "alpha", Made: time.Date(2024, 5, 6, 7, 30, 0, 0, time.UTC)}
}

// discardReporter is a reporter that discards everything.
type discardReporter struct{}

func (discardReporter) Log(string)                              {}
func (discardReporter) Activity(string) func()                  { return func() {} }
func (discardReporter) Planned(*send.Report)                    {}
func (discardReporter) Started(int, *plan.Dataset, int)         {}
func (discardReporter) Progress(int, connect.Progress)          {}
func (discardReporter) Finished(int, *send.StepResult)          {}
func (discardReporter) Ended(*plan.Dataset, error)              {}
func (discardReporter) DevicePlanned(*dev.Report)               {}
func (discardReporter) DeviceStarted(*dev.Report, uint64)       {}
func (discardReporter) DeviceFinished(*dev.Report, *dev.Result) {}

// tape plays a course to a recorder.
type tape struct {
	now   time.Time
	rec   *history.Recorder
	rep   send.Reporter
	id    int
	bytes uint64
	since uint64
}

func newTape() *tape {
	t := &tape{now: time.Date(2024, 5, 6, 7, 10, 0, 0, time.UTC)}
	t.rec = history.NewRecorder(func() time.Time { return t.now })
	t.rep = t.rec.Send(discardReporter{}, "")
	return t
}

func (t *tape) start(dataset string, done uint64) {
	t.id++
	t.bytes, t.since = done, done
	t.rep.Started(t.id, &plan.Dataset{Source: dataset, Target: "vault/" + dataset, Steps: []plan.Step{{Done: done}}}, 0)
}

// run simulates some seconds at a varying rate.
func (t *tape) run(seconds int, rate uint64, limit string) {
	for i := range 2 * seconds {
		t.now = t.now.Add(500 * time.Millisecond)
		t.bytes += rate / 2 * uint64(85+(i*37)%31) / 100
		t.rep.Progress(t.id, connect.Progress{Bytes: t.bytes, LimitedBy: limit})
	}
}

func (t *tape) end(limit, failure string) {
	t.rep.Finished(t.id, &send.StepResult{Bytes: t.bytes - t.since, Bottleneck: connect.Bottleneck{LimitedBy: limit}, Error: failure})
}

func (t *tape) wait(seconds int, said string) {
	t.rep.Log(said)
	t.now = t.now.Add(time.Duration(seconds) * time.Second)
}

const mib = 1 << 20

func sampleCourse() history.Recording {
	t := newTape()
	t.start("tank/home", 0)
	t.run(8, 60*mib, transfer.LimitSource)
	t.run(30, 112*mib, transfer.LimitNetwork)
	t.end(transfer.LimitNetwork, "beta: the connection lost: connection reset by peer")
	t.wait(4, "tank/home: beta: the connection lost: connection reset by peer; try 1 of 5 in 1.1 s")
	t.start("tank/home", t.bytes)
	t.run(40, 108*mib, transfer.LimitNetwork)
	t.run(25, 71*mib, transfer.LimitTarget)
	t.end(transfer.LimitNetwork, "")
	for _, name := range []string{"tank/home/ada", "tank/home/grace", "tank/mail"} {
		t.start(name, 0)
		t.run(12, 90*mib, transfer.LimitTarget)
		t.end(transfer.LimitTarget, "")
	}
	return t.rec.Recording()
}

func sampleStages(busy ...int) (out []transfer.Stage) {
	for i, name := range []string{transfer.StageRead, transfer.StageSend, transfer.StageReceive, transfer.StageWrite} {
		s := transfer.Stage{Name: name, Busy: time.Duration(busy[i]) * time.Second, WaitIn: time.Duration(100-busy[i]) * time.Second}
		if name == transfer.StageSend {
			s.WaitIn, s.WaitOut = 5*time.Second, time.Duration(95-busy[i])*time.Second
		}
		out = append(out, s)
	}
	return out
}

func sampleSend() *send.Report {
	r := &send.Report{
		Source: "tank/home@monday", Target: "beta:vault", Conclusion: outcome.Conclusion{Outcome: outcome.Done}, Bytes: 12_800 * mib, Seconds: 147.2, LimitedBy: transfer.LimitNetwork,
		Hosts: []ends.HostReport{{Name: "alpha", Role: "source", ZFS: "2.3.9", Backend: "libzfs_core"}, {Name: "beta", Role: "target", ZFS: "2.1.11", Backend: "zfs"}},
		Wire:  connect.Report{Mode: "tls", Why: "the data is not encrypted", Streams: 2, Dial: "source", Address: "10.0.0.2"},
		Findings: []finding.Finding{
			{ID: "mtu", Host: "beta", Severity: finding.OK, Summary: "the path takes packets of 1500 bytes"},
			{ID: "tcp-buffers", Host: "beta", Severity: finding.Warn, Summary: "TCP receive buffers end at 6 MiB", Evidence: "net.ipv4.tcp_rmem = 4096 131072 6291456",
				Remedy: "sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864'"}},
		Plan:     &plan.Plan{Notes: []string{"tank/home/tmp has no snapshot @monday: left out"}},
		Commands: []string{"zfs send -Lce -I tank/home@sunday tank/home@monday | zfs receive -s -u vault/home"},
		Expected: &forecast.Expected{BytesPerSecond: 100 * mib, LimitedBy: transfer.LimitNetwork, Host: "alpha", Bytes: 12_000 * mib, Seconds: 120},
	}
	for _, name := range []string{"tank/home", "tank/home/ada", "tank/home/grace", "tank/mail"} {
		r.Plan.Datasets = append(r.Plan.Datasets, &plan.Dataset{Source: name, Target: "vault/" + name,
			Steps: []plan.Step{{Kind: plan.Incremental, Send: zfs.SendSpec{From: "@sunday", To: "monday"}, Bytes: 3_000 * mib}}})
		r.Results = append(r.Results, &send.StepResult{Source: name, Verified: "guid and content", Bottleneck: connect.Bottleneck{Stages: sampleStages(38, 12, 9, 61),
			Network: &transfer.Network{Streams: 2, RTT: 12_345 * time.Microsecond, Retransmits: 31}}})
	}
	return r
}

func sampleCeilings() []probe.Ceiling {
	c := func(id, host string, rate uint64) probe.Ceiling {
		return probe.Ceiling{ID: id, Host: host, Title: probe.Title(id), BytesPerSecond: rate, CPU: 0.9}
	}
	out := []probe.Ceiling{c(probe.Memory, "alpha", 9_000*mib), c(probe.Memory, "beta", 7_500*mib), c(probe.LoopbackTLS, "alpha", 1_600*mib),
		c(probe.LoopbackTLS, "beta", 1_100*mib), c("link", "alpha", 110*mib), c("link-back", "beta", 111*mib), c(probe.SourceRead, "alpha", 480*mib),
		c(probe.TargetWrite, "beta", 240*mib), {ID: probe.NCYes, Host: "beta", Title: probe.Title(probe.NCYes), Skipped: "there is no nc"}}
	out[4].Peer, out[4].Limit = "beta", transfer.LimitNetwork
	out[4].Network = &transfer.Network{Streams: 1, RTT: 12_345 * time.Microsecond}
	return out
}

func sampleDoctor() *doctor.Report {
	return &doctor.Report{Findings: sampleSend().Findings, Ceilings: sampleCeilings(), Plan: sampleSend().Commands,
		Expected: &forecast.Expected{BytesPerSecond: 108 * mib, LimitedBy: transfer.LimitNetwork, Host: "alpha", Bytes: 12_000 * mib, Seconds: 114}}
}

func sampleDevice() (*dev.Report, history.Recording) {
	t := newTape()
	rep := t.rec.Device(discardReporter{})
	r := &dev.Report{Source: "/dev/vg/db", Target: "beta:/srv/db.img", Size: 2_000 * mib, Conclusion: outcome.Conclusion{Outcome: outcome.Done}, Seconds: 24,
		From: &device.Facts{Kind: device.KindLVM, Size: 2_000 * mib}, To: &device.Facts{Kind: device.KindMissing}}
	rep.DeviceStarted(r, 200*mib)
	for i := range 40 {
		t.now = t.now.Add(500 * time.Millisecond)
		rep.Progress(1, connect.Progress{Bytes: uint64(200+i*45) * mib, LimitedBy: transfer.LimitTarget})
	}
	res := &dev.Result{Account: device.Account{SourceDigest: "af1349b9", TargetDigest: "af1349b9", Zeros: 300 * mib}, Wire: "tls", WireBytes: 1_500 * mib,
		Bottleneck: connect.Bottleneck{LimitedBy: transfer.LimitTarget, Stages: sampleStages(20, 9, 8, 88)}}
	rep.DeviceFinished(r, res)
	r.Results = []*dev.Result{res}
	return r, t.rec.Recording()
}

func sampleStatus() *status.Status {
	made := sampleAbout().Made
	s := &status.Status{Late: true, Failed: true, Jobs: []*status.JobStatus{
		{Job: "home", Source: "tank/home", RunSchedule: status.RunSchedule{Schedule: "hourly", Next: made.Add(30 * time.Minute)}, LastRunStatus: status.LastRunStatus{LastRun: made.Add(-30 * time.Minute), Seconds: 147, Outcome: outcome.Failed}, Late: true, Verdict: status.Verdict{Failed: true, Problems: []*status.Problem{{State: outcome.Failed, To: []string{"offsite"}, Error: "gamma: no route to host", Hint: "ssh gamma"}}}, State: outcome.Failed},
		{Job: "snaps", Source: "rpool", RunSchedule: status.RunSchedule{Schedule: "daily", Next: made.Add(17 * time.Hour)}, LastRunStatus: status.LastRunStatus{LastRun: made.Add(-7 * time.Hour), Seconds: 2, Outcome: outcome.Done}, State: status.OK},
	}}
	for i, name := range []string{"tank/home", "tank/home/ada", "tank/home/grace"} {
		late := &status.DatasetStatus{Source: name, To: "offsite", Target: "pool/" + name, Base: "auto-2024-05-05T07:00:00Z", Success: made.Add(-24 * time.Hour), State: status.OK}
		if i == 1 {
			late.Late, late.Lag, late.State = true, 82_800, outcome.Failed
		}
		s.Jobs[0].Datasets = append(s.Jobs[0].Datasets, late,
			&status.DatasetStatus{Source: name, To: "vault", Target: "vault/" + name, Base: "auto-2024-05-06T07:00:00Z", Success: made.Add(-30 * time.Minute), State: status.OK})
	}
	s.Jobs[1].Datasets = []*status.DatasetStatus{{Source: "rpool", Snapshot: "auto-2024-05-06T00:00:00Z", Success: made.Add(-7 * time.Hour), State: status.OK}}
	return s
}

// sampleFleet returns hosts, some in a bad state and one with its own jobs.
func sampleFleet(hosts int) *fleet.Fleet {
	made := sampleAbout().Made
	f := &fleet.Fleet{Late: true, Failed: true, Unreachable: 1, NotAsked: []string{"re:db-[a-z]+"}}
	home := sampleStatus().Jobs[0]
	home.Datasets = home.Datasets[2:3]
	f.Hosts = append(f.Hosts, &fleet.Host{Host: "web7", State: outcome.Failed, Jobs: []*fleet.Job{{JobStatus: home, Copies: 6, Well: 5, Oldest: made.Add(-24 * time.Hour)}}},
		&fleet.Host{Host: "web9", Address: "root@web9.example.org", State: status.Unreachable, Error: "ssh: connect to host web9.example.org port 22: No route to host", Hint: "test the connection: ssh root@web9.example.org true"},
		&fleet.Host{Host: "db1", State: status.Late, Jobs: []*fleet.Job{{JobStatus: &status.JobStatus{Job: "pg", Source: "tank/pg", State: status.Late, Late: true, Verdict: status.Verdict{Lag: 7200}}, Copies: 2},
			{JobStatus: &status.JobStatus{Job: "home", State: status.OK}, Copies: 1, Well: 1, Oldest: made.Add(-10 * time.Minute)}}})
	for i := range hosts - 3 {
		h := &fleet.Host{Host: fmt.Sprintf("web%d", 10+i), State: status.OK}
		for n, job := range []string{"home", "vm", "mail", "www", "wiki", "git", "scratch", "old"} {
			if n < 2 || i == 0 {
				h.Jobs = append(h.Jobs, &fleet.Job{JobStatus: &status.JobStatus{Job: job, State: status.OK}, Copies: 12, Well: 12, Oldest: made.Add(-40 * time.Minute)})
			}
		}
		f.Hosts = append(f.Hosts, h)
	}
	return f
}

func sampleRun() []*statedir.Run {
	began := sampleAbout().Made.Add(-20 * time.Minute)
	return []*statedir.Run{{Job: "home", Source: "tank/home", Started: began, Ended: began.Add(147 * time.Second), Outcome: outcome.Failed, Snapshots: 3, Pruned: 2,
		Notes: []string{"vault: one hold could not be released"},
		Targets: []*statedir.TargetRun{{Target: "vault", To: "beta:vault", Outcome: outcome.Done, Bytes: 12_800 * mib, Seconds: 147, Sent: 3},
			{Target: "offsite", To: "gamma:pool", Outcome: outcome.Failed, Error: "gamma: no route to host", Failed: 3}}}}
}

// samples returns a page of every kind.
func samples() (map[string][]byte, error) {
	dev, devCourse := sampleDevice()
	out := map[string][]byte{}
	var errs []error
	add := func(name string, html []byte, err error) {
		out[name] = html
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	add2 := func(name string) func([]byte, error) { return func(html []byte, err error) { add(name, html, err) } }
	add2("send")(Send(sampleAbout(), sampleSend(), sampleCourse()))
	add2("device")(Device(sampleAbout(), dev, devCourse))
	add2("doctor")(Doctor(sampleAbout(), []string{"tank/home", "beta:vault"}, sampleDoctor(), nil))
	add2("status")(Status(sampleAbout(), sampleStatus()))
	add2("hosts")(Hosts(sampleAbout(), sampleFleet(30)))
	add2("run")(Run(sampleAbout(), sampleRun(), sampleStatus(), sampleCourse(), nil))
	return out, errors.Join(errs...)
}
