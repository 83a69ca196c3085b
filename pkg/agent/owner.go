package agent

import (
	"context"
	"fmt"
	"slices"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/budget"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

var opSetProperties = operation[zfs.PropertyChange, none]{
	name: "adjust",
	do:   does(hosts.Restorer.SetProperties),
	rule: authz.Changes(authz.SetProperties, authz.PropertyNames),
}

// SetProperties asks the agent.
func (r *Remote) SetProperties(ctx context.Context, a zfs.PropertyChange) error {
	return tell(ctx, r, opSetProperties, a)
}

var opMount = operation[string, none]{
	name: "mount",
	do:   does(hosts.Restorer.Mount),
	rule: authz.Changes(authz.Mount, authz.Name),
}

// Mount asks the agent.
func (r *Remote) Mount(ctx context.Context, dataset string) error {
	return tell(ctx, r, opMount, dataset)
}

// A restricted agent has no rule for it: what is in use stays so.
var opUnmount = operation[string, none]{name: "unmount", do: does(hosts.Restorer.Unmount)}

// Unmount asks the agent.
func (r *Remote) Unmount(ctx context.Context, dataset string) error {
	return tell(ctx, r, opUnmount, dataset)
}

var opRollback = operation[zfs.Rollback, none]{
	name:    "rollback",
	do:      does(hosts.Restorer.Rollback),
	rule:    authz.Never[zfs.Rollback]("the newest data of an original may exist nowhere else: a restricted key does not roll it back"),
	request: manyNames,
}

// Rollback asks the agent.
func (r *Remote) Rollback(ctx context.Context, to zfs.Rollback) error {
	return tell(ctx, r, opRollback, to)
}

var opInheritKey = operation[string, none]{
	name: "join-key",
	do:   does(hosts.Restorer.InheritKey),
	rule: authz.Changes(authz.InheritKey, authz.Name),
}

// InheritKey asks the agent.
func (r *Remote) InheritKey(ctx context.Context, dataset string) error {
	return tell(ctx, r, opInheritKey, dataset)
}

var opInheritKeyAsserted = operation[zfs.AssertedKey, none]{
	name: "take-key",
	do:   does(hosts.Restorer.InheritKeyAsserted),
	rule: authz.Never[zfs.AssertedKey]("of a key that is no passphrase a restricted key is not believed"),
}

// InheritKeyAsserted asks the agent.
func (r *Remote) InheritKeyAsserted(ctx context.Context, t zfs.AssertedKey) error {
	return tell(ctx, r, opInheritKeyAsserted, t)
}

var opMakeEncryptionRoot = operation[string, none]{
	name: "part-key",
	do:   does(hosts.Restorer.MakeEncryptionRoot),
	rule: authz.Changes(authz.MakeEncryptionRoot, authz.Name),
}

// MakeEncryptionRoot asks the agent.
func (r *Remote) MakeEncryptionRoot(ctx context.Context, dataset string) error {
	return tell(ctx, r, opMakeEncryptionRoot, dataset)
}

// A restricted agent tells nothing of its host's directories and devices.
var opInUse = operation[[]string, map[string]string]{
	name:    "occupied",
	do:      asks(hosts.Restorer.InUse),
	rule:    authz.Reads(authz.HostFacts[[]string]),
	request: manyNames,
	answer:  func(paths []string, question int) int { return 4*question + len(paths)*budget.One },
	check: func(paths []string, found *map[string]string) error {
		for path := range *found {
			if !slices.Contains(paths, path) {
				return fmt.Errorf("%q was told of, and not asked for", path)
			}
		}
		return nil
	},
}

// InUse asks the agent.
func (r *Remote) InUse(ctx context.Context, paths []string) (map[string]string, error) {
	return ask(ctx, r, opInUse, paths, nil)
}
