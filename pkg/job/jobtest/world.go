// Package jobtest has hosts for the tests of jobs: one in memory, and one that lies.
package jobtest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// World is an in-memory host with the pools src and dst, which are both ends of a transfer.
type World struct {
	*hosts.Local
	Memory *zfsmem.Host
	// Before, if set, is called before each operation with "OPERATION NAME", such as "snapshot
	// src/a@x". Its error fails the operation.
	Before func(op string) error

	mu      sync.Mutex
	Changes []string // changing operations in order
}

// NewWorld creates datasets with the given snapshot names.
func NewWorld(t *testing.T, datasets map[string][]string) *World {
	t.Helper()
	w := &World{Memory: zfsmem.New()}
	for _, name := range slices.Sorted(maps.Keys(datasets)) {
		w.Memory.Create(name, nil)
		for _, snap := range datasets[name] {
			require.NoError(t, w.Memory.Snapshot(t.Context(), []string{name + "@" + snap}))
		}
	}
	w.Memory.Around = w.intercept
	w.Local = hosts.On(w.Memory, "test", func(string) {})
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func (w *World) intercept(_ context.Context, op string, names []string, do func() error) error {
	for _, n := range names {
		if w.Before != nil {
			if err := w.Before(op + " " + n); err != nil {
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
			w.Changes = append(w.Changes, op+" "+n)
		}
	}
	return err
}

// FailOn returns a World.Before that fails operations with this prefix, such as "receive
// dst/a".
func FailOn(what string, why error) func(string) error {
	return func(op string) error {
		if strings.HasPrefix(op, what) {
			return why
		}
		return nil
	}
}

func (w *World) Open(context.Context, hosts.Address) (hosts.Host, error) { return w, nil }

// Connect returns a connection through an Opener; "" is the local host.
func Connect(o hosts.Opener, name string) *hosts.Conn {
	return hosts.New(o).Get(name, &transport.Settings{})
}
