package plan

import "maps"

// Remaining returns the request that plans what remains of a dataset after an interruption. d is its part of the plan of
// the whole tree, which knows more: what an ancestor causes, and what the user has seen.
func (r Request) Remaining(d *Dataset) Request {
	set := maps.Clone(r.Set)
	if r.Restore && d.Source != r.Source { // it inherits the mountpoint of the tree's root
		delete(set, "mountpoint")
	}
	r.Source, r.Snapshot, r.Target, r.Recursive = d.Source, d.Final.Name, d.Target, false
	r.NoResume = false // any state comes from this job
	if d.Rename == nil {
		r.Rotate = "" // the user has not seen this rename
	}
	if len(d.Steps) > 0 {
		first := &d.Steps[0]
		if first.Kind == Full || first.Kind == Clone { // it may still have to start from the beginning
			r.RenamedBefore = map[string]bool{d.Target: true}
		}
		if first.Receive.Set["encryption"] == "off" { // an ancestor is encrypted
			if set == nil {
				set = map[string]string{}
			}
			set["encryption"] = "off"
		}
	}
	r.Set = set
	return r
}
