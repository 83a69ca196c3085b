package importer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/transport"
)

// jobsOf imports one text and parses the completed job file.
func jobsOf(t *testing.T, kind Kind, text string) (*replicate.File, *Result) {
	t.Helper()
	r, err := Import([]Input{{Name: "x", Kind: kind, Text: []byte(text)}}, Options{Target: "vault"})
	require.NoError(t, err)
	requireAccepted(t, r)
	if len(r.Jobs) == 0 {
		return &replicate.File{}, r
	}
	f, err := jobfile.Parse("x", []byte(uncommented(r.Text)))
	require.NoError(t, err)
	return f, r
}

// numbers returns how many of each kind sanoid keeps.
func numbers(t *testing.T, g *retention.Grid) *retention.Grid {
	t.Helper()
	if g == nil {
		return nil
	}
	out := &retention.Grid{}
	for _, a := range g.Also {
		to := map[string]*int{"autosnap_*_frequently": &out.Last, "autosnap_*_hourly": &out.Hourly, "autosnap_*_daily": &out.Daily,
			"autosnap_*_weekly": &out.Weekly, "autosnap_*_monthly": &out.Monthly, "autosnap_*_yearly": &out.Yearly}[a.Names[0]]
		*to = a.Last
	}
	require.True(t, g.Last >= out.Last && g.Hourly >= out.Hourly && g.Daily >= out.Daily && g.Weekly >= out.Weekly && g.Monthly >= out.Monthly && g.Yearly >= out.Yearly)
	return out
}

func TestSanoidPolicies(t *testing.T) {
	t.Parallel()
	defaults := &retention.Grid{Hourly: 48, Daily: 90, Monthly: 6}
	tests := []struct {
		name, text string
		want       []replicate.Job // Source, Recursive, Exclude, Schedule, Retention in sanoid's numbers
	}{
		{"defaults", "[tank/a]\n", []replicate.Job{{Source: "tank/a", Schedule: "hourly", Retention: defaults}}},
		{"own template_default", "[tank/a]\n[template_default]\nhourly=5\n", []replicate.Job{{Source: "tank/a", Schedule: "hourly", Retention: &retention.Grid{Hourly: 5, Daily: 90, Monthly: 6}}}},
		{"no autoprune", "[tank/a]\nautoprune=no\n", []replicate.Job{{Source: "tank/a", Schedule: "hourly"}}},
		{"pruning is deferred", "[tank/a]\nprune_defer=60\n", []replicate.Job{{Source: "tank/a", Schedule: "hourly"}}},
		{"no autosnap", "[tank/a]\nautosnap=no\n", []replicate.Job{{Source: "tank/a", Schedule: "hourly", Retention: defaults}}},
		{"no autosnap below", "[tank]\nrecursive=yes\n[tank/a]\nautosnap=no\n", []replicate.Job{
			{Source: "tank", Recursive: true, Selection: replicate.Selection{Exclude: []string{"/a"}}, Schedule: "hourly", Retention: defaults},
			{Source: "tank/a", Schedule: "hourly", Retention: defaults}}},
		{"autosnap without datasets below", "[tank]\nrecursive=yes\nautosnap=no\n[tank/a]\nautosnap=yes\nrecursive=yes\n[tank/c]\nautoprune=no\n", []replicate.Job{
			{Source: "tank", Recursive: true, Selection: replicate.Selection{Exclude: []string{"/a", "/c"}}, Schedule: "hourly", Retention: defaults},
			{Source: "tank/a", Recursive: true, Schedule: "hourly", Retention: defaults}}},
		{"neither", "[tank/a]\nautosnap=no\nautoprune=no\n", nil},
		{"nothing to take", "[tank/a]\nhourly=0\ndaily=0\nmonthly=0\n", nil},
		{"at a minute", "[tank/a]\nhourly_min=7\n", []replicate.Job{{Source: "tank/a", Schedule: "*:07", Retention: defaults}}},
		{"weekly", "[tank/a]\nhourly=0\ndaily=0\nmonthly=0\nweekly=4\nweekly_wday=7\n", []replicate.Job{{Source: "tank/a", Schedule: "Sun 23:30", Retention: &retention.Grid{Weekly: 4}}}},
		{"monthly", "[tank/a]\nhourly=0\ndaily=0\nmonthly_mday=2\n", []replicate.Job{{Source: "tank/a", Schedule: "*-*-02 00:00", Retention: &retention.Grid{Monthly: 6}}}},
		{"yearly", "[tank/a]\nhourly=0\ndaily=0\nmonthly=0\nyearly=2\n", []replicate.Job{{Source: "tank/a", Schedule: "*-01-01 00:00", Retention: &retention.Grid{Yearly: 2}}}},
		{"path", "[anything]\npath = tank/a\n", []replicate.Job{{Source: "tank/a", Schedule: "hourly", Retention: defaults}}},
		{"an exception to recursive = zfs", "[tank]\nrecursive=zfs\n[tank/a]\nhourly=1\n", []replicate.Job{{Source: "tank", Recursive: true, Schedule: "hourly", Retention: defaults}}},
		{"an exception before the rule", "[tank/a]\nhourly=1\n[tank]\nrecursive=yes\n", []replicate.Job{{Source: "tank", Recursive: true, Schedule: "hourly", Retention: defaults}}},
		{"an exception without datasets below", "[tank]\nrecursive=yes\n[tank/a]\nhourly=1\nskip_children=yes\n", []replicate.Job{
			{Source: "tank", Recursive: true, Selection: replicate.Selection{Exclude: []string{"/a"}}, Schedule: "hourly", Retention: defaults},
			{Source: "tank/a", Schedule: "hourly", Retention: &retention.Grid{Hourly: 1, Daily: 90, Monthly: 6}}}},
		{"nested", "[tank]\nrecursive=yes\n[tank/a]\nhourly=1\nrecursive=yes\n[tank/a/b]\nautosnap=no\nautoprune=no\n", []replicate.Job{
			{Source: "tank", Recursive: true, Selection: replicate.Selection{Exclude: []string{"/a"}}, Schedule: "hourly", Retention: defaults},
			{Source: "tank/a", Recursive: true, Selection: replicate.Selection{Exclude: []string{"/b"}}, Schedule: "hourly", Retention: &retention.Grid{Hourly: 1, Daily: 90, Monthly: 6}}}},
		{"a section in two parts", "[tank/a]\nhourly=1\n[tank/b]\n[tank/a]\ndaily=2\n", []replicate.Job{
			{Source: "tank/a", Schedule: "hourly", Retention: &retention.Grid{Hourly: 1, Daily: 2, Monthly: 6}},
			{Source: "tank/b", Schedule: "hourly", Retention: defaults}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, r := jobsOf(t, Sanoid, tt.text)
			var got []replicate.Job
			for _, j := range f.Jobs {
				require.Equal(t, []string{"autosnap_*ly"}, j.Snapshots.Adopt)
				if j.Snapshots.Take == "" {
					require.Empty(t, j.Targets, "received snapshots are not sent on")
				} else {
					require.Equal(t, "vault", j.Targets[0].To)
				}
				got = append(got, replicate.Job{Source: j.Source, Recursive: j.Recursive, Selection: j.Selection, Schedule: j.Schedule, Retention: numbers(t, j.Retention)})
			}
			require.Equal(t, tt.want, got)
			require.NotEmpty(t, r.Left)
		})
	}
}

func TestSyncoidCommands(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, line   string
		source, to   string
		schedule     string
		recursive    bool
		wantTransfer replicate.Transfer
	}{
		{"alone", "syncoid tank/a host:pool/a", "tank/a", "host:pool/a", "", false, replicate.Transfer{}},
		{"pull", "syncoid root@host:tank/a pool/a", "root@host:tank/a", "pool/a", "", false, replicate.Transfer{}},
		{"no user", "syncoid @host:tank/a pool/a", "host:tank/a", "pool/a", "", false, replicate.Transfer{}},
		{"system crontab", "0 3 * * * root /usr/sbin/syncoid -r tank/a host:pool/a", "tank/a", "host:pool/a", "*-*-* 3:0:00", true, replicate.Transfer{}},
		{"own crontab", "@hourly syncoid --recursive tank/a host:pool/a", "tank/a", "host:pool/a", "hourly", true, replicate.Transfer{}},
		{"sudo and redirections", "sudo -n syncoid tank/a host:pool/a >>/var/log/x 2>&1 | logger", "tank/a", "host:pool/a", "", false, replicate.Transfer{}},
		{"unit", "ExecStart=-/usr/sbin/syncoid tank/a host:pool/a", "tank/a", "host:pool/a", "", false, replicate.Transfer{}},
		{"flags after names", "syncoid tank/a host:pool/a -r", "tank/a", "host:pool/a", "", true, replicate.Transfer{}},
		{"quotes", `syncoid --sshoption="ProxyJump=a b" 'tank/a b' host:pool/a`, "tank/a b", "host:pool/a", "", false, replicate.Transfer{Settings: transport.Settings{RSH: "ssh -o 'ProxyJump=a b'"}}},
		{"a dataset named like the program", "flock /run/syncoid syncoid tank/a host:pool/syncoid", "tank/a", "host:pool/syncoid", "", false, replicate.Transfer{}},
		{"limits", "syncoid --source-bwlimit 5m --target-bwlimit=1k tank/a host:pool/a", "tank/a", "host:pool/a", "", false, replicate.Transfer{Settings: transport.Settings{Bandwidth: 1024}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, _ := jobsOf(t, Syncoid, tt.line+"\n")
			require.Len(t, f.Jobs, 1)
			j := f.Jobs[0]
			require.Equal(t, tt.source, j.Source)
			require.Equal(t, tt.to, j.Targets[0].To)
			require.Equal(t, tt.schedule, j.Schedule)
			require.Equal(t, tt.recursive, j.Recursive)
			require.Equal(t, tt.wantTransfer, j.Transfer)
			require.Nil(t, j.Retention, "it would affect snapshots that syncoid keeps")
			require.Nil(t, j.Targets[0].Retention)
		})
	}
}

// TestEverySyncoidFlagIsHandled expects that every flag of syncoid is converted or reported.
func TestEverySyncoidFlagIsHandled(t *testing.T) {
	t.Parallel()
	silent := []string{"monitor-version", "dumpsnaps", "debug", "quiet", "help", "version", "pv-options", // flags that change only the output
		"recursive", "no-stream", "no-sync-snap", "create-bookmark", "use-hold", "preserve-recordsize", "no-rollback", // flags that the line has already, or that the job covers
		"preserve-properties", "sshconfig", "sshkey", "sshport", "sshoption", "sshcipher", "mbuffer-size", "source-bwlimit", "target-bwlimit", "skip-parent"}
	values := map[string]string{"source-bwlimit": "1M", "target-bwlimit": "1M", "mbuffer-size": "1M", "sendoptions": "D", "recvoptions": "M", "exclude": "(?=x)", "exclude-datasets": "(?=x)", "include-snaps": "(?=x)"}
	_, plain := jobsOf(t, Syncoid, "syncoid -r --no-rollback tank/a host:pool/a")
	for name, valued := range syncoidFlags() {
		line := "syncoid -r --no-rollback --" + name
		if valued {
			if line += "=any"; values[name] != "" {
				line = "syncoid -r --no-rollback --" + name + "=" + values[name]
			}
		}
		f, r := jobsOf(t, Syncoid, line+" tank/a host:pool/a")
		answered := len(r.Left) > len(plain.Left)
		for _, s := range silent {
			answered = answered || s == name
		}
		require.True(t, answered, name)
		require.Len(t, f.Jobs, 1)
	}
}
