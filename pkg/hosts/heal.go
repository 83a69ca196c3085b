package hosts

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"zxfer/pkg/zfs"
)

// Damage reads what is damaged.
func (l *Local) Damage(ctx context.Context, dataset string) (zfs.Damage, error) {
	d, err := l.direct.Damage(ctx, zfs.PoolOf(dataset))
	return d.Within(dataset), err
}

// Scrub begins a scrub.
func (l *Local) Scrub(ctx context.Context, dataset string) error {
	return l.direct.Scrub(ctx, zfs.PoolOf(dataset))
}

// Sync has a pool write out its open transaction group.
func (l *Local) Sync(ctx context.Context, dataset string) error {
	return l.direct.Sync(ctx, zfs.PoolOf(dataset))
}

// CheckDamage refuses what is no list of errors of a dataset.
func CheckDamage(dataset string, d *zfs.Damage) error {
	if len(d.Things) > zfs.MaxDamage || d.More < 0 || d.Elsewhere < 0 || d.OfPool < 0 || len(d.Reason) > 4096 || d.Scan.Errors < 0 || !(d.Scan.Percent >= 0 && d.Scan.Percent <= 100) || len(d.Scan.Text) > 4096 ||
		strings.ContainsFunc(d.Scan.Text+d.Reason, unicode.IsControl) {
		return fmt.Errorf("what it tells of the damage of %s is out of bounds", dataset)
	}
	for _, t := range d.Things {
		if len(t.Shown)+len(t.Path)+len(t.Object) > 3*4096 {
			return fmt.Errorf("what it tells of the damage of %s is too long", dataset)
		}
		if strings.ContainsFunc(t.Shown+t.Path+t.Object, unicode.IsControl) {
			return fmt.Errorf("what it tells of the damage of %s holds control characters", dataset)
		}
		if t.Snapshot != "" {
			if err := zfs.CheckComponent(t.Snapshot); err != nil {
				return err
			}
		}
		if t.Dataset != "" && t.Dataset != dataset && !strings.HasPrefix(t.Dataset, dataset+"/") {
			return fmt.Errorf("%q is damaged, and %s was asked for", cut(t.Dataset), dataset)
		}
		if t.Dataset == "" {
			continue
		}
		if _, err := zfs.ParseDataset(t.Dataset); err != nil {
			return err
		}
	}
	return nil
}
