package unit

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
)

// directives parses a unit as systemd.syntax(7) does: sections, comments, and lines continued
// after a backslash.
func directives(t *testing.T, text string) (out [][2]string) {
	t.Helper()
	section, open := "", ""
	require.True(t, strings.HasSuffix(text, "\n"))
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		require.NotContains(t, line, "\r")
		line = strings.TrimSpace(open + line)
		open = ""
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case strings.HasSuffix(line, `\`):
			open = strings.TrimSuffix(line, `\`) + " "
		case line[0] == '[':
			section = line
		default:
			key, value, ok := strings.Cut(line, "=")
			require.True(t, ok, "%q", line)
			require.NotContains(t, value, "%", "a specifier")
			out = append(out, [2]string{section + key, value})
		}
	}
	require.Empty(t, open)
	return out
}

func get(all [][2]string, key string) (values []string) {
	for _, d := range all {
		if d[0] == key {
			values = append(values, d[1])
		}
	}
	return values
}

// FuzzWritten expects that no value adds lines to units and crontabs. A user name with a line break
// once added directives to a root unit, and a line to the crontab.
func FuzzWritten(f *testing.F) {
	p := paths()
	for _, odd := range []string{"backup", "backup\nExecStartPre=/bin/sh -c id", "a b", "%h", "$HOME", `"`, `\`, "a\\", ";", "a;reboot", "|", "`id`", "-", "+x", "@x", "\r", "\x00", "\x85", "\u2028", "ä", "1000", "root\x0b", "#", "a:b", "a,b", "~", "*", "..", "\xff"} {
		f.Add("home", odd, "hourly", p.Binary, p.JobFile, p.StateDir, p.Textfile)
		f.Add(odd, "", "hourly", p.Binary, p.JobFile, p.StateDir, p.Textfile)
		f.Add("home", "", "Mon"+odd+" 06:30", p.Binary, p.JobFile, p.StateDir, p.Textfile)
		f.Add("home", "backup", "hourly"+odd, p.Binary+odd, p.JobFile+"/"+odd, p.StateDir+odd, "/x"+odd+"/a.prom")
	}
	f.Fuzz(func(t *testing.T, name, user, schedule, binary, jobFile, stateDir, textfile string) {
		j := replicate.Job{Name: name, User: user, Source: "tank/x", Schedule: schedule, Snapshots: replicate.Snapshots{Take: replicate.DefaultTemplate},
			Targets: []replicate.Target{{Name: "t", To: "vault:pool"}}}
		file := &replicate.File{Jobs: []replicate.Job{j}}
		p := Paths{Binary: binary, JobFile: jobFile, StateDir: stateDir, Textfile: textfile}
		files, err := Files(file, p)
		if jobfile.Validate(file) != nil || err != nil || binary == "" || jobFile == "" || stateDir == "" {
			return
		}
		plain := j
		plain.Name, plain.Schedule = "plain", "hourly"
		if schedule == "" {
			plain.Schedule = ""
		}
		if user != "" {
			plain.User = "plain"
		}
		q := paths()
		if !strings.HasPrefix(stateDir, "/var/lib/") {
			q.StateDir = "/srv/zxfer"
		}
		if textfile == "" {
			q.Textfile = ""
		}
		intended, err := Files(&replicate.File{Jobs: []replicate.Job{plain}}, q)
		require.NoError(t, err)
		require.Len(t, files, len(intended))
		for _, suffix := range []string{".service", ".timer"} {
			got, want := files[Name(name)+suffix], intended[Name("plain")+suffix]
			require.Equal(t, want == "", got == "")
			if got == "" {
				continue
			}
			require.Equal(t, strings.Count(want, "\n"), strings.Count(got, "\n"))
			g, w := directives(t, got), directives(t, want)
			require.Len(t, g, len(w))
			for i := range g {
				require.Equal(t, w[i][0], g[i][0])
			}
			if suffix == ".timer" {
				require.Equal(t, []string{strings.TrimSpace(schedule)}, get(g, "[Timer]OnCalendar"))
				continue
			}
			words := []string{binary, "replicate", "run", "--wait", "--service", "--config", jobFile, "--state-dir", stateDir, name}
			require.Equal(t, words, split(t, get(g, "[Service]ExecStart")[0]))
			if user != "" {
				require.Equal(t, []string{user}, get(g, "[Service]User"))
			}
			require.Equal(t, stateDir, split(t, get(g, "[Service]ReadWritePaths")[0])[0])
		}
		line, err := Cron(&j, p)
		if err != nil {
			return
		}
		require.NotContains(t, line, "\n")
		require.NotContains(t, line, "%", "cron converts it to a line break")
		words := strings.Fields(line)
		who := user
		if who == "" {
			who = "root"
		}
		require.Equal(t, who, words[5])
		require.Equal(t, []string{binary, "replicate", "run", "--service", "--config", jobFile, "--state-dir", stateDir, name}, words[6:])
		asShell, err := shellquote.Split(strings.Join(words[6:], " "))
		require.NoError(t, err)
		require.Equal(t, words[6:], asShell)
		require.False(t, strings.ContainsAny(line[strings.Index(line, binary):], "|&;<>()$`\\\"'*?[]#!{}^"), "cron's shell expands it: %s", line)
	})
}

// split splits a command line like systemd if nothing needs unquoting.
func split(t *testing.T, line string) []string {
	t.Helper()
	require.False(t, strings.ContainsAny(line, "\"'\\$;|"), line)
	require.False(t, strings.ContainsFunc(line, unicode.IsControl), "%q", line)
	return strings.Split(line, " ")
}

func TestInvalidUnitValuesAreRefused(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"backup\nExecStart=/bin/sh", "backup\n* * * * * root id", "a b", "%h", "a$", "-x", "ü", "a\r", "a:b", strings.Repeat("a", 257)} {
		err := jobfile.Validate(&replicate.File{Jobs: []replicate.Job{{Name: "home", Source: "tank/x", User: user, Snapshots: replicate.Snapshots{Take: replicate.DefaultTemplate},
			Targets: []replicate.Target{{Name: "t", To: "vault:pool"}}}}})
		require.ErrorContains(t, err, fmt.Sprintf("user: %q is not the name of an account", user))
	}
	for _, bad := range []string{"etc/x", "/etc/x\nUser=root", "/etc/a b", "/etc/a;reboot", "/etc/`id`", "/etc/%n", "/etc/$x", `/etc/"`, `/etc/\`, "/etc/a\r", "/etc/\u2028", "/etc/\xff", "/etc/*", "/etc/(x)"} {
		for i, p := range []Paths{{Binary: bad}, {JobFile: bad}, {StateDir: bad}, {Textfile: bad}} {
			require.Error(t, p.Check(), "%d %q", i, bad)
		}
	}
	require.NoError(t, Paths{Binary: "/opt/zxfer-1.2+x/zxfer", JobFile: "/etc/zxfer/ü@a,b=c~.toml", StateDir: "/var/lib/zxfer_1"}.Check())
	require.Error(t, Paths{StateDir: "/var/lib/a:b"}.Check(), "a link, by StateDirectory=")
	j := file().Jobs[0]
	j.User = "1000"
	_, err := Cron(&j, paths())
	require.ErrorContains(t, err, "cron does not accept numbers")
}
