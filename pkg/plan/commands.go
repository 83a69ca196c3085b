package plan

import "zxfer/pkg/zfs"

// Commands returns the equivalent zfs commands.
func Commands(p *Plan) []string {
	var out []string
	for _, d := range p.Datasets {
		if d.Rename != nil {
			out = append(out, zfs.CommandLine([]string{"zfs", "rename", d.Target, d.Rename.As}))
		}
		if d.Discard != "" {
			out = append(out, zfs.CommandLine([]string{"zfs", "receive", "-A", d.Target}))
		}
		for _, m := range d.MovedHolds {
			out = append(out, zfs.CommandLine([]string{"zfs", "hold", m.Tag, m.To}), zfs.CommandLine(append([]string{"zfs", "release", m.Tag}, m.From...)))
		}
		if d.EndsDirection {
			out = append(out, zfs.CommandLine([]string{"zfs", "inherit", zfs.DirectionProperty, d.Source}))
		}
		if d.RollsBack() {
			out = append(out, rollbackCommand(d.Restore.Rollback))
		}
		for _, name := range d.DestroyedFirst {
			out = append(out, zfs.CommandLine([]string{"zfs", "destroy", name}))
		}
		for _, st := range d.Steps {
			send, err := zfs.SendArgs(st.Send)
			if err != nil {
				continue // the planner makes only valid specs
			}
			receive, err := zfs.ReceiveArgs(st.Receive)
			if err != nil {
				continue
			}
			out = append(out, zfs.CommandLine(append([]string{"zfs"}, send...))+" | "+
				zfs.CommandLine(append([]string{"zfs"}, receive...)))
		}
	}
	return out
}

// rollbackCommand returns the zfs rollback command, with -r if it destroys newer snapshots.
func rollbackCommand(r *zfs.Rollback) string {
	words := []string{"zfs", "rollback"}
	if len(r.Loses) > 0 {
		words = append(words, "-r")
	}
	return zfs.CommandLine(append(words, r.Snapshot()))
}
