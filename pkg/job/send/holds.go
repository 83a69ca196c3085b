package send

import (
	"context"

	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
)

// placeBookmarks creates the bookmarks of --bookmark before the first stream: if zxfer is killed after
// the snapshots arrived and they are destroyed on the source, the bookmarks remain as incremental
// sources.
func placeBookmarks(ctx context.Context, e *ends.Ends, p *plan.Plan) error {
	bookmarks := map[string]string{}
	for _, d := range p.Datasets {
		bookmarks[d.Source+"#"+d.Final.Name] = d.Final.In(d.Source)
	}
	return hosts.Run(ctx, hosts.By(e.Source.Conn.Retry), hosts.OpBookmark, bookmarks)
}

// placeHolds places the holds of --hold.
func placeHolds(ctx context.Context, e *ends.Ends, req *Request, results []*DatasetResult) error {
	tag := req.Hold
	if tag == "" {
		return nil
	}
	var source, target []string
	for _, r := range results {
		source = append(source, r.Final.In(r.Source))
		// The snapshot may have another name on the target, because only its GUID was verified.
		target = append(target, r.Target+"@"+r.NameOnTarget)
	}
	if err := hosts.Run(ctx, hosts.By(e.Source.Conn.Retry), hosts.OpHold, hosts.Tagged{Tag: tag, Snapshots: source}); err != nil {
		return err
	}
	return ends.Changed(hosts.Run(ctx, hosts.By(e.Target.Conn.Retry), hosts.OpHold, hosts.Tagged{Tag: tag, Snapshots: target}))
}

// MoveHolds moves holds of zxfer's jobs off snapshots that are about to be destroyed. It places
// the new hold first: after an interruption both exist, and the same command continues. It is
// idempotent.
func MoveHolds(ctx context.Context, target hosts.Runner, moves []plan.MovedHold) error {
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
