package roundtrips

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/plan"
)

// TestSend counts the round trips of send.
func TestSend(t *testing.T) {
	inWorld(t, func(w *world) {
		w.observe(w.local, "local")
		w.observe(w.beta, "beta")
		w.local.Write("tank/a", make([]byte, 1<<20))
		require.NoError(t, w.local.Snapshot(w.t.Context(), []string{"tank/a@1"}))
		send := func(at *hosts.Set) error {
			r, err := job.RunSend(w.t.Context(), job.Send{
				Source: endpoint.Endpoint{Name: "tank/a"}, Target: endpoint.Endpoint{Host: "beta", Name: "vault/a"},
				Plan: plan.Request{Source: "tank/a", Target: "vault/a"},
			}, at, quiet{job.Quiet{}, t})
			_ = r
			return err
		}
		n, line := w.measure(send)
		t.Logf("first full: %.1f\n%s", n, line)
		w.local.Write("tank/a", make([]byte, 64<<10))
		require.NoError(t, w.local.Snapshot(w.t.Context(), []string{"tank/a@2"}))
		n, line = w.measure(send)
		t.Logf("increment: %.1f\n%s", n, line)
		n, line = w.measure(send)
		t.Logf("nothing new: %.1f\n%s", n, line)
	})
}

type quiet struct {
	job.Quiet
	t *testing.T
}

func (q quiet) Log(s string) { q.t.Log(s) }
