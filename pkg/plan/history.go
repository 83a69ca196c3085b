package plan

// NeedHistories tells what decides a plan that was made with only the newest
// snapshots of the target's datasets: the datasets whose whole history does, and
// the full names of snapshots that those of others must not have.
//
// Where the newest snapshot of the target is one of the source, as it is of every
// copy that is kept, it is the base, and nothing else of the history matters but
// whether a name is taken. Else the plan has a conflict, which the history
// explains or removes. A clone may find its origin anywhere.
func NeedHistories(p Plan, s State) (datasets, names []string) {
	short := map[string]bool{}
	for _, t := range s.Target.Datasets {
		if t.NewestOnly {
			short[t.Name] = true
		}
	}
	if len(short) == 0 {
		return nil, nil
	}
	clone := map[string]bool{}
	for _, d := range s.Source.Datasets {
		clone[d.Name] = originDataset(d) != ""
	}
	doubted, all := map[string]bool{}, false
	for _, c := range p.Conflicts {
		doubted[c.Target] = true
	}
	for _, d := range p.Datasets {
		if d.RollsBack() { // newer bookmarks have to go, too
			doubted[d.Target] = true
		}
	}
	for _, d := range p.Datasets {
		first := len(d.Steps) > 0 && (d.Steps[0].Kind == Full || d.Steps[0].Kind == Clone)
		all = all || first && clone[d.Source]
	}
	for _, t := range s.Target.Datasets {
		if short[t.Name] && (all || doubted[t.Name]) {
			datasets = append(datasets, t.Name)
			delete(short, t.Name)
		}
	}
	for d, st := range p.Streams() {
		if !short[d.Target] {
			continue
		}
		for _, name := range st.Send.Through {
			names = append(names, d.Target+"@"+name)
		}
		names = append(names, d.Target+"@"+st.Send.To)
	}
	return datasets, names
}
