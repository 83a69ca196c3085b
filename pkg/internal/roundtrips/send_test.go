package roundtrips

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/plan"
)

// send returns the command that sends a dataset, and its report.
func (w *world) send(source, target endpoint.Endpoint, change func(*job.Send)) (func(at *hosts.Set) error, *job.Report) {
	report := &job.Report{}
	return func(at *hosts.Set) error {
		req := job.Send{Source: source, Target: target, Plan: plan.Request{Source: source.Name, Target: target.Name}}
		if change != nil {
			change(&req)
		}
		r, err := job.RunSend(w.t.Context(), req, at, quiet{job.Quiet{}, w.t})
		*report = *r
		return err
	}, report
}

type quiet struct {
	job.Quiet
	t *testing.T
}

func (q quiet) Log(s string) { q.t.Log(s) }

// snapshot writes data to both datasets tank/a and takes a snapshot of each.
func (w *world) snapshot(name string, bytes int) {
	for _, h := range w.hosts() {
		h.Write("tank/a", make([]byte, bytes))
		require.NoError(w.t, h.Snapshot(w.t.Context(), []string{"tank/a@" + name}))
	}
}

// TestSend counts the round trips of send to and from a remote host.
func TestSend(t *testing.T) {
	local, remote := endpoint.Endpoint{Name: "vault/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}
	for _, test := range []struct {
		name                   string
		source, target         endpoint.Endpoint
		raw                    bool
		full, increment, quiet float64 // most round trips
	}{
		{"send, to a remote host", endpoint.Endpoint{Name: "tank/a"}, remote, false, 7, 3, 1},
		{"send, from a remote host", endpoint.Endpoint{Host: "beta", Name: "tank/a"}, local, false, 9, 5, 1},
	} {
		inWorld(t, func(w *world) {
			w.snapshot("1", 1<<20)
			send, _ := w.send(test.source, test.target, nil)
			n, timeline := w.measure(send)
			require.LessOrEqual(t, n, test.full, "%s, first full:\n%s", test.name, timeline)
			t.Logf("%s: first full %.1f\n%s", test.name, n, timeline)
			w.snapshot("2", 64<<10)
			n, timeline = w.measure(send)
			require.LessOrEqual(t, n, test.increment, "%s, increment:\n%s", test.name, timeline)
			t.Logf("%s: increment %.1f\n%s", test.name, n, timeline)
			n, timeline = w.measure(send)
			require.LessOrEqual(t, n, test.quiet, "%s, nothing new:\n%s", test.name, timeline)
		})
	}
}

// TestEstimateTooLow expects that a stream that is larger than its estimate goes over a data
// connection.
func TestEstimateTooLow(t *testing.T) {
	for _, bytes := range []int{64 << 10, 1 << 20} {
		inWorld(t, func(w *world) {
			w.snapshot("1", bytes)
			w.estimate = []uint64{1000}
			send, report := w.send(endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}, nil)
			w.measure(send)
			require.Len(t, report.Results, 1)
			require.Equal(t, bytes > hosts.MaxInline, report.Results[0].Wire == "tls", report.Results[0].Wire)
			require.Equal(t, "guid", report.Results[0].Verified)
			require.Len(t, w.beta.Versions("vault/a"), 1)
		})
	}
}
