package html

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/probe"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
)

// evil is a hostile name from another host.
const evil = `x"'><i>pwned</i><script>document.title='<i>pwned'</script></style></title><img src=//evil.example/a onerror=alert(1)> javascript:alert(1) url(//evil.example/b) {{.}} expression(1)`

// replaceTexts replaces every string below v with evil.
func replaceTexts(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Elem().Kind() != reflect.String {
			replaceTexts(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				replaceTexts(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			replaceTexts(v.Index(i))
		}
	case reflect.String:
		if v.CanSet() {
			v.SetString(evil)
		}
	}
}

// hostile returns the sample pages with evil in every string.
func hostile(t *testing.T) map[string][]byte {
	spoilt := func(v any) { replaceTexts(reflect.ValueOf(v)) }
	send, course, doctor, status, runs := sampleSend(), sampleCourse(), sampleDoctor(), sampleStatus(), sampleRun()
	dev, devCourse := sampleDevice()
	hosts := sampleFleet(30)
	for _, v := range []any{hosts, send, &course, doctor, status, &runs, dev, &devCourse} {
		spoilt(v)
	}
	for i := range course.Moved.Slices {
		course.Moved.Slices[i].Limits = map[string]float64{evil: 1}
	}
	out := map[string][]byte{}
	for name, render := range map[string]func() ([]byte, error){
		"send":   func() ([]byte, error) { return Send(sampleAbout(), send, course) },
		"device": func() ([]byte, error) { return Device(sampleAbout(), dev, devCourse) },
		"doctor": func() ([]byte, error) { return Doctor(sampleAbout(), []string{evil}, doctor, errors.New(evil)) },
		"status": func() ([]byte, error) { return Status(sampleAbout(), status) },
		"hosts":  func() ([]byte, error) { return Hosts(sampleAbout(), hosts) },
		"run":    func() ([]byte, error) { return Run(sampleAbout(), runs, status, course, []error{errors.New(evil)}) },
	} {
		html, err := render()
		require.NoError(t, err, name)
		out[name] = html
	}
	return out
}

// TestHostile expects that strings from hosts remain text. They create no element, attribute,
// class, address or style.
func TestHostile(t *testing.T) {
	t.Parallel()
	pages, err := samples()
	require.NoError(t, err)
	for name, html := range hostile(t) {
		text := string(html)
		require.NotContains(t, text, "<i>pwned", name)
		require.NotContains(t, text, "<script", name)
		require.NotContains(t, text, "<img", name)
		require.Contains(t, text, "&lt;i&gt;pwned", name)
		for _, attribute := range []string{`class="`, `x="`, `width="`, ` d="`} {
			for _, rest := range strings.Split(text, attribute)[1:] {
				value, _, _ := strings.Cut(rest, `"`)
				require.NotContains(t, value, "pwned", "%s: %s", name, attribute)
			}
		}
		require.Equal(t, strings.Count(string(pages[name]), "<style>"), strings.Count(text, "<style>"))
		require.LessOrEqual(t, len(html), 1<<20)
	}
}

// TestBounded expects that a page of ten thousand datasets and three days has a limited size.
func TestBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("very-long-name-", 17)
	play := newTape()
	r, s := sampleSend(), sampleStatus()
	r.Plan.Datasets, s.Jobs[0].Datasets = nil, nil
	for i := range 10_000 {
		d := *sampleSend().Plan.Datasets[0]
		d.Source, d.Target = fmt.Sprintf("tank/%s%d", long, i), fmt.Sprintf("vault/%s%d", long, i)
		r.Plan.Datasets, r.Commands, r.Plan.Notes = append(r.Plan.Datasets, &d), append(r.Commands, long), append(r.Plan.Notes, long)
		r.Findings = append(r.Findings, sampleSend().Findings...)
		for _, to := range sampleStatus().Jobs[0].Datasets[:2] {
			to.Source, to.Error = d.Source, long
			s.Jobs[0].Datasets = append(s.Jobs[0].Datasets, to)
		}
		play.start(d.Source, 0)
		play.now = play.now.Add(24 * time.Second)
		play.bytes += 3 << 30
		play.rep.Log(long)
		play.end(transfer.LimitTarget, strings.Repeat("failed ", i%2*100))
	}
	html, err := Send(sampleAbout(), r, play.rec.Recording())
	require.NoError(t, err)
	require.LessOrEqual(t, len(html), 1<<20)
	require.Contains(t, string(html), "and 9800 more")
	html, err = Run(sampleAbout(), sampleRun(), s, play.rec.Recording(), nil)
	require.NoError(t, err)
	require.LessOrEqual(t, len(html), 2<<20)
	require.Contains(t, string(html), "and 9000 more datasets")
	html, err = Hosts(sampleAbout(), sampleFleet(10_000))
	require.NoError(t, err)
	require.LessOrEqual(t, len(html), 1<<20)
	require.Contains(t, string(html), "and 9600 more hosts")
}

// TestNoTransfer expects a page for a command that failed before it transferred anything.
func TestNoTransfer(t *testing.T) {
	t.Parallel()
	html, err := Send(sampleAbout(), &send.Report{Source: "tank/a", Target: "beta:vault", Conclusion: outcome.Conclusion{Outcome: "failed", Error: "beta: no route to host", Hint: "ssh beta"}}, history.Recording{})
	require.NoError(t, err)
	require.Contains(t, string(html), "beta: no route to host")
	require.Contains(t, string(html), `<p class="command">ssh beta</p>`)
	require.NotContains(t, string(html), "Rate over time")
	html, err = Run(sampleAbout(), nil, nil, history.Recording{}, []error{errors.New("the job is running already")})
	require.NoError(t, err)
	require.Contains(t, string(html), "the job is running already")
}

// TestFailuresOfRuns expects that the page of a failed command shows the failure and its errors,
// regardless of the outcomes of its runs.
func TestFailuresOfRuns(t *testing.T) {
	t.Parallel()
	runs := sampleRun()
	runs[0].Outcome, runs[0].Error, runs[0].Hint = outcome.Done, "told once", "told once"
	html, err := Run(sampleAbout(), runs, nil, history.Recording{}, []error{nil, fault.Interrupt("wait", errors.New("job \"mail\" is running already")), fault.Failf("mkdir it", "no metrics")})
	require.NoError(t, err)
	require.Contains(t, string(html), `class="outcome bad">failed<`)
	require.Regexp(t, `class="error"><p>job &#34;mail&#34; is running already</p><p class="command">wait</p></section><section class="error"><p>no metrics</p><p class="command">mkdir it</p></section>`, string(html))
	require.NotContains(t, string(html), "told once")
	html, err = Run(sampleAbout(), runs, nil, history.Recording{}, []error{nil})
	require.NoError(t, err)
	require.Contains(t, string(html), `class="outcome good">done<`)
	require.NotContains(t, string(html), `class="error"`)
}

// TestLimitBy expects that the headline is the bottleneck of most of the time, including ssh.
// Without measurements, it is the reported one.
func TestLimitBy(t *testing.T) {
	t.Parallel()
	play := func(limit string) *page {
		tape := newTape()
		tape.start("tank/a", 0)
		tape.run(3, 60*mib, transfer.LimitSource)
		tape.run(90, 60*mib, limit)
		c := tape.rec.Recording()
		return &page{Course: courseOf(&c, nil)}
	}
	p := play(connect.LimitShell)
	require.Equal(t, connect.LimitShell, p.limitBy(transfer.LimitSource))
	require.Equal(t, "network", p.Limit.Class)
	require.NotEmpty(t, p.Limit.Meaning)
	p = play("")
	require.Equal(t, transfer.LimitTarget, p.limitBy(transfer.LimitTarget))
	require.Empty(t, p.Limit.Share)
	p = play("")
	require.Empty(t, p.limitBy(""))
	p.expect(nil, sampleDoctor().Expected, true)
	require.Nil(t, p.Limit, "the expected bottleneck is not the measured one")
	p.expect(nil, sampleDoctor().Expected, false)
	require.Equal(t, "network", p.Limit.Class)
}

// TestDoctorAsText expects that doctor's page shows the same as its text.
func TestDoctorAsText(t *testing.T) {
	t.Parallel()
	r := sampleDoctor()
	r.Expected = &forecast.Expected{BytesPerSecond: 480 * mib, LimitedBy: probe.SourceRead, Ceiling: probe.SourceRead, Host: "alpha"}
	html := func() string {
		t.Helper()
		html, err := Doctor(sampleAbout(), nil, r, nil)
		require.NoError(t, err)
		return string(html)
	}
	require.Contains(t, html(), "Limited by <b>"+probe.Title(probe.SourceRead)+" on alpha</b>")
	r.Expected = &forecast.Expected{BytesPerSecond: 1e6, LimitedBy: transfer.LimitSource, Bytes: 600, Seconds: 0.01}
	require.Contains(t, html(), "for 600 B; limit: none<")
	require.NotContains(t, html(), "Limited by")
	require.NotContains(t, html(), "the narrow part")
}

// TestDeviceCovered expects that a device's page distinguishes the amount covered from the amount
// sent.
func TestDeviceCovered(t *testing.T) {
	t.Parallel()
	r, c := sampleDevice()
	r.Results[0].Data = 3 * mib
	html, err := Device(sampleAbout(), r, c)
	require.NoError(t, err)
	require.Contains(t, string(html), "<dt>Covered</dt><dd>1.8 GiB</dd>")
	require.Contains(t, string(html), "<dt>Sent</dt><dd>3.0 MiB</dd>")
}

// TestCurve expects that the curve has a colored section for each bottleneck, and that their times
// add up.
func TestCurve(t *testing.T) {
	t.Parallel()
	c := sampleCourse()
	d := courseOf(&c, nil)
	var classes []string
	for _, a := range d.Areas {
		classes = append(classes, a.Class)
	}
	require.Equal(t, []string{"source", "network", "idle", "network", "target"}, classes)
	seconds := 0.0
	for _, l := range d.Limits {
		seconds += l.seconds
	}
	require.InDelta(t, c.Length.Seconds(), seconds, 1e-6)
	require.Equal(t, "network", d.Limits[0].Name)
	require.Equal(t, []string{"stopped", "resumed"}, []string{d.Marks[0].Class, d.Marks[1].Class})
	require.Equal(t, len(c.Moved.Slices), len(d.Slices))
	p := &page{Course: d}
	require.Equal(t, transfer.LimitNetwork, p.limitBy(transfer.LimitTarget), "the bottleneck of most of the time, not of the longest stream")
	require.Equal(t, d.Limits[0].Share, p.Limit.Share)
	require.Len(t, d.Rows, 4)
	require.Len(t, d.Rows[0].Spans, 2)
	c.Marks.Dropped = 7
	html, err := Send(sampleAbout(), sampleSend(), c)
	require.NoError(t, err)
	require.Contains(t, string(html), "7 cuts and resumes in between are left out")
}

// TestDataPath expects that the data path shows how busy each part is, and marks the bottleneck.
func TestDataPath(t *testing.T) {
	t.Parallel()
	w := dataPathOf([]measurements{{stages: sampleStages(38, 12, 9, 61)}, {stages: sampleStages(20, 12, 9, 30)}}, "alpha", "beta", transfer.LimitSendBuffer, false)
	var parts []string
	for _, p := range w.Parts {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s@%s %s %v", p.Name, p.Host, p.Value, p.Narrow)))
	}
	require.Equal(t, []string{"zfs send@alpha busy 29 % false", "sending (CPU)@alpha busy 12 % false", "network@ busy 83 % true",
		"receiving (CPU)@beta busy 9 % false", "zfs receive@beta busy 46 % false"}, parts)
	require.Nil(t, dataPathOf(nil, "alpha", "beta", "", false), "nothing ran")
	require.Nil(t, sampleAbout().expectedPath(nil, nil))
	w = dataPathOf([]measurements{{stages: sampleStages(38, 12, 9, 61)}}, "alpha", "beta", connect.LimitShell, false)
	require.True(t, w.Parts[2].Narrow)
	for limit, narrow := range map[string]string{transfer.LimitNetwork: "the link, source to target", connect.LimitShell: "the link, source to target", transfer.LimitReceiverCPU: "processors",
		transfer.LimitBandwidth: "bandwidth limit", transfer.LimitTarget: "write into the target's pool"} {
		w := sampleAbout().expectedPath(sampleCeilings(), &forecast.Expected{BytesPerSecond: 50 * mib, LimitedBy: limit})
		for _, p := range w.Parts {
			require.Equal(t, p.Name == narrow, p.Narrow, "%s: %s", limit, p.Name)
		}
	}
}

func TestAxes(t *testing.T) {
	t.Parallel()
	for most, want := range map[float64]string{0: "0.2 B/s", 71 * mib: "80 MiB/s", 1010 * 1024: "1 MiB/s", 5000: "5 KiB/s", 118 * mib: "150 MiB/s", 3e12: "3 TiB/s"} {
		axis := ratesUpTo(most)
		require.Equal(t, want, axis.label(axis.top), most)
		require.GreaterOrEqual(t, axis.top, most)
	}
	for length, want := range map[time.Duration]string{
		3 * time.Second: "0,0.5 s,1 s,1.5 s,2 s,2.5 s,3 s", 40 * time.Second: "0,10 s,20 s,30 s,40 s",
		143 * time.Second: "0,30 s,1 min,1 min 30 s,2 min", 26 * time.Hour: "0,6 h,12 h,18 h,1 d", 70 * time.Hour: "0,12 h,1 d,1 d 12 h,2 d,2 d 12 h",
	} {
		var labels []string
		for _, tick := range timeTicks(length) {
			labels = append(labels, tick.Label)
		}
		require.Equal(t, want, strings.Join(labels, ","), length)
	}
}

// TestKeptCopies expects that diverged copies and orphans are listed, and counted if there are many
// hosts.
func TestKeptCopies(t *testing.T) {
	t.Parallel()
	s := sampleStatus()
	for i := range 6 {
		s.Jobs[1].Diverged = append(s.Jobs[1].Diverged, status.DivergedStatus{DivergedCopy: replicate.DivergedCopy{Target: "vault", As: fmt.Sprintf("vault/a%d.zxfer-2024-05-01T00-00-00Z", i)}})
	}
	s.Jobs[1].Orphans = []status.OrphanStatus{{Source: "rpool/lost"}}
	html, err := Status(sampleAbout(), s)
	require.NoError(t, err)
	for _, want := range []string{"vault/a4.zxfer-2024", "rpool/lost", "in all 6 renamed, 1 deleted on the source</p>"} {
		require.Contains(t, string(html), want)
	}
	require.NotContains(t, string(html), "vault/a5.zxfer")
	html, err = Hosts(sampleAbout(), &fleet.Fleet{Hosts: []*fleet.Host{{Host: "web1", State: status.OK, Jobs: []*fleet.Job{{JobStatus: s.Jobs[1]}}}}})
	require.NoError(t, err)
	require.Contains(t, string(html), "6 renamed, 1 deleted on the source")
}

// TestLackingCopies expects that a page, Nagios, the list of hosts and metrics warn of copies that lack properties of
// their source.
func TestLackingCopies(t *testing.T) {
	t.Parallel()
	s := sampleStatus()
	j := s.Jobs[1]
	require.Equal(t, status.OK, j.State)
	for i := range 6 {
		j.Lacking = append(j.Lacking, status.LackingCopy{To: "vault", Target: "v/a", Error: fmt.Sprintf("v/a%d lacks acltype=posix", i), Hint: "zfs set acltype=posix v/a"})
	}
	only := &status.Status{Jobs: []*status.JobStatus{j}}
	html, err := Status(sampleAbout(), only)
	require.NoError(t, err)
	for _, want := range []string{"warning: vault: v/a4 lacks acltype=posix", "zfs set acltype=posix v/a", "warning: 1 more copy lacks properties of the source", ">warning<"} {
		require.Contains(t, string(html), want)
	}
	require.NotContains(t, string(html), "v/a5 lacks")
	require.NotContains(t, string(html), "all on time")
	var b strings.Builder
	level, err := report.Nagios(&b, only)
	require.NoError(t, err)
	require.Equal(t, status.SeverityWarning, level)
	require.Contains(t, b.String(), j.Job+": 6 copies lack properties of the source")
	require.Contains(t, b.String(), "lacking_"+j.Job+"=6;0;;0")
	require.Contains(t, b.String(), "\nvault: v/a0 lacks acltype=posix\n")
	f := &fleet.Fleet{Hosts: []*fleet.Host{{Host: "web1", State: status.OK, Jobs: []*fleet.Job{{JobStatus: j}}}}}
	html, err = Hosts(sampleAbout(), f)
	require.NoError(t, err)
	require.Contains(t, string(html), "6 without properties of the source")
	b.Reset()
	level, err = report.NagiosHosts(&b, f)
	require.NoError(t, err)
	require.Equal(t, status.SeverityWarning, level)
}

// TestSeveritiesAgree expects that Nagios and the pages judge a job alike, also among the jobs of many hosts.
func TestSeveritiesAgree(t *testing.T) {
	t.Parallel()
	class := map[status.Severity]string{status.SeverityOK: "good", status.SeverityWarning: "warn", status.SeverityUnknown: "warn", status.SeverityCritical: "bad"}
	at, no := time.Unix(1e9, 0), false
	for name, c := range map[string]struct {
		j    status.JobStatus
		want status.Severity
	}{
		"ok":               {status.JobStatus{State: status.OK}, status.SeverityOK},
		"unknown":          {status.JobStatus{State: status.Unknown}, status.SeverityUnknown},
		"interrupted":      {status.JobStatus{State: outcome.Interrupted, Verdict: status.Verdict{Failed: true}}, status.SeverityWarning},
		"not proved":       {status.JobStatus{State: statedir.Unverified, Verdict: status.Verdict{Failed: true}}, status.SeverityWarning},
		"late":             {status.JobStatus{State: status.Late, Late: true, Verdict: status.Verdict{Lag: 5, LagWarning: 3, LagCritical: 6}}, status.SeverityWarning},
		"late twice":       {status.JobStatus{State: status.Late, Late: true, Verdict: status.Verdict{Lag: 7, LagWarning: 3, LagCritical: 6}}, status.SeverityCritical},
		"drill twice":      {status.JobStatus{State: status.Late, Late: true, Drill: &status.DrillStatus{DrillLateness: status.DrillLateness{Late: true, Age: 7, Warning: 3, Critical: 6}}}, status.SeverityCritical},
		"damaged":          {status.JobStatus{State: status.Damaged, Verdict: status.Verdict{Failed: true}}, status.SeverityCritical},
		"late and damaged": {status.JobStatus{State: status.Worst(status.Late, status.Damaged), Verdict: status.Verdict{Failed: true}, Late: true}, status.SeverityCritical},
		"refused":          {status.JobStatus{State: outcome.Refused, Verdict: status.Verdict{Failed: true}}, status.SeverityCritical},
		"pause":            {status.JobStatus{State: status.OK, WaitStatus: status.WaitStatus{Pause: &status.PauseStatus{Since: at, Forgotten: true}}}, status.SeverityWarning},
		"lacking":          {status.JobStatus{State: status.OK, LeftCopies: status.LeftCopies{Lacking: []status.LackingCopy{{To: "a"}}}}, status.SeverityWarning},
		"freeze":           {status.JobStatus{State: status.OK, Datasets: []*status.DatasetStatus{{State: status.OK, Consistent: &no}}}, status.SeverityWarning},
		"silent pool":      {status.JobStatus{State: status.OK, LastRunStatus: status.LastRunStatus{LastRun: at}, Pools: []*status.PoolStatus{{Pool: "a", Checked: at.AddDate(0, 0, -3)}}}, status.SeverityWarning},
		"pool":             {status.JobStatus{State: status.OK, LastRunStatus: status.LastRunStatus{LastRun: at}, Pools: []*status.PoolStatus{{Pool: "a", Checked: at.AddDate(0, 0, -1)}, {Pool: "b"}}}, status.SeverityOK},
		"absent disk":      {status.JobStatus{State: status.OK, LastRunStatus: status.LastRunStatus{LastRun: at}, Pools: []*status.PoolStatus{{To: "d", Pool: "a", Checked: at.AddDate(0, 0, -3)}}, WaitStatus: status.WaitStatus{Disks: []*status.DiskStatus{{To: "d"}}}}, status.SeverityOK},
	} {
		c.j.Job = "home"
		one := &status.Status{Jobs: []*status.JobStatus{&c.j}}
		hosts := &fleet.Fleet{Hosts: []*fleet.Host{{Host: "web1", State: c.j.State, Jobs: []*fleet.Job{{JobStatus: &c.j, Copies: 1}}}}}
		require.Equal(t, c.want, c.j.Severity(), name)
		require.Equal(t, c.want, one.Severity(), name)
		require.Equal(t, c.want, hosts.Severity(), name)
		require.Equal(t, c.want == status.SeverityWarning && c.j.State == status.OK, len(report.Warnings(&c.j)) > 0, name)
		for of, level := range map[string]func(io.Writer) (status.Severity, error){
			"job": func(w io.Writer) (status.Severity, error) { return report.Nagios(w, one) }, "hosts": func(w io.Writer) (status.Severity, error) { return report.NagiosHosts(w, hosts) }} {
			got, err := level(io.Discard)
			require.NoError(t, err)
			require.Equal(t, c.want, got, "%s of %s", of, name)
		}
		for of, page := range map[string]func() ([]byte, error){
			"job": func() ([]byte, error) { return Status(sampleAbout(), one) }, "hosts": func() ([]byte, error) { return Hosts(sampleAbout(), hosts) }} {
			html, err := page()
			require.NoError(t, err)
			require.Contains(t, string(html), `class="outcome `+class[c.want]+`"`, "%s of %s", of, name)
		}
	}
	silent := &fleet.Fleet{Unreachable: 1, Hosts: []*fleet.Host{{Host: "web1", State: status.Unreachable}}}
	html, err := Hosts(sampleAbout(), silent)
	require.NoError(t, err)
	require.Contains(t, string(html), `class="outcome warn">1 unreachable<`)
	got, err := report.NagiosHosts(io.Discard, silent)
	require.NoError(t, err)
	require.Equal(t, []status.Severity{status.SeverityUnknown, status.SeverityUnknown}, []status.Severity{got, silent.Severity()})
}
