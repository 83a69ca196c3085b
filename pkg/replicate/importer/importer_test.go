package importer

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/testenv"
)

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	testenv.Golden(t, filepath.Join("testdata", name), got)
}

// fixtures returns files of testdata/other-tools, named by their base names.
func fixtures(t testing.TB, names ...string) []Input {
	var out []Input
	for _, n := range names {
		text, err := os.ReadFile(testenv.Data(t, "other-tools", n))
		require.NoError(t, err)
		out = append(out, Input{Name: n, Text: text})
	}
	return out
}

// requireAccepted requires that replicate accepts an imported file after the placeholders were
// completed, and refuses it before only because of them.
func requireAccepted(t *testing.T, r *Result) {
	t.Helper()
	if len(r.Jobs) == 0 {
		return
	}
	_, err := jobfile.Parse("imported", []byte(r.Text))
	if err != nil {
		for l := range strings.SplitSeq(err.Error(), "\n") {
			missing := strings.Contains(l, "source is missing") || strings.HasSuffix(l, ": to is missing")
			require.True(t, missing, "%s\n%s", err, r.Text)
		}
		require.NotEmpty(t, r.Left, r.Text)
	}
	f, err := jobfile.Parse("filled", []byte(uncommented(r.Text)))
	require.NoError(t, err, r.Text)
	require.Len(t, f.Jobs, len(r.Jobs))
	for i, name := range r.Jobs {
		require.Equal(t, name, f.Jobs[i].Name)
	}
}

// uncommented uncomments sources and targets, as a user does.
func uncommented(text string) string {
	return strings.NewReplacer("\n#source = ", "\nsource = ", "\n#to = ", "\nto = ").Replace(text)
}

func TestGolden(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		files  []string
		target string
		jobs   int
	}{
		{"sanoid-readme", []string{"sanoid-readme.conf"}, "", 3},
		{"sanoid-readme-target", []string{"sanoid-readme.conf"}, "root@vault:pool/web1", 3},
		{"sanoid-templates", []string{"sanoid-templates.conf"}, "", 7},
		{"sanoid-scripts", []string{"sanoid-scripts.conf"}, "vault", 1},
		{"sanoid-backuphost", []string{"sanoid-backuphost.conf", "syncoid-backuphost.txt"}, "", 4},
		{"syncoid-readme", []string{"syncoid-readme.txt"}, "", 3},
		{"syncoid-crontab", []string{"syncoid.crontab"}, "", 3},
		{"syncoid-flags", []string{"syncoid-flags.txt"}, "", 3},
		{"zrepl-external-disk", []string{"zrepl-external-disk.yml"}, "", 2},
		{"zrepl-push", []string{"zrepl-push.yml"}, "", 1},
		{"zrepl-push-sink", []string{"zrepl-push.yml", "zrepl-sink.yml"}, "", 1},
		{"zrepl-sink", []string{"zrepl-sink.yml"}, "", 0},
		{"zrepl-fanout-source", []string{"zrepl-fanout-source.yml"}, "", 1},
		{"zrepl-fanout-target", []string{"zrepl-fanout-target.yml"}, "", 1},
		{"zrepl-fanout", []string{"zrepl-fanout-target.yml", "zrepl-fanout-source.yml"}, "", 2},
		{"zrepl-pull-ssh", []string{"zrepl-pull-ssh.yml"}, "", 1},
		{"zrepl-local", []string{"zrepl-local.yml"}, "", 1},
		{"zrepl-bandwidth", []string{"zrepl-bandwidth.yml"}, "", 1},
		{"zrepl-snap-cron", []string{"zrepl-snap-cron.yml"}, "", 1},
		{"zrepl-options", []string{"zrepl-options.yml"}, "", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := Import(fixtures(t, tt.files...), Options{Target: tt.target, Now: time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)})
			require.NoError(t, err)
			require.Len(t, r.Jobs, tt.jobs)
			requireAccepted(t, r)
			var b strings.Builder
			b.WriteString(r.Text + "\n---- report ----\n")
			for _, e := range r.Left {
				fmt.Fprintf(&b, "%s %s: %s: %s\n", e.Where, e.Job, e.What, e.Do)
			}
			golden(t, tt.name+".golden", b.String())
		})
	}
}

func TestDetect(t *testing.T) {
	t.Parallel()
	for _, in := range fixtures(t, "sanoid-readme.conf", "sanoid-templates.conf", "syncoid.crontab", "syncoid-readme.txt", "zrepl-options.yml", "zrepl-push.yml") {
		want := Kind(in.Name[:strings.IndexAny(in.Name, "-.")])
		require.Equal(t, want, Detect(in.Name, in.Text), in.Name)
		require.Equal(t, want, Detect("stdin", in.Text), "%s by its content", in.Name)
	}
	require.Empty(t, Detect("stdin", []byte("[[job]]\nname = 'a'\n[job.snapshots]\n")))
	require.Empty(t, Detect("stdin", nil))
}

// TestPrintedCommandsAreQuoted covers names that a shell would split.
func TestPrintedCommandsAreQuoted(t *testing.T) {
	t.Parallel()
	r, err := Import([]Input{{Name: "c", Text: []byte("syncoid -r 'tank/b c' 'host:pool/d e'\n")}}, Options{})
	require.NoError(t, err)
	said := ""
	for _, e := range r.Left {
		said += e.Do + "\n"
	}
	require.Contains(t, said, "zfs set syncoid:sync=true 'tank/b c',")
	require.Contains(t, said, `ssh host 'zfs set readonly=on canmount=noauto '\''pool/d e'\'''`)
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, file, text string
		want             []string // in text or hint
	}{
		{"unknown", "x", "hello\n", []string{"x: neither", "--from sanoid"}},
		{"nothing", "sanoid.conf", "# empty\n", []string{"nothing to import"}},
		{"no section", "sanoid.conf", "\nhourly = 3\n", []string{"sanoid.conf:2", "hourly", "[POOL/DATASET]"}},
		{"open section", "sanoid.conf", "[tank/a\n", []string{"sanoid.conf:1"}},
		{"no setting", "sanoid.conf", "[tank/a]\nhourly\n", []string{"sanoid.conf:2", "KEY = VALUE"}},
		{"not a number", "sanoid.conf", "[tank/a]\nhourly = some\n", []string{"sanoid.conf:2", "some"}},
		{"no template", "sanoid.conf", "[tank/a]\nuse_template = prod\n", []string{"sanoid.conf:2", "[template_prod]"}},
		{"no dataset", "sanoid.conf", "[tank//a b@c]\n", []string{"sanoid.conf:1"}},
		{"yaml", "zrepl.yml", "jobs:\n- name: 'a\n", []string{"zrepl.yml:"}},
		{"no jobs", "zrepl.yml", "global: {}\n", []string{"no jobs"}},
		{"job type", "zrepl.yml", "jobs:\n- name: a\n  type: pusch\n", []string{"zrepl.yml:2", "pusch", "push, pull"}},
		{"grid", "zrepl.yml", "jobs:\n- name: a\n  type: snap\n  filesystems: {\"tank<\": true}\n  snapshotting: {type: manual}\n  pruning:\n    keep:\n    - type: grid\n      grid: 1x1y\n", []string{"zrepl.yml:8", "1y"}},
		{"connect", "zrepl.yml", "jobs:\n- name: a\n  type: push\n  connect: {type: quic}\n  filesystems: {\"tank<\": true}\n", []string{"zrepl.yml:2", "quic"}},
		{"interval", "zrepl.yml", "jobs:\n- name: a\n  type: snap\n  filesystems: {tank: true}\n  snapshotting: {type: periodic, interval: soon}\n", []string{"zrepl.yml:2", "soon"}},
		{"list", "zrepl.yml", "jobs:\n  a: b\n", []string{"zrepl.yml:2", "cannot unmarshal"}},
		{"flag", "c", "syncoid --fast a b\n", []string{"c:1", "--fast"}},
		{"names", "c", "\nsyncoid -r a\n", []string{"c:2", "source and a target"}},
		{"quotes", "c", "syncoid 'a b\n", []string{"c:1"}},
		{"variable", "c", "syncoid $SRC host:pool/a\n", []string{"c:1", "$SRC"}},
		{"limit", "c", "syncoid --source-bwlimit=much a b\n", []string{"c:1", "much"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Import([]Input{{Name: tt.file, Text: []byte(tt.text)}}, Options{})
			require.Error(t, err)
			require.Equal(t, fault.Usage, fault.ClassOf(err))
			for _, w := range tt.want {
				require.Contains(t, err.Error()+"\n"+fault.HintOf(err), w)
			}
		})
	}
	_, err := Import(fixtures(t, "sanoid-readme.conf"), Options{Target: "a@b@c:d"})
	require.ErrorContains(t, err, "--target")
	_, err = Import([]Input{{Name: "x", Kind: "rsync"}}, Options{})
	require.ErrorContains(t, err, "rsync")
}

// packaged returns a file of Debian's package sanoid, unpacked or installed.
func packaged(t *testing.T, name string) (file string, text []byte) {
	t.Helper()
	file = filepath.Join(os.Getenv("TEST_SANOID"), name)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Skipf("the package sanoid is not installed here: %v", err)
	}
	return file, text
}

// TestPackagedSanoid imports the example in the package of sanoid.
func TestPackagedSanoid(t *testing.T) {
	t.Parallel()
	file, text := packaged(t, "/usr/share/doc/sanoid/examples/sanoid.conf")
	r, err := Import([]Input{{Name: file, Text: text}}, Options{Target: "root@vault:pool"})
	require.NoError(t, err)
	require.Equal(t, []string{"parent2"}, r.Jobs)
	f, err := jobfile.Parse(file, []byte(r.Text))
	require.NoError(t, err)
	require.Equal(t, "zpoolname/parent2", f.Jobs[0].Source)
	require.True(t, f.Jobs[0].Recursive)
	day := calendar.Duration(24 * time.Hour)
	require.Equal(t, &retention.Grid{Hourly: 38, Daily: 32, Monthly: 6, Also: []retention.Also{
		{Names: []string{"autosnap_*_hourly"}, Last: 36, Age: 36 * day / 24},
		{Names: []string{"autosnap_*_daily"}, Last: 30, Age: 30 * day},
		{Names: []string{"autosnap_*_monthly"}, Last: 3, Age: 93 * day},
	}}, f.Jobs[0].Retention)
}

// TestPackagedDefaults compares the importer's defaults with the file of sanoid.
func TestPackagedDefaults(t *testing.T) {
	t.Parallel()
	file, text := packaged(t, "/usr/share/sanoid/sanoid.defaults.conf")
	sections, err := parseINI(file, string(text))
	require.NoError(t, err)
	for _, sec := range sections {
		if sec.name != "template_default" {
			continue
		}
		for _, k := range sec.keys {
			want, known := sanoidDefaults()[k.key]
			if !known {
				continue
			}
			got, err := strconv.Atoi(k.value)
			if err != nil && parseBool(k.value) {
				got = 1
			}
			require.Equal(t, got, want, "%s: %s", k.where, k.key)
		}
		// An unknown key would be in the report.
		for _, k := range sec.keys {
			require.NotContains(t, (&policy{section: sec}).advice(k), "not known", k.key)
		}
		return
	}
	t.Fatal("it has no [template_default]")
}

// TestPackagedSyncoid reads the list of flags from syncoid itself.
func TestPackagedSyncoid(t *testing.T) {
	t.Parallel()
	_, text := packaged(t, "/usr/sbin/syncoid")
	list := regexp.MustCompile(`(?s)GetOptions\(.*?\) *\n* *or`).FindString(string(text))
	flags := regexp.MustCompile(`"([a-z-]+)(?:\|[a-z])?(=[si]@?)?"`).FindAllStringSubmatch(list, -1)
	require.Greater(t, len(flags), 20)
	for _, f := range flags {
		valued, known := syncoidFlags()[f[1]]
		require.True(t, known, f[1])
		require.Equal(t, f[2] != "", valued, f[1])
	}
}

// FuzzImport expects that no text makes an importer panic, that errors have class usage, and that
// replicate accepts the result.
func FuzzImport(f *testing.F) {
	kinds := []Kind{Sanoid, Syncoid, Zrepl}
	for i, kind := range kinds {
		files, err := filepath.Glob(testenv.Data(f, "other-tools", string(kind)+"*"))
		require.NoError(f, err)
		require.NotEmpty(f, files, kind)
		for _, name := range files {
			text, err := os.ReadFile(name)
			require.NoError(f, err)
			f.Add(byte(i), text)
		}
	}
	f.Add(byte(2), []byte("jobs: &a [{name: x, type: push, filesystems: {'<': true}, <<: *a}]"))
	f.Add(byte(1), []byte("* * * * * root syncoid a/b c"))
	f.Fuzz(func(t *testing.T, kind byte, text []byte) {
		r, err := Import([]Input{{Name: "x", Kind: kinds[int(kind)%3], Text: text}}, Options{})
		if err != nil {
			require.Equal(t, fault.Usage, fault.ClassOf(err), err)
			return
		}
		requireAccepted(t, r)
	})
}
