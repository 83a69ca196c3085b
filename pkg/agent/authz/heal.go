package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"zxfer/pkg/zfs"
)

// Damage tells what is damaged of what may be healed. Every run of a job asks.
func Damage(_ context.Context, g *Guard, dataset *string) error {
	if err := g.healable(*dataset); err != nil {
		return fmt.Errorf("%w: %w", errHostFacts, err)
	}
	return nil
}

// Scrub scrubs the pool of what may be healed.
func Scrub(_ context.Context, g *Guard, dataset *string) error { return g.healable(*dataset) }

// Sync allows a sync of the pool of what is granted. It changes no data, and every snapshot and
// every receive does the same.
func Sync(_ context.Context, g *Guard, dataset *string) error {
	if !g.policy.granted(*dataset) {
		return outside(*dataset)
	}
	return nil
}

// Revert removes what was healed through. That only a copy is reverted which nobody
// writes to, and that no more is lost, the site sees to.
func Revert(_ context.Context, g *Guard, snapshot *string) error {
	dataset, _, err := zfs.ParseSnapshot(*snapshot)
	if err != nil {
		return err
	}
	return g.healable(dataset)
}

func (g *Guard) healable(dataset string) error {
	if !below(dataset, g.policy.Heal) {
		return fmt.Errorf("nothing of %q may be healed", cut(dataset))
	}
	return nil
}

// correct judges a corrective receive, which writes damaged blocks anew and
// nothing else: the kernel holds each against its checksum.
func (g *Guard) correct(r *zfs.ReceiveSpec) error {
	if r.Rollback || r.Origin != "" || len(r.Set) > 0 {
		return errors.New("a corrective receive changes nothing else")
	}
	return g.healable(r.Target)
}

// healsThrough tells a snapshot of zxfer's own, in what may be healed, that is made
// to heal through it and destroyed again.
func (g *Guard) healsThrough(snapshot string) bool {
	dataset, name, err := zfs.ParseSnapshot(snapshot)
	return err == nil && strings.HasPrefix(name, zfs.HealPrefix) && below(dataset, g.policy.Heal)
}
