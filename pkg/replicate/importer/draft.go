package importer

import (
	"slices"
	"strings"

	toml "github.com/pelletier/go-toml/v2"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/zfs"
)

// placeholder is a placeholder for a name that the import cannot know. The job file has it in a
// comment.
const placeholder = "POOL/DATASET"

// targetName is the name of a job's only target.
const targetName = "backup"

// draft is a job under construction. Its Source and Targets are always valid: placeholders stand
// for unknown ones and are flagged.
type draft struct {
	replicate.Job
	where         string // FILE:LINE of the settings
	preferredName string // the preferred name
	entries       []*Entry

	noSource  bool // Source is a placeholder to complete by hand
	noTarget  bool // the target is a placeholder to complete by hand
	pruneOnly bool // never gets a target, because it prunes what other hosts send here
}

// maxJobName is the maximum length of a job name without its number. Job files allow 48.
const maxJobName = 44

// jobName turns s into a job name: letters, digits, "-" and "_".
func jobName(s string) string {
	w := jobfile.SanitizeName(s)
	if len(w) > maxJobName {
		w = w[len(w)-maxJobName:] // the end distinguishes datasets best
	}
	if w = strings.TrimLeft(w, "-_"); w == "" {
		return "job"
	}
	return w
}

// nameFor returns a job name for a dataset: its path without the pool, or the pool.
func nameFor(dataset string) string {
	if _, below, ok := strings.Cut(dataset, "/"); ok && below != "" {
		return below
	}
	return dataset
}

// isWithin reports whether dataset is above or one of its descendants.
func isWithin(above, dataset string) bool {
	return dataset == above || strings.HasPrefix(dataset, above+"/")
}

// pathBelow returns the pattern for Exclude that matches one dataset below a source. Its leading
// "/" makes it a path instead of a name at any depth.
func pathBelow(source, dataset string) string {
	if source == dataset {
		return "."
	}
	return literal(strings.TrimPrefix(dataset, source))
}

// literal returns a shell pattern that matches only s.
func literal(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

// dataset validates the name of a dataset and returns it without surrounding blanks and slashes.
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

// write returns the job file.
func write(drafts []*draft) string {
	var b strings.Builder
	b.WriteString("# Jobs of zxfer replicate, imported from the settings of another tool. Review\n" +
		"# them, then run zxfer replicate check. zxfer refuses a job whose source or target\n" +
		"# is commented out.\n")
	for _, d := range drafts {
		b.WriteString("\n# " + comment(d.where) + "\n")
		for _, e := range d.entries {
			b.WriteString("# convert by hand: " + comment(e.What+": "+e.Do) + "\n")
		}
		b.WriteString(d.text())
		b.WriteString(d.retentionComment())
		if len(d.Targets) == 0 {
			b.WriteString("\n# No target: the job sends nothing.\n")
		}
	}
	return b.String()
}

// comment puts a text on one line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// text returns the job's TOML table. It comments out a placeholder source or target, so that the
// job is refused and not taken for one without a target.
func (d *draft) text() string {
	out := fields(struct {
		Jobs []replicate.Job `toml:"job"`
	}{[]replicate.Job{d.Job}})
	if d.noSource {
		out = strings.Replace(out, "\nsource = ", "\n#source = ", 1)
	}
	if d.noTarget {
		out = strings.Replace(out, "\nto = ", "\n#to = ", 1)
	}
	return out
}

// fields encodes a TOML table.
func fields(v any) string {
	text, err := toml.Marshal(v)
	if err != nil {
		panic("cannot write the job file: " + err.Error()) // cannot happen: every test encodes these types
	}
	return string(text)
}

// retentionComment returns a retention of the target as comments of the job file, or "" if each target
// has one.
func (d *draft) retentionComment() string {
	i := slices.IndexFunc(d.Targets, func(t replicate.Target) bool { return t.Retention == nil && !t.MirrorsSnapshots() })
	if i < 0 {
		return ""
	}
	return "\n# Without this table, zxfer keeps all snapshots on the target.\n#[job.target.retention]\n#hourly = 48\n#daily = 90\n#monthly = 12\n"
}
