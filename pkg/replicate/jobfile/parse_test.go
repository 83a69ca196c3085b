package jobfile

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	toml "github.com/pelletier/go-toml/v2"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/size"
	"zxfer/pkg/testenv"
)

// jobFile returns the text of a job file in testdata/jobs.
func jobFile(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(testenv.Data(t, "jobs", name))
	require.NoError(t, err)
	return text
}

func TestParse(t *testing.T) {
	t.Parallel()
	f, err := Parse("x.toml", jobFile(t, "home.toml"))
	require.NoError(t, err)
	j := f.Find("home")
	require.NotNil(t, j)
	require.Equal(t, &retention.Grid{Last: 3, Hourly: 36}, j.Retention)
	require.Equal(t, calendar.Duration(2*time.Minute), j.Jitter)
	require.Equal(t, 0, *j.Retries)
	require.Equal(t, size.Size(50<<20), j.Transfer.Bandwidth)
	require.Len(t, j.Targets, 2)
	require.Nil(t, j.Targets[1].Retention)
	require.Equal(t, "zstd", j.Targets[0].Properties.Set["compression"])
	require.Nil(t, f.Find("office"))

	var b bytes.Buffer
	require.NoError(t, write(&b, f))
	again, err := Parse("y.toml", b.Bytes())
	require.NoError(t, err, b.String())
	require.Equal(t, f, again, "the written file parses to the same jobs")
}

// write writes a job file in the format of Parse.
func write(w io.Writer, f *replicate.File) error {
	e := toml.NewEncoder(w)
	e.SetTablesInline(false)
	return e.Encode(f)
}

// TestSockets expects that sockets can be configured in a job and in a target.
func TestSockets(t *testing.T) {
	t.Parallel()
	f, err := Parse("x.toml", []byte(`[[job]]
name = "a"
source = "tank/a"
snapshots.adopt = ["*"]
transfer = { window = "4MiB", congestion = "bbr" }
target = [{ name = "b", to = "b:vault" }, { name = "c", to = "c:vault", transfer = { window = "1M", congestion = "auto" } }]
`))
	require.NoError(t, err)
	j := f.Find("a")
	require.Equal(t, size.Size(4<<20), j.TransferTo(&j.Targets[0]).Window)
	require.Equal(t, size.Size(1<<20), j.TransferTo(&j.Targets[1]).Window)
	require.EqualValues(t, "bbr", j.TransferTo(&j.Targets[0]).Congestion)
	require.Empty(t, j.TransferTo(&j.Targets[1]).Congestion, "unset options are not sent to an older zxfer")
}

// TestParseWithoutJobs expects that a file without jobs must have job = [], so that a truncated file is
// an error.
func TestParseWithoutJobs(t *testing.T) {
	t.Parallel()
	f, err := Parse("x.toml", []byte("job = []\n"))
	require.NoError(t, err)
	require.Empty(t, f.Jobs)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	job := "[[job]]\nname = 'a'\nsource = 'tank/a'\nsnapshots.adopt = ['*']\n"
	alone := "[[job]]\nname = 'a'\nsource = 'tank/a'\nsnapshots.take = 'x-%Y%m%d%H%M'\n"
	target := "[[job.target]]\nname = 'b'\nto = 'vault'\n"
	tests := []struct {
		name, text string
		want       []string // in the message or hint
	}{
		{"no job", "", []string{"no [[job]]", "init"}},
		{"syntax", "[[job]]\nname = \n", []string{"x.toml:2"}},
		{"unknown key", "[[job]]\nname = 'a'\nsuorce = 'tank/a'\n", []string{"x.toml:3", `"job.suorce"`, "did you mean source?"}},
		{"string for a number", "[[job]]\nname = 'a'\nparallel = '2'\n", []string{"x.toml:3: job.parallel: must be a whole number without quotes, not a string"}},
		{"number for a string", "[[job]]\nname = 3\n", []string{"x.toml:2: job.name: must be a string in quotes, not a whole number"}},
		{"number for a secret", "[notify]\nping = 3\n", []string{"x.toml:2: notify.ping: must be a string in quotes, not a whole number"}},
		{"number for the first send", "[[job]]\n[[job.target]]\nfirst = 3\n", []string{"x.toml:3: job.target.first: must be a string in quotes"}},
		{"string for a bool", "[[job]]\nrecursive = 'yes'\n", []string{"x.toml:2", "must be true or false"}},
		{"string for a list", "[[job]]\nexclude = 'x'\n", []string{"x.toml:2", "must be an array of strings"}},
		{"string for targets", "[[job]]\ntarget = 'x'\n", []string{"x.toml:2", "must be a list of tables: write [[job.target]] above its keys, or target = [{ ... }]"}},
		{"table for hooks", "[[job]]\nbefore = { command = ['/x'] }\n", []string{"job.before", "must be a list of tables: write [[job.before]] above its keys, or before = [{ ... }]"}},
		{"list for hooks", "[[job]]\nbefore = ['/x']\n", []string{"job.before", "must be a"}},
		{"number for a table", "[[job]]\nsnapshots = 3\n", []string{"x.toml:2", "must be a table"}},
		{"no value", "[[job]]\nname =\n", []string{"x.toml:2", "unexpected character"}},
		{"unknown key of a table", job + "[job.retention]\nhourley = 3\n" + target, []string{"x.toml:6", "did you mean hourly?"}},
		{"key of another table", job + "hourly = 3\n" + target, []string{"x.toml:5", "hourly of [job.retention]"}},
		{"wrong type", job + "recursive = 'yes'\n" + target, []string{"x.toml:5"}},
		{"duration", job + "jitter = 'soon'\n" + target, []string{"x.toml:5", `"soon"`, "15m"}},
		{"number for a duration", job + "schedule = 'hourly'\ngrace = 900\n" + target, []string{`x.toml:6`, `"900" is not a time span; write 90s, 15m`}},
		{"number for a duration in a table", job + "freeze = [{ kind = 'postgresql', timeout = 30 }]\n" + target, []string{`x.toml:5`, `"30" is not a time span`}},
		{"number for since", job + "snapshots.since = 3\n" + target, []string{`"3" is not a time span`}},
		{"fraction for a duration", job + "grace = 1.5\n" + target, []string{`"1.5" is not a time span`}},
		{"table for a duration", job + "[job.grace]\nx = 1\n" + target, []string{"x.toml", "is not a string in quotes"}},
		{"list for a duration", job + "grace = ['1h']\n" + target, []string{"x.toml:5", "is not a time span"}},
		{"number for a grace period", job + target + "mirror = { gone = 90 }\n", []string{`x.toml:8`, `"90": write "keep", or a time span`}},
		{"number for a share", job + "drill = { sample = 5 }\n" + target, []string{"x.toml:5", `"5" is not a share of the files`}},
		{"size", job + "[job.transfer]\nbandwidth = 'much'\n" + target, []string{"x.toml:6", "much"}},
		{"nothing to do", "# jobs\n\n" + job, []string{`x.toml:3: job "a": `, "nothing to do", "add a [[job.target]]", "[job.retention]"}},
		{"nothing to do in the second job", job + target + strings.Replace(job, "'a'", "'c'", 1), []string{`x.toml:8: job "c": `, "nothing to do"}},
		{"key of the job in a table", "[[job]]\nname = 'a'\ntransfer = { retries = 3 }\n", []string{"x.toml:3", "did you mean retries of [job]?"}},
		{"key of another program", job + "keep = { daily = 1 }\n" + target, []string{`x.toml:5: unknown key "job.keep"`, "did you mean retention?"}},
		{"table of another program", job + "[job.keep]\ndaily = 1\n" + target, []string{`x.toml:5: unknown key "job.keep`, "did you mean retention?"}},
		{"no name", "[[job]]\nsource = 'tank/a'\nsnapshots.adopt = ['*']\n" + target, []string{"x.toml:1: job 1: name is missing"}},
		{"no name of a target", job + "[[job.target]]\nto = 'vault'\n", []string{`x.toml:5: job "a": target 1: name is missing`}},
		{"line of a key", job + "holds = 'x'\n" + target + "[[job.target]]\nname = 'c'\nto = '/c'\n", []string{`x.toml:5: job "a": holds`, `x.toml:11: job "a": target "c": to: `}},
		{"line of a key in a table", job + target + "[job.target.retention]\nlast = 1\ndaily = -1\n", []string{`x.toml:10: job "a": target "b": retention.daily = -1`}},
		{"line of a key in an inline table", job + "transfer = { wire = 'plain' }\n" + target, []string{`x.toml:5: job "a": transfer.wire`}},
		{"unknown on_rename", job + target + "on_rename = 'rename'\n", []string{`on_rename = "rename": write one of refuse, follow`}},
		{"relay without a target name", job + "snapshots.received_from = 'home'\n" + target, []string{`snapshots.received_from "home" is not JOB:TARGET`, `received_from = "JOB:TARGET"`}},
		{"relay that takes snapshots", job + "snapshots.received_from = 'home:b'\nsnapshots.take = 's%Y%m%d-%H%M'\n" + target, []string{"snapshots.take cannot be combined with snapshots.received_from", "omit snapshots.take"}},
		{"relay with retention", job + "snapshots.received_from = 'home:b'\nretention = { last = 2 }\n" + target, []string{"retention cannot be combined with snapshots.received_from"}},
		{"relay without a target", alone + "snapshots.received_from = 'home:b'\n", []string{"snapshots.received_from has no effect without a [[job.target]]"}},
		{"sent_on_by of a bad name", job + target + "retention = { last = 2 }\nsent_on_by = ['a b']\n", []string{`sent_on_by: "a b" is not the name of a job`}},
		{"jitter without a schedule", job + "jitter = '1m'\n" + target, []string{"jitter and grace have no effect without a schedule"}},
		{"on_failure = stop for an alert", job + "alert = { command = ['/bin/x'], on_failure = 'stop' }\n" + target, []string{"alert.on_failure has no effect"}},
		{"ports of wire ssh", job + "transfer = { wire = 'ssh', ports = '9000' }\n" + target, []string{`job "a": transfer.ports has no effect with transfer.wire = "ssh"`, "omit transfer.ports"}},
		{"threads without compression", job + "transfer = { compress = 'off', compress_threads = 2 }\n" + target, []string{"transfer.compress_threads has no effect"}},
		{"window of wire ssh", job + "transfer = { wire = 'ssh', window = '4MiB' }\n" + target, []string{"transfer.window has no effect with transfer.wire"}},
		{"unknown congestion algorithm", job + "[job.transfer]\ncongestion = 'b b'\n" + target, []string{`transfer.congestion = "b b": write auto, or the name`}},
		{"window with an unknown unit", job + "[job.transfer]\nwindow = '4XB'\n" + target, []string{"x.toml:6: job.transfer.window", "not a size"}},
		{"too many streams to a target", job + target + "transfer = { streams = 65 }\n", []string{`target "b": transfer.streams = 65: must be a whole number from 1 to 64`}},
		{"unknown check", job + "transfer.skip_checks = ['space', 'target-key-changed', 'spaec']\n" + target, []string{`there is no check "spaec"`}},
		{"latest_only without a target", alone + "snapshots.latest_only = true\n", []string{"x.toml:5", "snapshots.latest_only has no effect", "job.target"}},
		{"native property", job + "recursive = true\nproperty = 'compression=lz4'\n" + target, []string{"write NAME=VALUE", "zxfer:job=home"}},
		{"property without a value", job + "recursive = true\nproperty = 'my:x='\n" + target, []string{"write NAME=VALUE"}},
		{"invalid property name", job + "recursive = true\nproperty = 'My:x'\n" + target, []string{`"My:x": not the name of a property`}},
		{"property without recursive", job + "property = 'my:x'\n" + target, []string{"property have no effect without recursive"}},
		{"selection of a target without recursive", job + target + "exclude = ['x']\n", []string{`target "b": include, exclude and property have no effect`}},
		{"invalid expression", job + "recursive = true\nexclude = ['re:(']\n" + target, []string{`exclude: "re:(" is not a regular expression`}},
		{"a target's pattern", job + target + "snapshots.only = ['[']\n", []string{`snapshots.only: "[" is not a pattern`}},
		{"newest twice", job + target + "snapshots = { latest_only = true, newest = 3 }\n", []string{"cannot be combined"}},
		{"negative newest", job + target + "snapshots.newest = -1\n", []string{"snapshots.newest = -1"}},
		{"unknown value of first", job + target + "first = 'oldest'\n", []string{`first = "oldest": write one of all, newest, fail`}},
		{"first without a target", alone + "first = 'all'\n", []string{"first has no effect"}},
		{"a freeze without a kind", job + "freeze = [{ timeout = '30s' }]\n" + target, []string{`freeze: kind is missing; write one of postgresql`}},
		{"a zone", job + "retention = { daily = 1, timezone = 'Mars/Phobos' }\n" + target, []string{"x.toml", "Mars/Phobos", "Europe/Berlin"}},
		{"a zone alone", job + "retention = { timezone = 'local' }\n" + target, []string{"retention keeps nothing"}},
		{"parallel without a target", alone + "parallel = 2\n", []string{"parallel has no effect"}},
		{"retries without a target", alone + "retries = 0\n", []string{"retries has no effect"}},
		{"holds without a target", alone + "holds = 'none'\n", []string{"holds has no effect"}},
		{"bookmarks without a target", alone + "bookmarks = 'none'\n", []string{"bookmarks has no effect"}},
		{"transfer without a target", alone + "transfer.bandwidth = '1MiB'\n", []string{"transfer", "has no effect"}},
		{"duplicate target name", job + target + target, []string{"two targets"}},
		{"target named source", job + strings.Replace(target, "'b'", "'source'", 1), []string{`cannot be named "source"`}},
		{"two targets in one dataset", job + target + strings.Replace(target, "'b'", "'c'", 1), []string{`targets "b" and "c" are the same`}},
		{"onto itself", job + "[[job.target]]\nname = 'b'\nto = 'tank'\n", []string{`target "b": to "tank" is tank/a, which is part of the source`}},
		{"into itself", job + "recursive = true\n[[job.target]]\nname = 'b'\nto = 'tank/a/b'\n", []string{"is tank/a/b, which is part of the source"}},
		{"duplicate job name", job + target + job + target, []string{"two jobs"}},
		{"source is a path", "[[job]]\nname = 'a'\nsource = '/tank'\nsnapshots.adopt = ['*']\n" + target, []string{"path"}},
		{"no snapshots", "[[job]]\nname = 'a'\nsource = 'tank/a'\n" + target, []string{"take", "adopt"}},
		{"template without minutes", "[[job]]\nname = 'a'\nsource = 'tank/a'\nsnapshots.take = 'x-%Y%m%d%H'\n" + target, []string{"%M"}},
		{"template with %q", "[[job]]\nname = 'a'\nsource = 'tank/a'\nsnapshots.take = 'x-%q'\n" + target, []string{"Y m d H M S"}},
		{"schedule", job + "schedule = 'teatime'\n" + target, []string{"teatime"}},
		{"keeps nothing", job + "[job.retention]\nlast = 0\n" + target, []string{"keeps nothing"}},
		{"negative", job + "[job.retention]\nlast = -1\n" + target, []string{"last = -1"}},
		{"plain without consent", job + "[job.transfer]\nwire = 'plain'\n" + target, []string{`transfer.wire = "plain" requires transfer.trusted_link = true`, "if no one can read"}},
		{"word", job + "holds = 'everywhere'\n" + target, []string{"both, source, target, none"}},
		{"pattern", job + "recursive = true\nexclude = ['[a']\n" + target, []string{"[a"}},
		{"exclude without recursive", job + "exclude = ['a']\n" + target, []string{"recursive"}},
		{"hook without a path", job + "alert = { command = ['mail'] }\n" + target, []string{"absolute"}},
		{"property set and excluded", job + target + "properties = { set = { atime = 'off' }, exclude = ['atime'] }\n", []string{"atime"}},
		{"property with an invalid value", job + target + "properties = { set = { recordsize = '3K' } }\n", []string{"recordsize=3K", "a power of two"}},
		{"textfile", "[metrics]\ntextfile = 'x.prom'\n" + job + target, []string{".prom"}},
		{"same names twice", "[[job]]\nname = 'a'\nsource = 'tank'\nrecursive = true\nsnapshots.take = 'x-%Y%m%d%H%M'\n" + target +
			"[[job]]\nname = 'b'\nsource = 'tank/b'\nsnapshots.take = 'x-%Y%m%d%H%M'\n" + target, []string{"same names", "{job}"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("x.toml", []byte(tt.text))
			require.Error(t, err)
			require.Equal(t, fault.Usage, fault.ClassOf(err))
			for _, w := range tt.want {
				require.Contains(t, err.Error()+"\n"+fault.HintOf(err), w)
			}
		})
	}
}

// TestParseWithoutTarget expects that a job without targets takes or prunes snapshots.
func TestParseWithoutTarget(t *testing.T) {
	t.Parallel()
	head := "[[job]]\nname = 'a'\nsource = 'host:tank/a'\nschedule = 'hourly'\n"
	take, adopt, keep := "snapshots.take = 'x-%Y%m%d%H%M'\n", "snapshots.adopt = ['autosnap_*']\n", "retention.daily = 7\n"
	for name, text := range map[string]string{
		"both": take + keep, "snapshots only": take, "retention only": adopt + keep, "all": take + adopt + keep,
		"transport to the source": take + "transfer = { rsh = 'ssh -p 22', no_bootstrap = true }\n",
	} {
		f, err := Parse("x.toml", []byte(head+text))
		require.NoError(t, err, name)
		require.Empty(t, f.Jobs[0].Targets, name)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(jobFile(f, "home.toml"))
	f.Add([]byte("[[job]]\nname='a'\n"))
	f.Add([]byte("a = [1, 2"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := Parse("x", text)
		if err != nil {
			return
		}
		var b bytes.Buffer
		require.NoError(t, write(&b, file))
		_, err = Parse("y", b.Bytes())
		require.NoError(t, err, b.String())
	})
}

// TestDrillKeys expects errors for invalid keys of a drill. A target's drill replaces the job's,
// except for the schedule.
func TestDrillKeys(t *testing.T) {
	t.Parallel()
	job := "[[job]]\nname = \"a\"\nsource = \"tank\"\nsnapshots = { adopt = [\"x\"] }\n%s\n[[job.target]]\nname = \"t\"\nto = \"vault\"\n%s\n"
	f, err := Parse("f", fmt.Appendf(nil, job, `drill = { schedule = "weekly", sample = "5%", command = ["/bin/x"], timeout = "2h" }`, ""))
	require.NoError(t, err)
	j := &f.Jobs[0]
	require.Equal(t, "weekly", j.DrillSchedule())
	require.InDelta(t, 0.05, float64(j.DrillAt(&j.Targets[0]).Sample), 1e-9)
	f, err = Parse("f", fmt.Appendf(nil, job, `drill = { schedule = "weekly", sample = "5%" }`, `drill = { key_file = "/etc/k" }`))
	require.NoError(t, err)
	j = &f.Jobs[0]
	require.Equal(t, replicate.Drill{KeyFile: "/etc/k"}, j.DrillAt(&j.Targets[0]))
	for drill, want := range map[string]string{
		`schedule = "sometimes"`: "drill.schedule", `sample = "0%"`: "write 5%", `sample = "101%"`: "write 5%", `sample = "5"`: "write 5%",
		`command = ["check"]`: "not an absolute path", `writable = true`: "no effect without drill.command", `key_file = "k"`: "drill.key_file", `sampel = "5%"`: "unknown key",
	} {
		_, err := Parse("f", fmt.Appendf(nil, job, "drill = { "+drill+" }", ""))
		require.Error(t, err, drill)
		require.Contains(t, err.Error()+fault.HintOf(err), want, drill)
	}
	_, err = Parse("f", fmt.Appendf(nil, job, "", `drill = { schedule = "weekly" }`))
	require.ErrorContains(t, err, "drill.schedule is a key of the job")
	_, err = Parse("f", fmt.Appendf(nil, job, "", `drill = { deadline = "1h" }`))
	require.ErrorContains(t, err, "drill.deadline is a key of the job")
	_, err = Parse("f", []byte("[[job]]\nname = \"a\"\nsource = \"tank\"\nsnapshots = { adopt = [\"x\"] }\nretention = { last = 2 }\ndrill = { sample = \"5%\" }\n"))
	require.ErrorContains(t, err, "drill has no effect without a [[job.target]]")
}

// TestParseCarry expects carry to be true, false, or an array of additional property names.
func TestParseCarry(t *testing.T) {
	t.Parallel()
	parse := func(carry string) (*replicate.File, error) {
		return Parse("jobs.toml", []byte(`
[[job]]
name = "home"
source = "tank/home"
snapshots = { take = "{job}-%Y%m%dT%H%M%SZ" }
[[job.target]]
name = "near"
to = "backup:vault"
properties = { `+carry+` }
`))
	}
	for carry, want := range map[string]struct {
		all   bool
		named []string
	}{
		`exclude = ["atime"]`:          {},
		`carry = false`:                {},
		`carry = []`:                   {},
		`carry = true`:                 {true, nil},
		`carry = ["org.example:note"]`: {true, []string{"org.example:note"}},
		`carry = ["com.sun:auto-snapshot", "dedup"]`: {true, []string{"com.sun:auto-snapshot", "dedup"}},
	} {
		f, err := parse(carry)
		require.NoError(t, err, carry)
		all, named := f.Jobs[0].Targets[0].Properties.Carries()
		require.Equal(t, want.all, all, carry)
		require.Equal(t, want.named, named, carry)
		text, err := toml.Marshal(f.Jobs[0].Targets[0].Properties) // as an import does
		require.NoError(t, err)
		if strings.HasPrefix(carry, "carry") {
			require.Contains(t, string(text), strings.ReplaceAll(carry, `"`, "'"))
		}
	}
	for carry, text := range map[string]string{
		`carry = "yes"`:                          `properties.carry = yes: write true, or an array of names`,
		`carry = 1`:                              `properties.carry = 1: write true, or an array of names`,
		`carry = [true]`:                         `properties.carry: true is not the name of a property`,
		`carry = ["setuid"]`:                     `properties.carry: setuid cannot be transferred: it can grant rights to programs or devices`,
		`carry = ["mountpoint"]`:                 `properties.carry: mountpoint cannot be transferred: it depends on the dataset's location`,
		`carry = ["zxfer:job"]`:                  `properties.carry: zxfer:job cannot be transferred`,
		`carry = ["org.openzfs.systemd:nofail"]`: `properties.carry: org.openzfs.systemd:nofail cannot be transferred`,
		`carry = ["org.example:Note"]`:           `'N'`,
		`set = { "org.example:note" = "a\nb" }`:  `properties.set: org.example:note="a\nb": the value must be one printable line`,
	} {
		_, err := parse(carry)
		require.ErrorContains(t, err, text, carry)
	}
	require.Equal(t, `to carry one: properties.carry = ["NAME"]`, replicate.Keys("to carry one: {{carry NAME}}"))
}

// TestErrorsAreInFileOrder expects that errors in a job are in the order of the file, so that the
// first one is the first to fix.
func TestErrorsAreInFileOrder(t *testing.T) {
	t.Parallel()
	_, err := Parse("x.toml", []byte("[[job]]\nholds = 'x'\nsource = '/tank'\nname = 'a'\nsnapshots.adopt = ['*']\n"+
		"[[job.target]]\nto = '/b'\nname = 'b'\n[[job]]\nname = 'c'\n"))
	require.Error(t, err)
	var places []string
	for _, line := range strings.Split(err.Error(), "\n") {
		places = append(places, strings.Join(strings.SplitN(line, ":", 4)[1:3], ":"))
	}
	require.Equal(t, []string{`2: job "a"`, `3: job "a"`, `7: job "a"`, `9: job "c"`, `9: job "c"`}, places[:5], err)
}
