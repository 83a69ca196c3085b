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
	do:   withoutAnswer(hosts.Restorer.SetProperties),
	rule: authz.Changes(authz.SetProperties, authz.PropertyNames),
}

// SetProperties calls the agent.
func (r *Remote) SetProperties(ctx context.Context, a zfs.PropertyChange) error {
	return command(ctx, r, opSetProperties, a)
}

var opMount = operation[string, none]{
	name: "mount",
	do:   withoutAnswer(hosts.Restorer.Mount),
	rule: authz.Changes(authz.Mount, authz.Name),
}

// Mount calls the agent.
func (r *Remote) Mount(ctx context.Context, dataset string) error {
	return command(ctx, r, opMount, dataset)
}

// Without a rule, a restricted agent never unmounts.
var opUnmount = operation[string, none]{name: "unmount", do: withoutAnswer(hosts.Restorer.Unmount)}

// Unmount calls the agent.
func (r *Remote) Unmount(ctx context.Context, dataset string) error {
	return command(ctx, r, opUnmount, dataset)
}

var opRollback = operation[zfs.Rollback, none]{
	name:    "rollback",
	do:      withoutAnswer(hosts.Restorer.Rollback),
	rule:    authz.Never[zfs.Rollback]("the newest data of an original may exist nowhere else: a restricted key does not roll it back"),
	request: manyNames,
}

// Rollback calls the agent.
func (r *Remote) Rollback(ctx context.Context, to zfs.Rollback) error {
	return command(ctx, r, opRollback, to)
}

var opInheritKey = operation[string, none]{
	name: "join-key",
	do:   withoutAnswer(hosts.Restorer.InheritKey),
	rule: authz.Changes(authz.InheritKey, authz.Name),
}

// InheritKey calls the agent.
func (r *Remote) InheritKey(ctx context.Context, dataset string) error {
	return command(ctx, r, opInheritKey, dataset)
}

var opInheritKeyAsserted = operation[zfs.AssertedKey, none]{
	name: "take-key",
	do:   withoutAnswer(hosts.Restorer.InheritKeyAsserted),
	rule: authz.Never[zfs.AssertedKey]("of a key that is no passphrase a restricted key is not believed"),
}

// InheritKeyAsserted calls the agent.
func (r *Remote) InheritKeyAsserted(ctx context.Context, t zfs.AssertedKey) error {
	return command(ctx, r, opInheritKeyAsserted, t)
}

var opMakeEncryptionRoot = operation[string, none]{
	name: "part-key",
	do:   withoutAnswer(hosts.Restorer.MakeEncryptionRoot),
	rule: authz.Changes(authz.MakeEncryptionRoot, authz.Name),
}

// MakeEncryptionRoot calls the agent.
func (r *Remote) MakeEncryptionRoot(ctx context.Context, dataset string) error {
	return command(ctx, r, opMakeEncryptionRoot, dataset)
}

// A restricted agent reveals nothing about directories and devices of its host.
var opInUse = operation[[]string, map[string]string]{
	name:    "occupied",
	do:      withAnswer(hosts.Restorer.InUse),
	rule:    authz.Reads(authz.DenyHostFacts[[]string]),
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

// InUse calls the agent.
func (r *Remote) InUse(ctx context.Context, paths []string) (map[string]string, error) {
	return query(ctx, r, opInUse, paths, nil)
}
