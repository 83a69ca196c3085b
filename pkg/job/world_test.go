package job

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// world is a host in memory with the pools src and dst: both ends of a copy
// within one host.
type world struct {
	*hosts.Local
	host *zfsmem.Host
	// before is asked before each operation on each name, "snapshot src/a@x".
	before func(op string) error

	mu  sync.Mutex
	did []string // changes, in order
}

// newWorld makes datasets, each with the names of its snapshots.
func newWorld(t *testing.T, datasets map[string][]string) *world {
	t.Helper()
	w := &world{host: zfsmem.New()}
	for _, name := range slices.Sorted(maps.Keys(datasets)) {
		w.host.Create(name, nil)
		for _, snap := range datasets[name] {
			require.NoError(t, w.host.Snapshot(t.Context(), []string{name + "@" + snap}))
		}
	}
	w.host.Around = w.around
	w.Local = hosts.On(w.host, "test", func(string) {})
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func (w *world) around(_ context.Context, op string, names []string, do func() error) error {
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
			w.did = append(w.did, op+" "+n)
		}
	}
	return err
}

// failing is a world's before that fails what begins so: "receive dst/a".
func failing(what string, why error) func(string) error {
	return func(op string) error {
		if strings.HasPrefix(op, what) {
			return why
		}
		return nil
	}
}

func (w *world) Open(context.Context, hosts.Address) (hosts.Host, error) { return w, nil }
func (w *world) Relay(context.Context, hosts.Address, string, func(error)) (string, error) {
	return "", errors.ErrUnsupported
}

// host is one that is reached by an Opener, "" for this one.
func host(o hosts.Opener, name string) *hosts.Conn {
	return hosts.New(o).Get(name, &transport.Settings{})
}

// request is to send src/a and all below it to dst.
func request(change func(*Send)) Send {
	req := Send{
		Source: endpoint.Endpoint{Name: "src/a"}, Target: endpoint.Endpoint{Name: "dst"},
		Plan: plan.Request{Source: "src/a", Target: "dst", Recursive: true},
	}
	if change != nil {
		change(&req)
	}
	return req
}

// batch is the same as a Batch, of a survey that was made for it.
func (w *world) batch(t *testing.T, change func(*Send)) Batch {
	t.Helper()
	l, err := w.List(t.Context(), hosts.ListQuery{Dataset: "src/a", Recursive: true, Versions: true})
	require.NoError(t, err)
	return Batch{Send: request(change), Survey: l}
}

// silent is a Reporter that needs no output.
type silent struct{}

func (silent) Log(string)                      {}
func (silent) Activity(string) func()          { return func() {} }
func (silent) Planned(*Report)                 {}
func (silent) Started(int, *plan.Dataset, int) {}
func (silent) Progress(int, connect.Progress)  {}
func (silent) Finished(int, *StepResult)       {}
func (silent) Ended(*plan.Dataset, error)      {}
