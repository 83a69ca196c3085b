package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"zxfer/pkg/zfs"
)

// mayDamage permits listing the damage of datasets that may be healed. Every run of a job asks, so
// the refusal is not logged.
func mayDamage(_ context.Context, g *Guard, dataset *string) error {
	if err := g.checkHealable(*dataset); err != nil {
		return fmt.Errorf("%w: %w", errHostFacts, err)
	}
	return nil
}

// mayScrub permits scrubbing the pool of a dataset that may be healed.
func mayScrub(_ context.Context, g *Guard, dataset *string) error { return g.checkHealable(*dataset) }

// maySync permits a sync of the pool of a readable dataset. It changes no data, and every snapshot
// and receive does the same.
func maySync(_ context.Context, g *Guard, dataset *string) error {
	if !g.policy.readable(*dataset) {
		return errOutside(*dataset)
	}
	return nil
}

// mayRevert permits removing a snapshot used for healing. The host ensures that nobody writes to
// the copy and that nothing else is lost.
func mayRevert(_ context.Context, g *Guard, snapshot *string) error {
	dataset, _, err := zfs.ParseSnapshot(*snapshot)
	if err != nil {
		return err
	}
	return g.checkHealable(dataset)
}

func (g *Guard) checkHealable(dataset string) error {
	if !within(dataset, g.policy.Heal) {
		return &outsideError{"healing %q is not permitted", clipName(dataset), []string{"heal"}}
	}
	return nil
}

// checkCorrective checks a corrective receive. It only rewrites damaged blocks, and the kernel
// verifies their checksums.
func (g *Guard) checkCorrective(r *zfs.ReceiveSpec) error {
	if r.Rollback || r.Origin != "" || len(r.Set) > 0 {
		return errors.New("a corrective receive must not change anything else")
	}
	return g.checkHealable(r.Target)
}

// isHealSnapshot reports whether a snapshot was made by zxfer to heal a dataset that may be
// healed. It is destroyed afterwards.
func (g *Guard) isHealSnapshot(snapshot string) bool {
	dataset, name, err := zfs.ParseSnapshot(snapshot)
	return err == nil && strings.HasPrefix(name, zfs.HealPrefix) && within(dataset, g.policy.Heal)
}
