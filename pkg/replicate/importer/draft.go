package importer

import (
	"fmt"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// Placeholders of what an import cannot know. They are in the job file as
// comments.
const (
	unknownDataset = "POOL/DATASET"
	unknownHost    = "HOST"
)

// draft is a job in the making. Its Source and Targets always are of the right
// form: what is not known is a placeholder, and marked.
type draft struct {
	replicate.Job
	where   string // FILE:LINE that it comes from
	wish    string // what its name is made of
	entries []*Entry

	noSource bool // Source is a placeholder
	noTarget bool // the only target is a placeholder
	alone    bool // it never gets a target: it removes what arrives here
	hooks    []hook
}

// hook is a command that another tool runs around snapshots. It becomes a
// comment: there it runs at every snapshot of a dataset, here once a run.
type hook struct {
	table string // before or after
	replicate.Hook
}

func (s *state) add(d *draft) *draft {
	s.drafts = append(s.drafts, d)
	return d
}

// fill gives a draft without a target the one that the options name. Without
// that it stays as it is, or, where it would have nothing to do, gets a
// placeholder.
func (s *state) fill(d *draft) {
	if len(d.Targets) > 0 || d.alone {
		return
	}
	if s.options.Target != "" {
		d.noTarget = false
		d.Targets = []replicate.Target{{Name: "backup", To: s.options.Target}}
		return
	}
	if d.Snapshots.Take != "" || d.Retention != nil {
		return
	}
	d.noTarget = true
	d.Targets = []replicate.Target{{Name: "backup", To: unknownHost + ":" + unknownDataset}}
	s.note(d, d.where, "target", ByHand, "the settings name no target: write one into the comments of the job, or import with --target [user@]host:DATASET")
}

// checkTarget makes the target of the options one that keeps the sources'
// paths apart.
func (s *state) checkTarget() error {
	to := s.options.Target
	if to == "" {
		return nil
	}
	e, err := endpoint.Parse(to)
	if err != nil {
		return fmt.Errorf("--target: %w", err)
	}
	if strings.Contains(e.Name, "/") && !strings.HasSuffix(e.Name, "/") {
		s.options.Target += "/"
	}
	d := draft{Job: replicate.Job{Name: "a", Source: "a", Snapshots: replicate.Snapshots{Adopt: []string{"*"}},
		Targets: []replicate.Target{{Name: "b", To: s.options.Target}}}}
	if err := d.check(); err != nil {
		return fault.Usagef(fault.HintOf(err), "--target: %w", err)
	}
	return nil
}

// check is what replicate says to the job alone.
func (d *draft) check() error {
	f := replicate.File{Jobs: []replicate.Job{d.Job}}
	return f.Validate()
}

// name gives every job a name: of the wish, distinct, of the right letters.
func (s *state) name() {
	taken := map[string]bool{}
	for _, d := range s.drafts {
		base := word(d.wish)
		name := base
		for i := 2; taken[name]; i++ {
			suffix := fmt.Sprintf("-%d", i)
			name = base[:min(len(base), maxWord-len(suffix))] + suffix
		}
		taken[name] = true
		d.Name = name
	}
}

// maxWord is how long names of jobs and targets may be.
const maxWord = 48

// word makes a name of a job or target: letters, digits, "-" and "_".
func word(s string) string {
	w := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, s)
	if len(w) > maxWord {
		w = w[len(w)-maxWord:] // the end tells datasets apart
	}
	if w = strings.TrimLeft(w, "-_"); w == "" {
		return "job"
	}
	return w
}

// jobWord is the name of a job for a dataset: its path without the pool, or
// the pool.
func jobWord(dataset string) string {
	if _, below, ok := strings.Cut(dataset, "/"); ok && below != "" {
		return below
	}
	return dataset
}

// targetWord is the name of a target: its host, or the pool.
func targetWord(to string) string {
	e, err := endpoint.Parse(to)
	if err != nil {
		return "backup"
	}
	name := e.HostName()
	if name == "" {
		name, _, _ = strings.Cut(e.Name, "/")
	}
	first, _, _ := strings.Cut(name, ".")
	if strings.Trim(first, "0123456789") == "" {
		first = name // an address
	}
	return word(first)
}

// addTarget adds a target under a name of its own.
func (d *draft) addTarget(t replicate.Target) {
	t.Name = targetWord(t.To)
	for i, base := 2, t.Name; d.hasTarget(t.Name); i++ {
		suffix := fmt.Sprintf("-%d", i)
		t.Name = base[:min(len(base), maxWord-len(suffix))] + suffix
	}
	d.Targets = append(d.Targets, t)
}

func (d *draft) hasTarget(name string) bool {
	if name == replicate.SourceSide {
		return true
	}
	for i := range d.Targets {
		if d.Targets[i].Name == name {
			return true
		}
	}
	return false
}

// within tells whether a dataset is another or below it.
func within(above, dataset string) bool {
	return dataset == above || strings.HasPrefix(dataset, above+"/")
}

// below is the pattern of Include and Exclude for one dataset below a source:
// the leading "/" makes it a path and not a name at any depth.
func below(source, dataset string) string {
	if source == dataset {
		return "."
	}
	return strings.TrimPrefix(dataset, source)
}

// literal reports a string that no shell pattern should be made of as it is.
func literal(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// dataset checks the name of a dataset and returns it without blanks and
// slashes at its ends.
func dataset(where, name string) (string, error) {
	name = strings.Trim(strings.TrimSpace(name), "/")
	if name == "" {
		return "", fault.Usagef("", "%s: the name of a dataset is empty", where)
	}
	if e, err := endpoint.Parse(name); err != nil || !e.Local() {
		return "", fault.Usagef("", "%s: %q is no name of a dataset", where, name)
	}
	if _, err := zfs.ParseDataset(name); err != nil {
		return "", fault.Usagef(fault.HintOf(err), "%s: %w", where, err)
	}
	return name, nil
}
