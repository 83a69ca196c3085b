package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/probe"
	"zxfer/pkg/transport"
)

// TestTwoMachinesAreMeasuredConcurrently expects that two machines are measured concurrently. Two
// hosts on one kernel, or on an unknown one, would disturb each other and are measured in turn.
func TestTwoMachinesAreMeasuredConcurrently(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a, b string
		want []string
	}{
		"two machines":                  {"1", "2", []string{"a, b", "c"}},
		"two containers of one machine": {"1", "1", []string{"a", "b", "c"}},
		"one unknown machine":           {"1", "", []string{"a", "b", "c"}},
		"two unknown machines":          {"", "", []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var told []string
			m := measurerOf(hosts.Facts{Boot: c.a}, hosts.Facts{Boot: c.b},
				func(what string) func() {
					told = append(told, what)
					return func() {}
				})
			var mu sync.Mutex
			running, most := 0, 0
			barrier := make(chan struct{})
			takes := func(id string) Measurement {
				return Measurement{id, func(context.Context) (*probe.Ceiling, error) {
					mu.Lock()
					running++
					most = max(most, running)
					if running == 2 {
						close(barrier)
					}
					mu.Unlock()
					if len(c.want) == 2 && id != "c" {
						<-barrier // both have arrived
					}
					mu.Lock()
					running--
					mu.Unlock()
					return &probe.Ceiling{ID: id}, nil
				}}
			}
			var all Rounds
			m.AddPair(&all, takes("a"), takes("b"))
			all.Add(takes("c"))
			require.NoError(t, m.Run(t.Context(), all))
			for i, what := range c.want {
				require.Equal(t, fmt.Sprintf("measuring %d of %d: %s", i+1, len(c.want), what), told[i])
			}
			require.Equal(t, 4-len(c.want), most)
			require.True(t, slices.EqualFunc(m.Ceilings, []string{"a", "b", "c"}, func(c probe.Ceiling, id string) bool { return c.ID == id }), "in order: %v", m.Ceilings)
		})
	}
}

// TestUnmeasuredParts expects that parts without a Measurement are listed, because they may be
// slower.
func TestUnmeasuredParts(t *testing.T) {
	t.Parallel()
	m := measurerOf(hosts.Facts{CPUs: 8, Boot: "1"}, hosts.Facts{CPUs: 8, Boot: "2"}, nil)
	require.Nil(t, m.Expected(1, 0))
	m.Ceilings = []probe.Ceiling{{ID: forecast.Link, Host: "local", Peer: "beta", BytesPerSecond: 300e6}, {ID: probe.TargetWrite, Host: "beta", Skipped: "refused"}}
	require.Equal(t, []string{"source", "target"}, m.Expected(1e9, 0).Unmeasured)
}

// noHosts is a set of hosts that cannot be reached.
type noHosts struct{}

func (noHosts) Open(context.Context, hosts.Address) (hosts.Host, error) {
	return nil, errors.ErrUnsupported
}

// watcher receives the titles of activities.
type watcher func(title string) (done func())

func (watcher) Log(string)                            {}
func (w watcher) Activity(title string) (done func()) { return w(title) }

// measurerOf returns a measurer of the local host and beta with these facts.
func measurerOf(a, b hosts.Facts, activity watcher) *Measurer {
	e := ends.New(hosts.New(noHosts{}), endpoint.Endpoint{}, endpoint.Endpoint{Host: "beta"}, &transport.Settings{})
	e.Source.Facts, e.Target.Facts = a, b
	return &Measurer{Ends: e, Reporter: activity}
}
