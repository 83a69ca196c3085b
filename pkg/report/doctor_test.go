package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
)

// diagnosed returns a report of a transfer with a faulty host.
func diagnosed() *doctor.Report {
	r := &doctor.Report{Schema: doctor.Schema, Expected: expectation(), Ceilings: measuredCeilings(), Findings: []finding.Finding{
		{ID: "platform", Host: "local", Severity: finding.OK, Summary: "Debian GNU/Linux 13, kernel 6.12"},
		{ID: "pyzfs", Host: "backup1", Severity: finding.Note, Summary: "pyzfs is not installed", Evidence: "python3", Remedy: "apt install python3-pyzfs"},
		{ID: "fletcher", Host: "backup1", Severity: finding.Warn, Summary: "fletcher_4 uses scalar at 3520 MB/s, but sse2 reaches 15017 MB/s",
			Evidence: "/sys/module/zfs/parameters/zfs_fletcher_4_impl: fastest [scalar]", Remedy: "echo fastest > /sys/module/zfs/parameters/zfs_fletcher_4_impl"},
	}}
	r.Expected.Unmeasured = []string{"target"}
	r.Advice = &forecast.Advice{Why: "the link"}
	return r
}

func doctorText(t *testing.T, r *doctor.Report, o DoctorOptions) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, DoctorText(&b, r, o))
	return b.String()
}

func TestDoctorText(t *testing.T) {
	t.Parallel()
	golden(t, "doctor.txt", doctorText(t, diagnosed(), DoctorOptions{}))
	golden(t, "doctor-verbose.txt", doctorText(t, diagnosed(), DoctorOptions{Verbose: true}))
	plain, colored := doctorText(t, diagnosed(), DoctorOptions{}), doctorText(t, diagnosed(), DoctorOptions{Color: true})
	require.NotContains(t, plain, "\x1b")
	require.Contains(t, colored, "  \x1b[33mwarn\x1b[0m  fletcher  ")
	broken := doctorText(t, diagnosed(), DoctorOptions{Columns: 60, Color: true})
	require.Contains(t, broken, "fletcher_4 uses scalar at 3520 MB/s, but\n                  sse2 reaches 15017 MB/s\n")
	require.Contains(t, broken, "do:   echo fastest > /sys/module/zfs/parameters/zfs_fletcher_4_impl\n", "a command is pasted")
	require.Equal(t, plain, strings.NewReplacer("\x1b[33m", "", "\x1b[0m", "").Replace(colored), "color adds nothing else")
}

// TestDoctorNamesOneLimit expects that the sentence and the diagram name the same bottleneck, even
// if it is not a single part.
func TestDoctorNamesOneLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		expected forecast.Expected
		sentence string
		arrow    string
	}{
		"a part": {forecast.Expected{BytesPerSecond: 110 << 20, LimitedBy: transfer.LimitNetwork, Host: "local", Ceiling: "link"},
			"limit   network: link local to backup1, tls x 1\n", "link local to backup1, tls x 1"},
		"the other end of the link": {forecast.Expected{BytesPerSecond: 110 << 20, LimitedBy: transfer.LimitReceiverCPU, Host: "backup1", Ceiling: "link"},
			"limit   receiver cpu: link local to backup1, tls x 1\n", "link local to backup1, tls x 1"},
		"a disk": {forecast.Expected{BytesPerSecond: 900 << 20, LimitedBy: transfer.LimitSource, Host: "local", Ceiling: probe.SourceRead},
			"limit   source: zfs send of the source on local\n", "zfs send of the source"},
		"a shared resource": {forecast.Expected{BytesPerSecond: 90 << 20, LimitedBy: transfer.LimitSenderCPU, Host: "local"},
			"limit   sender cpu: processors shared by all parts on local", "processors shared by all parts"},
		"the requested limit": {forecast.Expected{BytesPerSecond: 9 << 20, LimitedBy: transfer.LimitBandwidth},
			"limit   bandwidth limit: the requested limit\nchange", "the requested limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := diagnosed()
			r.Expected = &c.expected
			text := doctorText(t, r, DoctorOptions{})
			require.Contains(t, text, c.sentence)
			var arrows []string
			for l := range strings.Lines(text) {
				if strings.HasPrefix(l, "-> ") {
					arrows = append(arrows, l)
				}
			}
			require.Len(t, arrows, 1, text)
			require.Contains(t, arrows[0], "  "+c.arrow+"  ")
		})
	}
}

func TestDoctorAnswers(t *testing.T) {
	t.Parallel()
	r := diagnosed()
	r.Advice = &forecast.Advice{ID: "fletcher", Host: "backup1", Remedy: r.Findings[2].Remedy, Why: r.Findings[2].Summary}
	require.Contains(t, doctorText(t, r, DoctorOptions{}), "change  on backup1: echo fastest > /sys/module/zfs/parameters/zfs_fletcher_4_impl (fletcher, below)\n")
	r.Findings[2].Severity = finding.Fail
	require.True(t, strings.HasPrefix(doctorText(t, r, DoctorOptions{}), "expect  a refusal: 1 check failed; then at most 110 MiB/s"), "an impossible rate is not an answer")
	r.Expected, r.Findings[2].Severity = &forecast.Expected{BytesPerSecond: 1e6, LimitedBy: transfer.LimitSource, Bytes: 600, Seconds: 0.01}, finding.OK
	require.True(t, strings.HasPrefix(doctorText(t, r, DoctorOptions{}), "expect  600 B in less than a second\nlimit   none\n"))
	r.Expected, r.Findings[2].Severity = nil, finding.Fail
	require.True(t, strings.HasPrefix(doctorText(t, r, DoctorOptions{}), "expect  a refusal: 1 check failed\nchange  on backup1"))
	require.True(t, strings.HasPrefix(doctorText(t, &doctor.Report{Advice: &forecast.Advice{Why: "no check found fault"}}, DoctorOptions{}),
		"expect  unknown: nothing was measured\nchange  nothing: no check found fault\n"))
}

// TestDoctorGrant expects a summary of the checks that a restricted key forbids.
func TestDoctorGrant(t *testing.T) {
	t.Parallel()
	r := diagnosed()
	r.Findings = append(r.Findings, finding.Finding{ID: "mounts", Host: "backup1", Severity: finding.Note, Summary: "not checked: the agent's policy forbids it"})
	r.Grants = []doctor.Grant{{Host: "backup1", Permissions: "--allow receive=vault/a --append-only", Permitted: []string{"space", "resume"}, Forbidden: []string{"mounts", "memory", "link"}}}
	r.Expected = nil
	r.Ceilings[0].BytesPerSecond, r.Ceilings[0].Skipped = 0, "forbidden"
	r.Ceilings = append(r.Ceilings, probe.Ceiling{ID: probe.Memory, Host: "backup1", Title: "memory copy", Skipped: "forbidden"})
	for _, verbose := range []bool{false, true} {
		text := doctorText(t, r, DoctorOptions{Verbose: verbose})
		require.Contains(t, text, `backup1: this key is restricted
  permits   --allow receive=vault/a --append-only
  seen      versions, user, permitted datasets, space, resume
  hides     mounts, memory, link`)
		require.NotContains(t, text, "not checked")
		require.NotContains(t, text, "memory copy")
		require.Contains(t, text, "\n   local    link local to backup1, tls x 1  not for this key\n")
	}
}

// TestEager expects that activities appear immediately on a terminal, and occasionally elsewhere.
func TestEager(t *testing.T) {
	t.Parallel()
	measure := func(o Options, c *clock) string {
		var b bytes.Buffer
		o.Stderr, o.Now, o.Eager = &b, c.Now, true
		text := NewText(o)
		for i := range 130 {
			done := text.Activity(fmt.Sprintf("measuring %d of 130: memory copy on local", i+1))
			c.add(500 * time.Millisecond)
			text.Tick()
			c.add(500 * time.Millisecond)
			done()
		}
		text.EndJob()
		return b.String()
	}
	terminal := measure(Options{Size: func() (int, int) { return 80, 24 }}, newClock())
	require.True(t, strings.HasPrefix(terminal, "measuring 1 of 130: memory copy on local\n"))
	require.Contains(t, terminal, "\r\x1b[1A\x1b[Jmeasuring 130 of 130: memory copy on local\n")
	require.True(t, strings.HasSuffix(terminal, "\r\x1b[1A\x1b[J"), "nothing of it remains")
	require.Equal(t, `measuring 1 of 130: memory copy on local
measuring 61 of 130: memory copy on local
measuring 121 of 130: memory copy on local
`, measure(Options{}, newClock()))
	require.Empty(t, measure(Options{Quiet: true}, newClock()))
}
