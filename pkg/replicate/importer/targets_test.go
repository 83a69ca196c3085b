package importer

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/jobfile"
)

// TestImportedTargets expects one command for the existing copies of each host, and for each target a
// retention or a comment and an entry.
func TestImportedTargets(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		in   Input
		o    Options
		want []string // commands
	}{
		"sanoid with a target": {Input{Name: "sanoid.conf", Text: []byte("[tank/home]\nrecursive = yes\n[tank/www]\n")}, Options{Target: "root@backup1:vault/web1"},
			[]string{"ssh root@backup1 zfs set readonly=on canmount=noauto vault/web1/home vault/web1/www"}},
		"syncoid": {Input{Name: "cron", Text: []byte("syncoid tank/a root@b1:v/a\nsyncoid --no-rollback tank/c v/c\nsyncoid --sshport=2222 tank/b b2:v/b\n")}, Options{},
			[]string{"ssh root@b1 zfs set readonly=on canmount=noauto v/a", ": zfs set readonly=on canmount=noauto v/c", "ssh -p 2222 b2 zfs set readonly=on canmount=noauto v/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := Import([]Input{tt.in}, tt.o)
			require.NoError(t, err)
			var copies, retention []string
			for _, e := range r.Left {
				switch e.What {
				case "existing copies":
					copies = append(copies, e.Do)
				case "retention of the target":
					retention = append(retention, e.Do)
				}
			}
			require.Len(t, copies, len(tt.want))
			for i, want := range tt.want {
				require.True(t, strings.HasSuffix(copies[i], want), copies[i])
			}
			require.Len(t, retention, 1)
			require.Equal(t, len(r.Jobs), strings.Count(r.Text, "\n#[job.target.retention]\n"))
			uncommented := strings.NewReplacer("#[job.target", "[job.target", "#hourly", "hourly", "#daily", "daily", "#monthly", "monthly").Replace(r.Text)
			f, err := jobfile.Parse("jobs.toml", []byte(uncommented))
			require.NoError(t, err)
			for _, j := range f.Jobs {
				require.NotNil(t, j.Targets[0].Retention)
				require.Equal(t, 90, j.Targets[0].Retention.Daily)
			}
		})
	}
}

// TestTargetConf expects the retention of the copies in the sanoid.conf of the backup host, and none if
// sanoid keeps other snapshots there than the job would.
func TestTargetConf(t *testing.T) {
	t.Parallel()
	source := Input{Name: "sanoid.conf", Text: []byte("[tank/home]\nrecursive = yes\n")}
	for conf, want := range map[string]string{
		"[vault/web1]\nrecursive = yes\nautosnap = no\nhourly = 0\ndaily = 30\nmonthly = 0\n":                             "",
		"[vault/web1/home]\nautosnap = no\ndaily = 30\n":                                                                  "treats descendants of vault/web1/home differently",
		"[vault/web1]\nrecursive = yes\nautosnap = no\ndaily = 30\n[vault/web1/home/alice]\nautosnap = no\ndaily = 365\n": "treats descendants of vault/web1/home differently",
		"[vault/other]\nrecursive = yes\n":                                                                                "it has no section for vault/web1/home",
		"[vault/web1]\nrecursive = yes\nautoprune = no\n":                                                                 "it does not prune vault/web1/home",
	} {
		r, err := Import([]Input{source}, Options{Target: "root@b:vault/web1", TargetConf: &Input{Name: "backup.conf", Text: []byte(conf)}})
		require.NoError(t, err)
		f, err := jobfile.Parse("jobs.toml", []byte(r.Text))
		require.NoError(t, err)
		g := f.Jobs[0].Targets[0].Retention
		if want == "" {
			require.NotNil(t, g, r.Text)
			require.NotContains(t, r.Text, "#[job.target.retention]")
			require.Equal(t, "autosnap_*_daily", g.Also[0].Names[0])
			continue
		}
		require.Nil(t, g)
		require.Contains(t, r.Text, want)
	}
}
