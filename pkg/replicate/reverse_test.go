package replicate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/retention"
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

func placesJob(t *testing.T) *Job {
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
	same, err := j.From("")
	require.NoError(t, err)
	require.Same(t, j, same)
	r, err := j.From("near")
	require.NoError(t, err)
	require.Equal(t, []any{"home", "root@b:vault/home", true, "hourly", j.Snapshots, j.Targets[0].Retention, "", j.Notify},
		[]any{r.Name, r.Source, r.Recursive, r.Schedule, r.Snapshots, r.Retention, r.Property, r.Notify})
	require.Equal(t, []string{"source", "ssh -p 2"}, []string{r.Transfer.Dial, r.Transfer.RSH})
	require.Len(t, r.Targets, 2)
	former, far := r.Targets[0], r.Targets[1]
	require.Equal(t, []any{FormerSource, "tank/home", j.Retention, []string{"scratch"}, "", "", true},
		[]any{former.Name, former.To, former.Retention, former.Exclude, former.Property, former.OnDivergence, former.Properties.Carry})
	require.Equal(t, []any{"source", "ssh -i k", j.Targets[0].Transfer.Bandwidth}, []any{former.Transfer.Dial, former.Transfer.RSH, former.Transfer.Bandwidth})
	require.Equal(t, []any{"far", "c:pool/home", j.Targets[1].Retention, "zxfer:far=on", (*Mirror)(nil)}, []any{far.Name, far.To, far.Retention, far.Property, far.Mirror})
	require.Equal(t, []any{"source", "ssh -i k", j.Transfer.Bandwidth}, []any{far.Transfer.Dial, far.Transfer.RSH, far.Transfer.Bandwidth})
	require.Equal(t, []string{"zxfer:home:near", "zxfer:home:far", "zxfer:home:near"}, []string{r.Tag(FormerSource), r.Tag("far"), j.Tag("near")})
	require.Equal(t, placesJob(t).Targets, j.Targets, "it changes its input")
}

// TestJobFromRefused expects a refusal with a hint if a place cannot be the source.
func TestJobFromRefused(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(j *Job){
		"root dataset of a pool": func(j *Job) { j.Source = "tank" },
		"first:near sends to it": func(j *Job) { j.Snapshots = Snapshots{ReceivedFrom: "first:near"} },
		"has no such target":     func(j *Job) { j.Targets = j.Targets[1:] },
		"can be named":           func(j *Job) { j.Targets[1].Name = FormerSource },
		"cannot run from target": func(j *Job) { j.Transfer.Wire = "nc" },
	} {
		j := placesJob(t)
		change(j)
		_, err := j.From("near")
		require.ErrorContains(t, err, want)
		require.Equal(t, fault.Refused, fault.ClassOf(err), want)
		require.NotEmpty(t, fault.HintOf(err), want)
	}
}

// TestStateTurn turns the state of a job with two targets there and back, and expects that the bases, holds and
// histories stay with their places.
func TestStateTurn(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	state := func() *State {
		copies := map[string]*CopyState{
			"near": {Target: "vault/home", Base: "b", BaseOnTarget: "n", BaseGUID: 7, Held: []Held{{Source: "tank/home@b", Target: "vault/home@n"}}, Attempt: Attempt{Success: at}},
			"far":  {Target: "pool/home", Base: "a", BaseOnTarget: "a", BaseGUID: 5, Held: []Held{{Source: "tank/home@a", Target: "pool/home@a"}}},
		}
		return &State{Root: 1, Datasets: map[string]*DatasetState{
			"tank/home":   {GUID: 1, Targets: copies, Pruned: map[string]string{SourceSide: "x"}, Histories: map[string]*retention.History{SourceSide: {Dataset: 1}, "near": {Dataset: 2}, "far": {Dataset: 3}}},
			"tank/home/x": {GUID: 4, Targets: map[string]*CopyState{"far": {Target: "pool/home/x"}}},
		}, Orphans: []*Orphan{{Target: "near", Source: "tank/home/gone", Dataset: "vault/home/gone"}, {Target: "far", Source: "tank/home/gone", Dataset: "pool/home/gone"}},
			Diverged: []DivergedCopy{{Target: "near"}}}
	}
	s := state()
	s.Turn("", at)
	require.Equal(t, state(), s)
	s.Turn("near", at)
	require.Equal(t, []any{"near", at, uint64(0), 1, 1}, []any{s.Place, s.PlaceSince, s.Root, len(s.Datasets), len(s.Diverged)})
	d := s.Datasets["vault/home"]
	require.Equal(t, map[string]*retention.History{SourceSide: {Dataset: 2}, FormerSource: {Dataset: 1}, "far": {Dataset: 3}}, d.Histories)
	require.Equal(t, map[string]*CopyState{
		FormerSource: {Target: "tank/home", Base: "n", BaseOnTarget: "b", BaseGUID: 7, Moving: true, Held: []Held{{Source: "vault/home@n", Target: "tank/home@b"}}, Attempt: Attempt{Success: at}},
		"far":        {Target: "pool/home", Base: "a", BaseOnTarget: "a", BaseGUID: 5, Moving: true, Held: []Held{{Target: "pool/home@a"}}},
	}, d.Targets)
	require.Equal(t, []*Orphan{{Target: "far", Source: "vault/home/gone", Dataset: "pool/home/gone"}}, s.Orphans)
	s.Turn("", time.Time{})
	require.Equal(t, []Held{{Source: "tank/home@b", Target: "vault/home@n"}}, s.Datasets["tank/home"].Targets["near"].Held)
	require.Equal(t, state().Datasets["tank/home"].Histories, s.Datasets["tank/home"].Histories)
	require.Equal(t, "tank/home/gone", s.Orphans[0].Source)
	for _, name := range []string{"", "near", "far"} {
		require.Equal(t, name, TurnedName(TurnedName(name, "", "near"), "near", ""))
	}
	require.Equal(t, []string{FormerSource, "", "far"}, []string{TurnedName("", "", "near"), TurnedName("near", "", "near"), TurnedName("far", "", "near")})
}
