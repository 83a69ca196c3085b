package report

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/status"
)

func hostsInEveryState() *fleet.Fleet {
	at := time.Date(2026, 11, 22, 18, 17, 44, 0, time.Local)
	job := func(name, state string, copies, well int) *fleet.Job {
		return &fleet.Job{JobStatus: &status.JobStatus{Job: name, State: state, LastRunStatus: status.LastRunStatus{LastRun: at}, Verdict: status.Verdict{Failed: state == outcome.Failed}, Late: state == status.Late}, Copies: copies, Well: well, Oldest: at}
	}
	failed, late := job("home", outcome.Failed, 12, 10), job("pg", status.Late, 2, 0)
	failed.Problems = []*status.Problem{{State: "failed", To: []string{"vault"}, Datasets: []string{"tank/a"}, Error: "no space | left"}, {State: "failed", Error: "more"}}
	late.Lag = 7200
	late.Datasets = []*status.DatasetStatus{{Source: "tank/pg", To: "vault", Lateness: status.Lateness{Late: true, Lag: 7200}, State: status.Late}}
	well := job("home", status.OK, 3, 3)
	well.Diverged, well.Orphans = []status.DivergedStatus{{}}, []status.OrphanStatus{{}, {}}
	return &fleet.Fleet{Schema: fleet.Schema, Late: true, Failed: true, Unreachable: 1, NotAsked: []string{"re:x-.*"}, Hosts: []*fleet.Host{
		{Host: "web2", State: outcome.Failed, Jobs: []*fleet.Job{failed, job("pg", status.OK, 1, 1)}},
		{Host: "web9\x1b[2J", State: status.Unreachable, Error: "ssh: connect to host\nConnection refused", Hint: "test the connection: ssh web9 true"},
		{Host: "db1", State: status.Late, Jobs: []*fleet.Job{late}},
		{Host: "web1", State: status.OK, Jobs: []*fleet.Job{well}},
		{Host: "web3", State: status.OK},
	}}
}

func TestHostsText(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, HostsText(&b, hostsInEveryState(), false))
	require.Equal(t, `web2      home  FAILED       failed: tank/a to vault: no space | left, 1 more, 10 of 12 copies ok, last run 2026-11-22 18:17:44
web2      pg    ok           1 of 1 copy ok, last run 2026-11-22 18:17:44
web9?[2J  -     UNREACHABLE  ssh: connect to host; Connection refused
db1       pg    LATE         late by 2 h 0 min, 0 of 2 copies ok, last run 2026-11-22 18:17:44
web1      home  ok           3 of 3 copies ok, 1 renamed, 2 deleted on the source, last run 2026-11-22 18:17:44
web3      -     ok           no job
  hint: web9?[2J: test the connection: ssh web9 true
5 hosts, 4 jobs, 14 of 18 copies ok: 1 failed, 1 unreachable, 1 late
not queried, because the job file does not name them: hosts like re:x-.*
`, b.String())
	b.Reset()
	require.NoError(t, HostsText(&b, hostsInEveryState(), true))
	require.NotRegexp(t, "(?m)^web[13]|  ok  ", b.String())
	require.Contains(t, b.String(), "5 hosts, 4 jobs, 14 of 18")
}

func TestNagiosHosts(t *testing.T) {
	t.Parallel()
	f := hostsInEveryState()
	var b bytes.Buffer
	level, err := NagiosHosts(&b, f)
	require.NoError(t, err)
	require.Equal(t, status.SeverityCritical, level)
	require.Equal(t, `ZXFER CRITICAL: web2 home: failed: tank/a to vault: no space / left, 1 more; db1 pg: 1 of 2 datasets late by 2 h 0 min; web9?[2J: unreachable: ssh: connect to host; Connection refused (2 of 4 jobs on 5 hosts, 1 of 5 hosts did not answer) | hosts=5;;;0 unreachable=1;;;0 late=1;;;0 failed=1;;;0 copies=18;;;0 aside=1;;;0 gone=2;;;0
web2 home: CRITICAL
failed: tank/a to vault: no space / left
failed: more
db1 pg: WARNING
late by 2 h 0 min: tank/pg to vault
web9?[2J: UNKNOWN
unreachable: ssh: connect to host; Connection refused
`, b.String())

	b.Reset()
	f.Hosts = f.Hosts[1:2]
	level, err = NagiosHosts(&b, f)
	require.NoError(t, err)
	require.Equal(t, status.SeverityUnknown, level)
	require.Contains(t, b.String(), "Connection refused (1 of 1 host did not answer) |")

	b.Reset()
	level, err = NagiosHosts(&b, &fleet.Fleet{Hosts: hostsInEveryState().Hosts[3:]})
	require.NoError(t, err)
	require.Equal(t, status.SeverityOK, level)
	require.Equal(t, "ZXFER OK: 2 hosts, 1 job, 3 copies, none late or failed | hosts=2;;;0 unreachable=0;;;0 late=0;;;0 failed=0;;;0 copies=3;;;0 aside=1;;;0 gone=2;;;0\n", b.String())
}
