package jobfile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

const placesFile = `[[job]]
name = "home"
source = "tank/home"
recursive = true
exclude = ["cache"]
property = "zxfer:backup"
schedule = "hourly"
snapshots = { take = "{job}-%Y%m%dT%H%M%SZ" }
retention = { hourly = 24 }
transfer = { dial = "source", rsh = "ssh -i k", bandwidth = "9M" }
notify = { ping = "https://hc.example/abc" }

[[job.target]]
name = "near"
to = "root@b:vault/"
exclude = ["scratch"]
property = "zxfer:near=on"
retention = { daily = 90 }
on_divergence = "rotate"
properties = { carry = true }
transfer = { dial = "target", rsh = "ssh -p 2", bandwidth = "1M" }

[[job.target]]
name = "far"
to = "c:pool"
property = "zxfer:far=on"
retention = { weekly = 5 }
mirror = { gone = "9d" }
`

func placesJob(t *testing.T) *replicate.Job {
	t.Helper()
	f, err := Parse("x.toml", []byte(placesFile))
	require.NoError(t, err)
	return f.Find("home")
}

// TestJobFrom reverses a job, and expects that each place keeps its address, its retention and its hold tag, and that
// nothing can be destroyed that the job destroys only on its targets.
func TestJobFrom(t *testing.T) {
	t.Parallel()
	j := placesJob(t)
	same, err := From(j, "")
	require.NoError(t, err)
	require.Same(t, j, same)
	r, err := From(j, "near")
	require.NoError(t, err)
	require.Equal(t, []any{"home", "root@b:vault/home", true, "hourly", j.Snapshots, j.Targets[0].Retention, "", j.Notify},
		[]any{r.Name, r.Source, r.Recursive, r.Schedule, r.Snapshots, r.Retention, r.Property, r.Notify})
	require.Equal(t, []string{"source", "ssh -p 2"}, []string{r.Transfer.Dial, r.Transfer.RSH})
	require.Len(t, r.Targets, 2)
	former, far := r.Targets[0], r.Targets[1]
	require.Equal(t, []any{replicate.FormerSource, "tank/home", j.Retention, []string{"scratch"}, "", "", true},
		[]any{former.Name, former.To, former.Retention, former.Exclude, former.Property, former.OnDivergence, former.Properties.Carry})
	require.Equal(t, []any{"source", "ssh -i k", j.Targets[0].Transfer.Bandwidth}, []any{former.Transfer.Dial, former.Transfer.RSH, former.Transfer.Bandwidth})
	require.Equal(t, []any{"far", "c:pool/home", j.Targets[1].Retention, "zxfer:far=on", (*replicate.Mirror)(nil)}, []any{far.Name, far.To, far.Retention, far.Property, far.Mirror})
	require.Equal(t, []any{"source", "ssh -i k", j.Transfer.Bandwidth}, []any{far.Transfer.Dial, far.Transfer.RSH, far.Transfer.Bandwidth})
	require.Equal(t, []string{"zxfer:home:near", "zxfer:home:far", "zxfer:home:near"}, []string{r.Tag(replicate.FormerSource), r.Tag("far"), j.Tag("near")})
	require.Equal(t, placesJob(t).Targets, j.Targets, "it changes its input")
}

// TestJobFromRefused expects a refusal with a hint if a place cannot be the source.
func TestJobFromRefused(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(j *replicate.Job){
		"root dataset of a pool": func(j *replicate.Job) { j.Source = "tank" },
		"first:near sends to it": func(j *replicate.Job) { j.Snapshots = replicate.Snapshots{ReceivedFrom: "first:near"} },
		"has no such target":     func(j *replicate.Job) { j.Targets = j.Targets[1:] },
		"can be named":           func(j *replicate.Job) { j.Targets[1].Name = replicate.FormerSource },
		"cannot run from target": func(j *replicate.Job) { j.Transfer.Wire = "nc" },
	} {
		j := placesJob(t)
		change(j)
		_, err := From(j, "near")
		require.ErrorContains(t, err, want)
		require.Equal(t, fault.Refused, fault.ClassOf(err), want)
		require.NotEmpty(t, fault.HintOf(err), want)
	}
}
