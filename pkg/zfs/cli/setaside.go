package cli

import (
	"context"
	"strconv"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// RenameDiverged renames copies, of which each must be the very dataset that was looked at.
// One that is set aside already is no error.
func (c *CLI) RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error {
	for _, a := range all {
		if err := a.Check(); err != nil {
			return err
		}
		there, err := c.Properties(ctx, []string{a.Dataset, a.As}, []string{"guid"})
		if err != nil {
			return err
		}
		guid := strconv.FormatUint(a.GUID, 10)
		switch {
		case there[a.As]["guid"].Value == guid:
			continue
		case there[a.Dataset]["guid"].Value != guid:
			return fault.Refusef("the same command looks anew", "%s is not what it was when this was planned: it is not set aside", a.Dataset)
		}
		if _, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpRename, Subject: a.Dataset}, []string{"rename", a.Dataset, a.As}); err != nil {
			return err
		}
	}
	return nil
}
