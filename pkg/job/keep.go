package job

import (
	"context"

	"zxfer/pkg/hosts"
)

// placeHolds places the holds and bookmarks that were asked for.
func placeHolds(ctx context.Context, e *ends, req *Send, results []*DatasetResult) error {
	var source, target []string
	bookmarks := map[string]string{}
	for _, r := range results {
		source = append(source, r.Arrive.In(r.Source))
		// The target may have renamed it: the GUID was verified, not the name.
		target = append(target, r.Target+"@"+r.There)
		bookmarks[r.Source+"#"+r.Arrive.Name] = r.Arrive.In(r.Source)
	}
	var done bool
	place := func(at *end, f func(hosts.Host) error) error {
		err := at.Retry(ctx, f)
		if done {
			err = changed(err)
		}
		done = true
		return err
	}
	if tag := req.Hold; tag != "" {
		if err := place(&e.source, func(st hosts.Host) error { return st.Hold(ctx, tag, source) }); err != nil {
			return err
		}
		if err := place(&e.target, func(st hosts.Host) error { return st.Hold(ctx, tag, target) }); err != nil {
			return err
		}
	}
	if !req.Bookmark {
		return nil
	}
	return place(&e.source, func(st hosts.Host) error { return st.Bookmark(ctx, bookmarks) })
}
