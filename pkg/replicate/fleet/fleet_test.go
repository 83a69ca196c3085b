package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/status"
)

// statusOf returns the answer of a host with jobs in the given states.
func statusOf(host string, states ...string) []byte {
	s := &status.Status{Schema: status.Schema, Host: host, Jobs: []*status.JobStatus{}}
	for i, state := range states {
		s.Jobs = append(s.Jobs, &status.JobStatus{Job: fmt.Sprintf("job%d", i), State: state, Late: state == status.Late, Verdict: status.Verdict{Failed: state == outcome.Failed}, Datasets: []*status.DatasetStatus{
			{Source: "tank/a", State: status.OK, Success: time.Unix(2e9, 0)}, {Source: "tank/b", State: state, Success: time.Unix(1e9, 0)}}})
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // the type always encodes
	}
	return text
}

// gather queries hosts that answer from a table; "" hangs.
func gather(t *testing.T, answers map[string]string, all ...Query) *Fleet {
	t.Helper()
	var f *Fleet
	synctest.Test(t, func(t *testing.T) { f = gatherNow(t, answers, all) }) // only hosts that hang take time
	return f
}

func gatherNow(t *testing.T, answers map[string]string, all []Query) *Fleet {
	t.Helper()
	f, err := Gather(t.Context(), all, Options{Parallel: 2, Timeout: 100 * time.Millisecond, Ask: func(ctx context.Context, a Query) ([]byte, error) {
		answer, ok := answers[a.Address]
		switch {
		case !ok:
			return nil, fault.Failf("test the connection: ssh "+a.Address, "ssh: connect to host: Connection refused")
		case answer == "":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return []byte(answer), nil
	}}, &Progress{})
	require.NoError(t, err)
	return f
}

func TestWorstFirst(t *testing.T) {
	t.Parallel()
	f := gather(t, map[string]string{
		"well": string(statusOf("", status.OK)), "late": "Welcome!\n" + string(statusOf("", status.OK, status.Late)), "failed": string(statusOf("", outcome.Failed)), "hangs": "", "idle": string(statusOf("")),
	}, Query{Address: "well"}, Query{Address: "late"}, Query{Address: "down"}, Query{Address: "idle"}, Query{Address: "hangs"}, Query{Address: "failed"},
		Query{Name: "self", Here: func() (*status.Status, error) { return &status.Status{}, nil }},
		Query{Name: "broken", Here: func() (*status.Status, error) { return nil, errors.New("no job file") }})
	var got []string
	for _, h := range f.Hosts {
		got = append(got, h.Host+" "+h.State)
	}
	require.Equal(t, []string{"failed failed", "late late", "down unreachable", "hangs unreachable", "broken unreachable", "well ok", "idle ok", "self ok"}, got)
	require.True(t, f.Late)
	require.True(t, f.Failed)
	require.Equal(t, 3, f.Unreachable)
	require.Equal(t, "it did not answer within 100ms", f.Hosts[3].Error)
	require.Contains(t, f.Hosts[2].Hint, "test the connection")
	late := f.Hosts[1]
	require.Equal(t, "job1", late.Jobs[0].Job)
	require.Equal(t, 2, late.Jobs[0].Copies)
	require.Equal(t, 1, late.Jobs[0].Well)
	require.Equal(t, time.Unix(1e9, 0).UTC(), late.Jobs[0].Oldest.UTC())
	require.Len(t, late.Jobs[0].Datasets, 1, "only hosts with problems")
	require.Error(t, f.Err())
	f.Shorten()
	require.Len(t, f.Hosts, 5)
	require.Len(t, f.Hosts[1].Jobs, 1)
}

func TestDecodeAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ answer, want string }{
		"nothing":                    {"\n", "its answer is not a job status: empty answer"},
		"an agent":                   {"zxfer-agent 2 abc\n", `its answer is not a job status: "zxfer-agent 2 abc"`},
		"not at the start of a line": {`x{"schema":"zxfer.replicate.status/v1"}`, "its answer is not a job status"},
		"truncated":                  {string(statusOf("", status.OK)[:40]), "its answer is not a job status"},
		"another schema":             {`{"schema":"zxfer.replicate.status/v2","jobs":3}`, `answer has the format "zxfer.replicate.status/v2", expected zxfer.replicate.status/v1`},
		"escapes":                    {"{\"schema\":\"\\u001b[2J\"}", `"\x1b[2J"`},
		"too much":                   {`{"schema":"` + strings.Repeat(" ", MaxAnswer), "longer than 8388608 bytes"},
		"a number of jobs":           {`{"schema":"zxfer.replicate.status/v1","jobs":3}`, "its answer is not a job status"},
		"null for a job":             {`{"schema":"zxfer.replicate.status/v1","jobs":[null]}`, "it contains null"},
		"null for a copy":            {`{"schema":"zxfer.replicate.status/v1","jobs":[{"job":"a","datasets":[null]}]}`, "it contains null"},
		"a job's name":               {`{"schema":"zxfer.replicate.status/v1","jobs":[{"job":"a b"}]}`, `a job with the name "a b"`},
		"many jobs":                  {`{"schema":"zxfer.replicate.status/v1","jobs":[` + strings.Repeat("{},", 1000) + `{}]}`, "1001 jobs"},
		"many copies":                {`{"schema":"zxfer.replicate.status/v1","jobs":[{"job":"a","datasets":[` + strings.Repeat("{},", MaxAnswer/3-40) + `{}]}]}`, "bytes of memory"},
		"many jobs, late":            {`{"schema":"zxfer.replicate.status/v1","jobs":[` + strings.Repeat("{},", MaxAnswer/3-40) + `{}]}`, "bytes of memory"},
		"many lists":                 {`{"schema":"zxfer.replicate.status/v1","x":` + strings.Repeat("[],", MaxAnswer/3-40) + `3}`, "bytes of memory"},
		"another host":               {string(statusOf("web2", status.OK)), `another host answered: x reports the host name "web2"`},
	} {
		f := gather(t, map[string]string{"x": tt.answer}, Query{Name: "web1", Address: "x"})
		require.Equal(t, status.Unreachable, f.Hosts[0].State, name)
		require.Contains(t, f.Hosts[0].Error, tt.want, name)
		require.NotContains(t, f.Hosts[0].Error+f.Hosts[0].Hint, "\x1b", name)
		require.Empty(t, f.Hosts[0].Jobs, name)
	}
	evil := `{"schema":"zxfer.replicate.status/v1","host":"web1.example.org","jobs":[{"job":"a","state":"\u001b[31mok\u202e","lag_seconds":-1e300,"doubted":-3,"seconds":1e300,` +
		`"problems":[{"state":"failed","error":"a\u0000b\u009bc` + strings.Repeat("x", 10_000) + `","datasets":["t\r\nx"]}],"drill":{"outcome":"\u0007"},"datasets":[]}]}`
	f := gather(t, map[string]string{"x": evil}, Query{Name: "web1", Address: "x"})
	j := f.Hosts[0].Jobs[0]
	require.Equal(t, outcome.Failed, j.State, "an unknown word is the worst")
	require.Equal(t, outcome.Failed, f.Hosts[0].State)
	require.Zero(t, j.Lag)
	require.Zero(t, j.Untrusted)
	require.InDelta(t, maxNumber, j.Seconds, 1)
	require.True(t, strings.HasPrefix(j.Problems[0].Error, "a?b?cxx"))
	require.LessOrEqual(t, len(j.Problems[0].Error), maxText+len("..."))
	require.Equal(t, "t?\nx", j.Problems[0].Datasets[0])
	require.Equal(t, "?", j.Drill.Outcome)
}

// TestContradictoryAnswers expects that if parts of an answer contradict each other, the
// worst one counts.
func TestContradictoryAnswers(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`"state":"ok","late":true,"failed":true`: "late",
		`"state":"ok","late":true`:               "late",
		`"state":"ok","failed":true`:             "failed",
		`"state":"ok","lag_seconds":9e9,"lag_warning_seconds":9,"lag_critical_seconds":9`: "late",
		`"state":"ok","problems":[{"state":"damaged","error":"x"}]`:                       "damaged",
		`"state":"ok","datasets":[{"state":"weird"}]`:                                     "failed",
		`"state":"ok","datasets":[{"state":"ok","late":true}]`:                            "late",
		`"state":"ok","datasets":[{"state":"ok","outcome":"refused"}]`:                    "refused",
		`"state":"ok","drill":{"late":true}`:                                              "late",
		`"state":"ok","drill":{"age_seconds":9,"age_warning_seconds":3}`:                  "late",
		`"state":"failed"`:      "failed",
		`"state":"late"`:        "late",
		`"state":""`:            "failed",
		`"state":"unreachable"`: "failed",
		`"state":"ok","datasets":[{"state":"unreachable"}]`: "failed",
		`"state":"ok","problems":[{"state":"unreachable"}]`: "failed",
		`"state":"ok","drill":{"outcome":"unreachable"}`:    "failed",
		`"state":"ok"`: "ok",
	} {
		f := gather(t, map[string]string{"x": `{"schema":"zxfer.replicate.status/v1","jobs":[{"job":"a",` + answer + `}]}`}, Query{Address: "x"})
		require.Equal(t, want, f.Hosts[0].State, answer)
		require.Equal(t, want, f.Hosts[0].Jobs[0].State, answer)
		require.Equal(t, want == "ok", f.Err() == nil, answer)
		for _, d := range f.Hosts[0].Jobs[0].Datasets {
			require.NotEqual(t, status.OK, d.State, answer)
		}
	}
}

// TestMissingJobs expects that an expected job that the host does not know is a
// failure.
func TestMissingJobs(t *testing.T) {
	t.Parallel()
	f := gather(t, map[string]string{"x": string(statusOf("web1")), "y": string(statusOf("web2", status.OK)), "z": string(statusOf("web3", status.OK, status.OK))},
		Query{Name: "web1", Address: "x", Jobs: []string{"job0"}}, Query{Name: "web2", Address: "y", Jobs: []string{"job0", "job1"}}, Query{Name: "web3", Address: "z", Jobs: []string{"job0"}})
	var got []string
	for _, h := range f.Hosts {
		got = append(got, h.Host+" "+h.State)
	}
	require.Equal(t, []string{"web1 unknown", "web2 unknown", "web3 ok"}, got)
	require.Len(t, f.Hosts[1].Jobs, 2)
	j := f.Hosts[1].Jobs[0]
	require.Equal(t, "job1", j.Job)
	require.Equal(t, "the host's job file lacks this job", j.Problems[0].Error)
	require.Error(t, f.Err())
}

// TestGatherLimitsConcurrency expects that Gather limits the number of concurrent queries, and queries each
// host once.
func TestGatherLimitsConcurrency(t *testing.T) {
	t.Parallel()
	var all []Query
	for i := range 100 {
		all = append(all, Query{Address: fmt.Sprint("web", i)})
	}
	var now, most, asked atomic.Int64
	p := &Progress{}
	var seen atomic.Value
	f, err := Gather(t.Context(), all, Options{Parallel: 8, Timeout: time.Minute, Ask: func(context.Context, Query) ([]byte, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		asked.Add(1)
		time.Sleep(time.Millisecond)
		seen.Store(p.String())
		return statusOf("", status.OK), nil
	}}, p)
	require.NoError(t, err)
	require.Len(t, f.Hosts, 100)
	require.NoError(t, f.Err())
	require.EqualValues(t, 100, asked.Load())
	require.LessOrEqual(t, most.Load(), int64(8))
	require.Contains(t, seen.Load(), "of 100 hosts answered")
	require.Equal(t, "100 of 100 hosts answered", p.String())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Gather(ctx, all, Options{Parallel: 1}, &Progress{})
	require.ErrorIs(t, err, context.Canceled)
}

func FuzzDecode(f *testing.F) {
	f.Add(statusOf("web1", status.OK, status.Late))
	f.Add([]byte(`{"schema":"zxfer.replicate.status/v1","jobs":[{"job":"a","drill":{"not_good":[null]},"datasets":[{"lag_seconds":-1}]}]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		s, err := decode(answer)
		if err != nil {
			return
		}
		h := &Host{}
		h.setStatus(s, nil)
		text, err := json.Marshal(h)
		require.NoError(t, err)
		require.NotContains(t, string(text), `\u00`, "no control character is left")
	})
}

// TestLargestAnswersAreAccepted accepts answers with the number of copies that
// docs/howto/many-hosts.md allows.
func TestLargestAnswersAreAccepted(t *testing.T) {
	t.Parallel()
	s := &status.Status{Schema: status.Schema, Jobs: []*status.JobStatus{{Job: "a", State: status.Late}}}
	yes := true
	for i := range 20_000 {
		name := fmt.Sprintf("tank/some/where/dataset-%d", i)
		s.Jobs[0].Datasets = append(s.Jobs[0].Datasets, &status.DatasetStatus{Source: name, To: "near", Target: "vault/" + name, State: status.Late, Lateness: status.Lateness{Late: true, LateAfter: time.Unix(2e9, 0)}, Base: "zxfer_a_2026-11-21T08:00:00Z", Consistent: &yes, Success: time.Unix(2e9, 0), Bytes: 1 << 40, Seconds: 3.25})
	}
	text, err := json.Marshal(s)
	require.NoError(t, err)
	f := gather(t, map[string]string{"x": string(text)}, Query{Address: "x"})
	require.Equal(t, status.Late, f.Hosts[0].State, f.Hosts[0].Error)
	require.Equal(t, 20_000, f.Hosts[0].Jobs[0].Copies)
}

// TestStatusMemoryIsBounded expects limited memory for decoding the most expensive valid
// answer.
func TestStatusMemoryIsBounded(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	padding := strings.Repeat(" ", MaxAnswer-1<<20)
	for name, in := range map[string]string{"copies": `{"job":"a","datasets":[%s{}]}`, "problems": `{"job":"a","problems":[%s{}]}`, "diverged copies": `{"job":"a","set_aside":[%s{}]}`} {
		answer := ""
		for n := 300_000; n > 0; n -= 10_000 {
			answer = `{"schema":"zxfer.replicate.status/v1","jobs":[` + fmt.Sprintf(in, strings.Repeat("{},", n)) + `]}`
			if answer += padding[:min(len(padding), MaxAnswer-len(answer))]; budget.Cost([]byte(answer)) <= budget.Limit(maxCost, len(answer)) {
				break
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := decode([]byte(answer))
		runtime.ReadMemStats(&after)
		require.NoError(t, err, name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*maxCost), name)
	}
}

// TestObjectFloodIsRejected expects that 2.7 million objects in 8 MiB are rejected before
// they are decoded. The allocated memory is about one copy of the answer.
func TestObjectFloodIsRejected(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	answer := []byte(`{"schema":"zxfer.replicate.status/v1","jobs":[{"job":"a","datasets":[` + strings.Repeat("{},", 2_700_000) + `{}]}]}`)
	require.LessOrEqual(t, len(answer), MaxAnswer)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := decode(answer)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "bytes of memory, more than")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	require.Less(t, after.HeapSys, before.HeapSys+uint64(MaxAnswer))
}
