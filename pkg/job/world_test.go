package job

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// world is an in-memory host with the pools src and dst, which are both ends of a transfer.
type world struct {
	*hosts.Local
	host *zfsmem.Host
	// before, if set, is called before each operation with "OPERATION NAME", such as "snapshot
	// src/a@x". Its error fails the operation.
	before func(op string) error

	mu      sync.Mutex
	changes []string // changing operations in order
}

// newWorld creates datasets with the given snapshot names.
func newWorld(t *testing.T, datasets map[string][]string) *world {
	t.Helper()
	w := &world{host: zfsmem.New()}
	for _, name := range slices.Sorted(maps.Keys(datasets)) {
		w.host.Create(name, nil)
		for _, snap := range datasets[name] {
			require.NoError(t, w.host.Snapshot(t.Context(), []string{name + "@" + snap}))
		}
	}
	w.host.Around = w.intercept
	w.Local = hosts.On(w.host, "test", func(string) {})
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func (w *world) intercept(_ context.Context, op string, names []string, do func() error) error {
	for _, n := range names {
		if w.before != nil {
			if err := w.before(op + " " + n); err != nil {
				return err
			}
		}
	}
	err := do()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names {
		arrived := op == zfs.OpReceive && strings.Contains(n, "@")
		if err == nil && (arrived || op == zfs.OpSnapshot || op == zfs.OpDiscard) {
			w.changes = append(w.changes, op+" "+n)
		}
	}
	return err
}

// failOn returns a world's before that fails operations with this prefix, such as "receive
// dst/a".
func failOn(what string, why error) func(string) error {
	return func(op string) error {
		if strings.HasPrefix(op, what) {
			return why
		}
		return nil
	}
}

func (w *world) Open(context.Context, hosts.Address) (hosts.Host, error) { return w, nil }

// host returns a connection through an Opener; "" is the local host.
func host(o hosts.Opener, name string) *hosts.Conn {
	return hosts.New(o).Get(name, &transport.Settings{})
}

// sendRequest returns a request to send src/a and its descendants to dst.
func sendRequest(change func(*Send)) Send {
	req := Send{
		Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst"},
		Plan: plan.Request{Source: "src/a", Target: "dst", Recursive: true},
	}
	if change != nil {
		change(&req)
	}
	return req
}

// batch returns the same request as a Batch with its own survey.
func (w *world) batch(t *testing.T, change func(*Send)) Batch {
	t.Helper()
	l, err := w.List(t.Context(), hosts.ListQuery{Dataset: "src/a", Recursive: true, Versions: true})
	require.NoError(t, err)
	return Batch{Send: sendRequest(change), Survey: l}
}

// silent is a Reporter without output.
type silent struct{}

func (silent) Log(string)                      {}
func (silent) Activity(string) func()          { return func() {} }
func (silent) Planned(*Report)                 {}
func (silent) Started(int, *plan.Dataset, int) {}
func (silent) Progress(int, connect.Progress)  {}
func (silent) Finished(int, *StepResult)       {}
func (silent) Ended(*plan.Dataset, error)      {}

// testEnds returns the local host and beta with these facts.
func testEnds(a, b hosts.Facts) *ends.Ends {
	return &ends.Ends{Source: ends.End{Conn: host(nil, ""), Facts: a}, Target: ends.End{Conn: host(nil, "beta"), Facts: b}}
}
