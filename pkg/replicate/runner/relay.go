package runner

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate"
)

// confirm refuses a job that takes snapshots of a copy. From the survey of a relay it removes what the
// job that sends its source has not confirmed.
func (w *jobRun) confirm(ctx context.Context, v *replicate.Survey) error {
	if err := v.CheckTaking(); err != nil {
		return err
	}
	v.Promoted = w.promoted // the listing may lack an unchanged root
	names := v.ToConfirm()
	tags := map[string][]string{}
	if len(names) > 0 {
		defer w.session.Activity("reading the holds of %s on the source", english.Plural(len(names), "snapshot", ""))()
		found, err := w.session.Source.Host.Holds(ctx, names)
		if err != nil {
			return fmt.Errorf("holds: %w", replicate.InKeys(err))
		}
		tags = found
	}
	notes, err := v.Confirm(tags)
	for _, n := range notes {
		w.note("%s", n)
	}
	return err
}
