package roundtrips

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
)

// send returns the command that sends a dataset, and its report.
func (w *world) send(source, target endpoint.Endpoint, change func(*send.Request)) (func(at *hosts.Set) error, *send.Report) {
	report := &send.Report{}
	return func(at *hosts.Set) error {
		req := send.Request{Source: source, Target: target, Plan: plan.Request{Source: source.Name, Target: target.Name}}
		if change != nil {
			change(&req)
		}
		r, err := send.Run(w.t.Context(), req, at, quiet{send.Quiet{}, w.t})
		*report = *r
		return err
	}, report
}

type quiet struct {
	send.Quiet
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

func sendTo(t *testing.T) []measured {
	return sends(t, "send to a remote host", endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}, 6, 3)
}

func sendFrom(t *testing.T) []measured {
	return sends(t, "send from a remote host", endpoint.Endpoint{Host: "beta", Name: "tank/a"}, endpoint.Endpoint{Name: "vault/a"}, 7, 3)
}

// sends measures a first full send, a small increment, and a send of nothing.
func sends(t *testing.T, name string, source, target endpoint.Endpoint, full, increment float64) (all []measured) {
	inWorld(t, func(w *world) {
		send, _ := w.send(source, target, nil)
		add := func(what string, most float64) {
			trips, timeline := w.measure(send)
			all = append(all, measured{name + ", " + what, trips, most, timeline})
		}
		w.snapshot("1", 1<<20)
		add("first full of 1 MiB", full)
		w.snapshot("2", 64<<10)
		add("increment of 64 KiB", increment)
		add("nothing new", 1)
	})
	return all
}

// TestEstimateTooLow expects that a stream that is larger than its estimate arrives all the same.
func TestEstimateTooLow(t *testing.T) {
	for _, bytes := range []int{64 << 10, 12 << 20} {
		inWorld(t, func(w *world) {
			w.snapshot("1", bytes)
			w.estimate = []uint64{1000}
			send, report := w.send(endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Host: "beta", Name: "vault/a"}, nil)
			w.measure(send)
			require.Len(t, report.Results, 1)
			require.Equal(t, "ssh", report.Results[0].Wire)
			require.Equal(t, "guid", report.Results[0].Verified)
			require.Len(t, w.beta.Versions("vault/a"), 1)
		})
	}
}
