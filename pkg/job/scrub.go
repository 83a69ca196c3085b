package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// scrubPoll is how often it is asked how far a scrub is.
const scrubPoll = 500 * time.Millisecond

// scrub scrubs the pool and waits. Of what is in the list of errors alone (zpool scrub
// -e) is no proof: 2.3.9 takes an error that only an older snapshot has off the list,
// still damaged, where the newest state has another block in that place.
func (h *healing) scrub(ctx context.Context) error {
	paused := fault.Failf("zpool scrub -s "+zfs.PoolOf(h.req.At.Name), "it is paused, and would go on only where it was")
	if d, err := h.damage(ctx); err != nil || d.Scan.Paused {
		return cmp.Or(err, paused)
	}
	if err := h.host.Do(ctx, site.In(func(s site.Healer) error { return s.Scrub(ctx, h.req.At.Name) })); err != nil {
		return err
	}
	defer h.rep.Doing("scrubbing " + zfs.PoolOf(h.req.At.Name))()
	for said := 0.0; ; {
		var d zfs.Damage
		err := h.host.Again(ctx, site.In(func(s site.Healer) (err error) { d, err = s.Damage(ctx, h.req.At.Name); return err }))
		switch {
		case err != nil:
			return err
		case d.Scan.Paused:
			return paused
		case !d.Scan.Running && !strings.HasPrefix(d.Scan.Text, "scrub repaired"):
			return fmt.Errorf("it did not come to its end: %q", d.Scan.Text)
		case !d.Scan.Running:
			return nil
		case d.Scan.Percent >= said+10:
			said = d.Scan.Percent
			h.rep.Log(fmt.Sprintf("scrubbing: %.0f%% done", said))
		}
		if !hosts.Sleep(ctx, scrubPoll) {
			return errors.New("interrupted")
		}
	}
}
