package runner

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
)

// confirm removes from the survey of a relay what the job that sends its source has not confirmed.
func confirm(ctx context.Context, s *session.Session, v *decision.Survey, note func(format string, args ...any)) error {
	names := v.ToConfirm()
	tags := map[string][]string{}
	if len(names) > 0 {
		defer s.Activity("reading the holds of %s on the source", english.Plural(len(names), "snapshot", ""))()
		found, err := s.Source.Host.Holds(ctx, names)
		if err != nil {
			return fmt.Errorf("holds: %w", replicate.InKeys(err))
		}
		tags = found
	}
	notes, err := v.Confirm(tags)
	for _, n := range notes {
		note("%s", n)
	}
	return err
}
