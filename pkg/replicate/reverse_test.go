package replicate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
)

const pairFile = `# my jobs
[metrics]
textfile = "/var/lib/x.prom"

[[job]] # the first
name = "home"
source = "tank/home"
recursive = true
exclude = ["cache"]
schedule = "hourly"
holds = "source"
snapshots = { take = "{job}-%Y%m%dT%H%M%SZ" }
retention = { hourly = 24 }

[[job.target]]
name = "near"
to = "root@b:vault/"
exclude = ["scratch"]
retention = { daily = 90 }
on_divergence = "rotate"
properties = { carry = true }
[job.transfer]
dial = "source"

[[job]]
name = "other"
source = "tank/other"
snapshots = { adopt = ["auto*"] }
target = [{ name = "t", to = "b:vault/other" }]
`

func pairOf(t *testing.T, text string) (*File, *Job) {
	t.Helper()
	f, err := Parse("x.toml", []byte(text))
	require.NoError(t, err)
	return f, f.Find("home")
}

// TestReverseJob reverses a job and expects that each side keeps its retention and names, and that
// the reverse of the reverse replicates as the job did.
func TestReverseJob(t *testing.T) {
	t.Parallel()
	_, j := pairOf(t, pairFile)
	copied, source := endpoint.Endpoint{Host: "root@b", Name: "vault/home"}, endpoint.Endpoint{Name: "tank/home"}
	r, err := j.Reverse(&j.Targets[0], copied, source)
	require.NoError(t, err)
	require.Equal(t, `[[job]]
name = 'home-reverse'
source = 'root@b:vault/home'
recursive = true
exclude = ['cache']
schedule = 'hourly'
holds = 'target'

[job.snapshots]
take = 'home-%Y%m%dT%H%M%SZ'

[job.retention]
daily = 90

[[job.target]]
name = 'former-source'
to = 'tank/home'
exclude = ['scratch']

[job.target.retention]
hourly = 24

[job.target.properties]
carry = true

[job.transfer]
dial = 'target'
`, r.Text())
	back, err := r.Reverse(&r.Targets[0], source, copied)
	require.NoError(t, err)
	require.Equal(t, []any{j.Source, j.Retention, j.Targets[0].Retention, "home-%Y%m%dT%H%M%SZ", "source", "source"},
		[]any{back.Source, back.Retention, back.Targets[0].Retention, back.Snapshots.Take, back.Holds, back.Transfer.Dial})
	_, err = j.Reverse(&j.Targets[0], copied, endpoint.Endpoint{Name: "tank"})
	require.ErrorContains(t, err, "root dataset of a pool")
	j.Snapshots = Snapshots{ReceivedFrom: "first:near"}
	_, err = j.Reverse(&j.Targets[0], copied, source)
	require.ErrorContains(t, err, `job "home" has no reverse job: first:near sends its source`)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
}

// TestRoleEdit switches the jobs of a file and back, and expects that only the affected lines
// change.
func TestRoleEdit(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"LF": pairFile, "CRLF": strings.ReplaceAll(pairFile, "\n", "\r\n")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, j := pairOf(t, text)
			copied, source := endpoint.Endpoint{Host: "root@b", Name: "vault/home"}, endpoint.Endpoint{Name: "tank/home"}
			r, err := j.Reverse(&j.Targets[0], copied, source)
			require.NoError(t, err)
			require.Nil(t, f.FindReverse(copied, source))
			first := RoleEdit{Standby: "home", Add: r}
			there, err := first.Apply("x.toml", []byte(text))
			require.NoError(t, err)
			require.Contains(t, strings.ReplaceAll(string(there), "\r", ""), "[[job]] # the first\nstandby = true\nname = \"home\"\n")
			now, err := Parse("x.toml", there)
			require.NoError(t, err)
			require.Equal(t, "home-reverse", now.FindReverse(copied, source).Name)
			require.Equal(t, "home", now.FindReverse(source, copied).Name)
			back := RoleEdit{Standby: "home-reverse", Active: "home"}
			home, err := back.Apply("x.toml", there)
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(string(home), text), "the original job differs")
			again := RoleEdit{Standby: "home", Active: "home-reverse"}
			twice, err := again.Apply("x.toml", home)
			require.NoError(t, err)
			same, err := again.Apply("x.toml", twice)
			require.NoError(t, err)
			require.Equal(t, string(twice), string(same))
		})
	}
}

// TestRoleEditRefused expects a refusal with the change to make by hand.
func TestRoleEditRefused(t *testing.T) {
	t.Parallel()
	const job = "name = \"home\"\nsource = \"tank/home\"\nsnapshots = { adopt = [\"a*\"] }\ntarget = [{ name = \"t\", to = \"b:vault/home\" }]\n"
	for name, tt := range map[string]struct{ text, want string }{
		"inline jobs": {`job = [{ name = "home", source = "tank/home", snapshots = { adopt = ["a*"] }, target = [{ name = "t", to = "b:v/h" }] }]`, "inline array"},
		"shared":      {"[[host]]\nname = \"h\"\n[[job]]\n" + job, "shared between hosts"},
		"template":    {"[[template]]\nname = \"t\"\nretries = 1\n[[job]]\ntemplate = \"t\"\n" + job, "shared between hosts"},
		"{host}":      {"[[job]]\n" + strings.ReplaceAll(job, "b:vault", "b:{host}"), "shared between hosts"},
		"invalid":     {"[[job]]\nname = \"home\"\n", "source is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := RoleEdit{Standby: "home"}
			_, err := e.Apply("x.toml", []byte(tt.text))
			require.ErrorContains(t, err, tt.want)
		})
	}
}
