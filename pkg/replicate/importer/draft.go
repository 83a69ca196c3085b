package importer

import (
	"fmt"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// unknownDataset stands for what an import cannot know. It is in the job file
// as a comment.
const unknownDataset = "POOL/DATASET"

// targetName is the name of a job's only target.
const targetName = "backup"

// draft is a job in the making. Its Source and Targets always are of the right
// form: what is not known is a placeholder, and marked.
type draft struct {
	replicate.Job
	where   string // FILE:LINE that it comes from
	wish    string // what its name is made of
	entries []*Entry

	noSource bool // Source is to be looked at by hand first
	noTarget bool // the target is
	alone    bool // it never gets a target: it removes what arrives here
}

func (s *state) add(d *draft) *draft {
	s.drafts = append(s.drafts, d)
	return d
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
	_, err = dataset("--target", e.Name)
	return err
}

// name gives every job a name: of the wish, distinct, of the right letters.
func (s *state) name() {
	taken := map[string]bool{}
	for _, d := range s.drafts {
		d.Name = word(d.wish)
		for i := 2; taken[d.Name]; i++ {
			d.Name = fmt.Sprintf("%s-%d", word(d.wish), i)
		}
		taken[d.Name] = true
	}
}

// maxWord is how long names of jobs are at most, without their number: job files
// allow 48.
const maxWord = 44

// word makes a name of a job: letters, digits, "-" and "_".
func word(s string) string {
	w := replicate.Word(s)
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

// within tells whether a dataset is another or below it.
func within(above, dataset string) bool {
	return dataset == above || strings.HasPrefix(dataset, above+"/")
}

// pathBelow is the pattern of Exclude for one dataset below a source: the
// leading "/" makes it a path and not a name at any depth.
func pathBelow(source, dataset string) string {
	if source == dataset {
		return "."
	}
	return literal(strings.TrimPrefix(dataset, source))
}

// literal is a shell pattern that matches a string alone.
func literal(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// dataset checks the name of a dataset and returns it without blanks and
// slashes at its ends.
func dataset(where, name string) (string, error) {
	name = strings.Trim(strings.TrimSpace(name), "/")
	if e, err := endpoint.Parse(name); err != nil || !e.Local() {
		return "", fault.Usagef("", "%s: %q is not the name of a dataset", where, name)
	}
	if _, err := zfs.ParseDataset(name); err != nil {
		return "", fault.Usagef(fault.HintOf(err), "%s: %w", where, err)
	}
	return name, nil
}
