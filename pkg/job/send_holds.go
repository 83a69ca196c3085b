package job

import (
	"context"
	"fmt"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

func placeHolds(ctx context.Context, e *ends, req *Send, results []*DatasetResult) error {
	var source, target []string
	bookmarks := map[string]string{}
	for _, r := range results {
		source = append(source, r.Final.In(r.Source))
		// The snapshot may have another name on the target, because only its GUID was verified.
		target = append(target, r.Target+"@"+r.NameOnTarget)
		bookmarks[r.Source+"#"+r.Final.Name] = r.Final.In(r.Source)
	}
	var done bool
	placed := func(err error) error {
		if done {
			err = changed(err)
		}
		done = true
		return err
	}
	if tag := req.Hold; tag != "" {
		if err := placed(hosts.Run(ctx, hosts.By(e.source.Retry), hosts.OpHold, hosts.Tagged{Tag: tag, Snapshots: source})); err != nil {
			return err
		}
		if err := placed(hosts.Run(ctx, hosts.By(e.target.Retry), hosts.OpHold, hosts.Tagged{Tag: tag, Snapshots: target})); err != nil {
			return err
		}
	}
	if !req.Bookmark {
		return nil
	}
	return placed(hosts.Run(ctx, hosts.By(e.source.Retry), hosts.OpBookmark, bookmarks))
}

// moveHolds moves holds of zxfer's jobs off snapshots that are about to be destroyed. It places
// the new hold first: after an interruption both exist, and the same command continues. It is
// idempotent.
func moveHolds(ctx context.Context, target hosts.Runner, moves []plan.MovedHold) error {
	for _, m := range moves {
		if err := hosts.Run(ctx, target, hosts.OpHold, hosts.Tagged{Tag: m.Tag, Snapshots: []string{m.To}}); err != nil {
			return err
		}
		if err := hosts.Run(ctx, target, hosts.OpRelease, hosts.Tagged{Tag: m.Tag, Snapshots: m.From}); err != nil {
			return err
		}
	}
	return nil
}

// maxHoldQueries limits the number of snapshots whose holds are queried.
const maxHoldQueries = 2000

// holds returns the hold tags of the source's oldest snapshots, nil if they cannot be read.
func holds(ctx context.Context, source *end, l *zfs.Listing, log func(string)) map[string][]string {
	names := l.SnapshotNames()
	tags, err := source.Holds(ctx, names[:min(len(names), maxHoldQueries)])
	if err != nil {
		log(fmt.Sprintf("%s: holds: %v", source.Label(), err))
		return nil
	}
	return tags
}
