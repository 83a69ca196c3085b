package jobfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/retention"
)

func TestReadSelectsHostPart(t *testing.T) {
	t.Parallel()
	inv, err := Read("x.toml", jobFile(t, "fleet.toml"))
	require.NoError(t, err)
	require.Equal(t, []string{"web1", "web2", "web3", "db08", "db09", "db10", "db11"}, inv.Names())
	require.Equal(t, []string{"web-*"}, inv.Patterns())

	f, err := inv.For("web2.example.org")
	require.NoError(t, err)
	require.Len(t, f.Jobs, 1)
	require.Empty(t, f.Hosts)
	require.Empty(t, f.Templates)
	home := &f.Jobs[0]
	require.Equal(t, "home", home.Name)
	require.Nil(t, home.Template)
	require.Equal(t, "root@backup1:vault/web2", home.Targets[0].To)
	require.False(t, home.Recursive, "false in the job overrides the template")
	require.Equal(t, &retention.Grid{Last: 10, Hourly: 36}, home.Retention)
	require.Equal(t, "zxfer_{job}_%Y-%m-%d_%H:%M:%S", home.Snapshots.Take, "the naming expands {job}")
	require.True(t, f.OnOtherHosts("pg"))
	require.True(t, f.OnOtherHosts("bare-db09"))
	require.False(t, f.OnOtherHosts("home"))
	require.True(t, f.Has("home"))
	require.False(t, f.Has("gone"))

	f, err = inv.For("DB09")
	require.NoError(t, err)
	require.Equal(t, "db09", f.Host)
	pg := f.Find("pg")
	require.Equal(t, "*:0/15", pg.Schedule, "the later template wins")
	require.Equal(t, &retention.Grid{Last: 10, Hourly: 48}, pg.Retention, "tables are merged key by key")
	require.False(t, pg.Snapshots.SkipUnchanged)
	require.Len(t, pg.Before, 2, "an array replaces the template's")
	require.Equal(t, []string{"/bin/b", "db09", "${HOME}"}, pg.Before[0].Command)
	require.Len(t, pg.Targets, 2, "targets are merged by name")
	require.Equal(t, replicate.Target{Name: "vault", To: "root@backup2:vault/db09-pg", Retention: &retention.Grid{Daily: 30, Weekly: 2}}, pg.Targets[0])
	require.Equal(t, "tank2/pg", pg.Targets[1].To)
	require.NotNil(t, f.Find("bare-db09"))
	require.Empty(t, f.Find("bare-db09").Targets, "an empty array removes the template's targets")

	f, err = inv.For("web3")
	require.NoError(t, err)
	require.Equal(t, "root@backup3:vault/web3", f.Jobs[0].Targets[0].To, "the later group wins")
	f, err = inv.For("web-far")
	require.NoError(t, err)
	require.Equal(t, "root@backup1:vault/web-far", f.Jobs[0].Targets[0].To)

	require.Equal(t, []string{"home", "pg", "bare-db09"}, inv.JobsOf("db09"))
	require.Equal(t, []string{"home"}, inv.JobsOf("web-far"))
	require.Empty(t, inv.JobsOf("nobody"))

	for host, want := range map[string][2]string{
		"web1": {"root@web1.example.org", ""}, "web-far": {"root@web-far.example.org", ""}, "db10": {"db10", "ssh -p 2222"}, "else.org": {"else.org", ""},
	} {
		address, rsh := inv.AddressOf(host)
		require.Equal(t, want, [2]string{address, rsh}, host)
	}
	_, err = inv.For("web4")
	require.ErrorContains(t, err, `x.toml: host "web4" is in no [[host]] of this file`)
	require.Contains(t, fault.HintOf(err), "--host NAME")
	require.Contains(t, fault.HintOf(err), `web1, web2, web3, db08, db09, db10, db11; group "web" matches web-*`)
	_, err = inv.For("a b")
	require.ErrorContains(t, err, `host "a b": a name in a job file`)

	var hosts []string
	for _, p := range inv.Parts() {
		require.NoError(t, p.Err)
		hosts = append(hosts, p.Host)
	}
	require.Equal(t, append(inv.Names(), `any of group "web"`), hosts)
}

// TestTemplatesWithoutHosts expects that without [[host]], every host has all jobs.
func TestTemplatesWithoutHosts(t *testing.T) {
	t.Parallel()
	inv, err := Read("x.toml", []byte("[[job]]\nname = 'a'\nsource = 'tank'\nsnapshots.adopt = ['*']\n[[job.target]]\nname = 'b'\nto = 'b:vault/{host}'\n"))
	require.NoError(t, err)
	f, err := inv.For("Web1.example.org")
	require.NoError(t, err)
	require.Equal(t, "b:vault/web1", f.Jobs[0].Targets[0].To)
	_, err = inv.For("")
	require.ErrorContains(t, err, "{host} needs the name of this host, which is unknown")
	require.Equal(t, fault.Usage, fault.ClassOf(err))
	require.Empty(t, inv.Parts())
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	host := "[[host]]\nname = 'web'\nnames = ['web[1-3]']\n"
	template := "[[template]]\nname = 'base'\nsource = 'tank/a'\nsnapshots.adopt = ['*']\n"
	to := "[[job.target]]\nname = 'b'\nto = 'vault:b/{host}'\n"
	job := "[[job]]\nname = 'a'\ntemplate = 'base'\n" + to
	for name, tt := range map[string]struct {
		text string
		want []string // parts of the message or hint
	}{
		"unknown template":           {template + "[[job]]\nname = 'a'\ntemplate = ['base', 'more']\n" + to, []string{`x.toml:5: job "a" by template "base", "more": there is no template "more"`, "the file has: base"}},
		"a number for a template":    {template + "[[job]]\nname = 'a'\ntemplate = 3\n" + to, []string{`x.toml:5: job "a": template must be the name`}},
		"numbers for templates":      {template + "[[job]]\nname = 'a'\ntemplate = [3]\n" + to, []string{`template must be the name`}},
		"a template of a template":   {template + "template = 'x'\n" + job, []string{`x.toml:1: template "base": a template cannot have a template`, "list both in the job"}},
		"two templates":              {template + template + job, []string{`x.toml:5: template "base": two templates have this name`}},
		"unknown key of a template":  {template + "suorce = 'x'\n" + job, []string{"x.toml:5", `"template.suorce"`, "did you mean source?"}},
		"wrong type in a template":   {template + "parallel = '2'\n" + job, []string{"x.toml:5: template.parallel", "a whole number"}},
		"a key in upper case":        {template + "[[job]]\nname = 'a'\ntemplate = 'base'\nRecursive = true\n" + to, []string{`key "Recursive": must be lower case`}},
		"unknown key of a host":      {host + "adress = 'x'\n" + template + job, []string{"x.toml:4", "did you mean address?"}},
		"duplicate group":            {host + host + template + job, []string{`x.toml:4: host "web": two groups have this name`}},
		"no name":                    {"[[host]]\nnames = ['web1']\n" + template + job, []string{`x.toml:1: host 1: name is missing`}},
		"a domain":                   {"[[host]]\nname = 'web'\nnames = ['web1.example.org']\n" + template + job, []string{`"web1.example.org" is not a short host`, "address = "}},
		"an empty range":             {"[[host]]\nname = 'web'\nnames = ['web[3-1]']\n" + template + job, []string{"the range [3-1] is empty"}},
		"too many":                   {"[[host]]\nname = 'web'\nnames = ['web[1-999][1-999]']\n" + template + job, []string{"more than 10000 hosts"}},
		"too many in two groups":     {"[[host]]\nname = 'a'\nnames = ['a[1-9999]']\n[[host]]\nname = 'b'\nnames = ['b[1-2]']\n" + template + job, []string{"x.toml:4", "more than 10000 hosts"}},
		"a pattern":                  {"[[host]]\nname = 'web'\nnames = ['web[a']\n" + template + job, []string{"is not a pattern"}},
		"an address":                 {host + "address = '-oProxyCommand=x'\n" + template + job, []string{"write [user@]HOST"}},
		"a variable's name":          {host + "vars = { host = 'x' }\n" + template + job, []string{"vars.host: write lower-case"}},
		"a variable's value":         {host + "vars = { v = '{x}' }\n" + template + job, []string{"vars.v: \"{x}\" contains a brace"}},
		"unknown hosts":              {host + template + "[[job]]\nname = 'a'\ntemplate = 'base'\nhosts = ['wbe']\n" + to, []string{`hosts: "wbe" is not the name of a [[host]] or of one of its hosts`}},
		"hosts without any [[host]]": {template + "[[job]]\nname = 'a'\ntemplate = 'base'\nhosts = ['web1']\n" + to, []string{`hosts: "web1" is not`, `add it: [[host]] with name = "web1"`}},
		"no hosts":                   {host + template + "[[job]]\nname = 'a'\ntemplate = 'base'\nhosts = []\n" + to, []string{"hosts is empty", "omit the"}},
		"unknown variable":           {host + "vars = { vault = 'v' }\n" + template + strings.ReplaceAll(job, "vault:b", "root@{valt}:b"), []string{`x.toml:9: job "a" by template "base": target.to: no host has {valt}`, `write vars = { valt = "..." } into a [[host]]; the file has {host}, {vault}`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Read("x.toml", []byte(tt.text))
			require.Error(t, err)
			require.Equal(t, fault.Usage, fault.ClassOf(err))
			for _, w := range tt.want {
				require.Contains(t, err.Error()+"\n"+fault.HintOf(err), w)
			}
		})
	}
}

// TestNoTemplates expects that the hint has no empty list if the file has no templates.
func TestNoTemplates(t *testing.T) {
	t.Parallel()
	_, err := Read("x.toml", []byte("[[job]]\nname = 'a'\ntemplate = 'base'\n"))
	require.ErrorContains(t, err, `there is no template "base"`)
	require.Equal(t, "write [[template]] with this name", fault.HintOf(err))
}

// TestVariablesOfCommands expects that a command keeps braces that are no variable of the file.
func TestVariablesOfCommands(t *testing.T) {
	t.Parallel()
	inv, err := Read("x.toml", []byte("[[host]]\nname = 'web'\nnames = ['web[1-2]']\n[[template]]\nname = 'x'\nsnapshots.take = '{job}-%Y%m%d%H%M'\nbefore = [{ command = ['/bin/x', '{it}'] }]\n[[job]]\nname = 'home'\ntemplate = 'x'\nsource = 'tank/a'\n[[job.target]]\nname = 'near'\nto = 'vault/db'\n"))
	require.NoError(t, err)
	f, err := inv.For("web1")
	require.NoError(t, err)
	require.Equal(t, "{it}", f.Jobs[0].Before[0].Command[1], "an unknown variable may belong to a command")
}

// TestErrorsInOnePart expects that an error in one host's part does not affect other parts.
func TestErrorsInOnePart(t *testing.T) {
	t.Parallel()
	text := "[[host]]\nname = 'web'\nnames = ['web[1-2]']\nvars = { vault = 'b', every = 'hourly' }\n[[host]]\nname = 'db'\nvars = { every = 'teatime' }\n" +
		"[[template]]\nname = 'base'\nschedule = '{every}'\nsnapshots.adopt = ['*']\n" +
		"[[job]]\nname = 'a'\ntemplate = 'base'\nsource = 'tank'\nhosts = ['web']\ntarget = [{ name = 'b', to = '{vault}:{host}/a' }]\n" +
		"[[job]]\nname = 'c'\ntemplate = 'base'\nsource = 'tank'\n%starget = [{ name = 'b', to = '{vault}:{host}/c' }]\n"
	inv, err := Read("x.toml", fmt.Appendf(nil, text, ""))
	require.NoError(t, err)
	_, err = inv.For("web1")
	require.NoError(t, err)
	_, err = inv.For("db")
	require.EqualError(t, err, `x.toml:18: job "c" by template "base": host "db" has no {vault}`)
	require.Contains(t, fault.HintOf(err), `vars = { vault = "..." }`)
	inv, err = Read("x.toml", []byte(strings.ReplaceAll(text, "%starget = [{ name = 'b', to = '{vault}", "target = [{ name = 'b', to = '{host}")))
	require.NoError(t, err)
	_, err = inv.For("db")
	require.ErrorContains(t, err, `x.toml:18: job "c" by template "base" of host "db": schedule: "teatime"`)
}

// TestErrorLinesWithTemplates expects that if a job uses a template, errors in its targets name
// the line of the job.
func TestErrorLinesWithTemplates(t *testing.T) {
	t.Parallel()
	inv, err := Read("x.toml", []byte("[[template]]\nname = 't'\nsnapshots.adopt = ['*']\ntarget = [{ name = 'b', to = '/b' }]\n"+
		"[[job]]\nname = 'a'\ntemplate = 't'\nsource = '/tank'\n[[job.target]]\nname = 'c'\nto = '/c'\n"))
	require.NoError(t, err)
	_, err = inv.For("")
	require.ErrorContains(t, err, `x.toml:8: job "a" by template "t": source: `)
	require.ErrorContains(t, err, `x.toml:5: job "a" by template "t": target "b": to: `)
	require.ErrorContains(t, err, `x.toml:5: job "a" by template "t": target "c": to: `)
}

func FuzzRead(f *testing.F) {
	f.Add(jobFile(f, "fleet.toml"), "db09")
	f.Add(jobFile(f, "home.toml"), "web1")
	f.Add([]byte("job = []\n[[host]]\nname = 'a'\n"), "a")
	f.Add([]byte("[[host]]\nname='a'\nnames=['a[1-2][3-4]']\n[[job]]\nname='{host}'\nsource='tank'\nsnapshots.adopt=['x']\nretention.last=1\n"), "a14")
	f.Fuzz(func(t *testing.T, text []byte, host string) {
		inv, err := Read("x", text)
		if err != nil {
			require.Equal(t, fault.Usage, fault.ClassOf(err))
			return
		}
		part, err := inv.For(host)
		if err != nil {
			require.Equal(t, fault.Usage, fault.ClassOf(err))
			return
		}
		var b strings.Builder
		require.NoError(t, write(&b, part))
		if inv.jobs != nil {
			_, err = Read("y", []byte(b.String()))
			require.NoError(t, err, b.String())
		}
	})
}
