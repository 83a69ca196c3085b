package importer

import (
	"strings"

	toml "github.com/pelletier/go-toml/v2"

	"zxfer/pkg/replicate"
)

// write writes the job file.
func write(drafts []*draft) string {
	var b strings.Builder
	b.WriteString("# Jobs of zxfer replicate, imported from the settings of another tool. Look\n" +
		"# through them, then: zxfer replicate check. A job whose source or target is\n" +
		"# commented out is refused until it is written.\n")
	for _, d := range drafts {
		b.WriteString("\n# " + comment(d.where) + "\n")
		for _, e := range d.entries {
			if e.Class == ByHand {
				b.WriteString("# by hand: " + comment(e.What+": "+e.Why) + "\n")
			}
		}
		d.write(&b)
	}
	return b.String()
}

// comment keeps a text on one line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

func (d *draft) write(b *strings.Builder) {
	b.WriteString("[[job]]\n")
	line(b, "name", d.Name)
	source := fields(map[string]any{"source": d.Source})
	if d.noSource {
		source = commented(source)
	}
	b.WriteString(source)
	if d.Recursive {
		line(b, "recursive", true)
	}
	if len(d.Include) > 0 {
		line(b, "include", d.Include)
	}
	if len(d.Exclude) > 0 {
		line(b, "exclude", d.Exclude)
	}
	if d.Schedule != "" {
		line(b, "schedule", d.Schedule)
	}
	if d.Grace > 0 {
		line(b, "grace", d.Grace)
	}
	if d.Parallel > 0 {
		line(b, "parallel", d.Parallel)
	}
	if d.Holds != "" {
		line(b, "holds", d.Holds)
	}
	if d.Bookmarks != "" {
		line(b, "bookmarks", d.Bookmarks)
	}
	table(b, "[job.snapshots]", d.Snapshots)
	if d.Retention != nil {
		table(b, "[job.retention]", d.Retention)
	}
	transfer(b, "[job.transfer]", &d.Transfer)
	for _, h := range d.hooks {
		var block strings.Builder
		table(&block, "[[job."+h.table+"]]", h.Hook)
		b.WriteString(commented(block.String()))
	}
	if len(d.Targets) == 0 {
		b.WriteString("\n# No target: nothing is sent.\n")
	}
	for i := range d.Targets {
		(*target)(&d.Targets[i]).write(b, d.noTarget)
	}
}

// target gives a Target its table.
type target replicate.Target

// write writes the table; where "to" is a placeholder it is a comment, so that
// the job is refused and not taken for one without a target.
func (t *target) write(b *strings.Builder, unknown bool) {
	b.WriteString("\n[[job.target]]\n")
	line(b, "name", t.Name)
	to := fields(map[string]any{"to": t.To})
	if unknown {
		to = commented(to)
	}
	b.WriteString(to)
	if t.Retention != nil {
		table(b, "[job.target.retention]", t.Retention)
	}
	if p := t.Properties; p.Carry || len(p.Set)+len(p.Exclude) > 0 {
		table(b, "[job.target.properties]", p)
	}
	if t.Transfer != nil {
		transfer(b, "[job.target.transfer]", t.Transfer)
	}
}

// transfer writes nothing where all is as it is without.
func transfer(b *strings.Builder, head string, t *replicate.Transfer) {
	if text := fields(t); text != "" {
		b.WriteString("\n" + head + "\n" + text)
	}
}

func table(b *strings.Builder, head string, v any) {
	b.WriteString("\n" + head + "\n" + fields(v))
}

func line(b *strings.Builder, key string, v any) {
	b.WriteString(fields(map[string]any{key: v}))
}

// fields writes the keys of a struct or map, tables in them inline.
func fields(v any) string {
	var b strings.Builder
	e := toml.NewEncoder(&b)
	e.SetTablesInline(true)
	if err := e.Encode(v); err != nil {
		panic("the types of a job file cannot be written: " + err.Error()) // they are written by every test
	}
	return b.String()
}

// commented makes comments of all lines but the empty ones.
func commented(block string) string {
	var b strings.Builder
	for l := range strings.Lines(block) {
		if strings.TrimSpace(l) != "" {
			b.WriteString("#")
		}
		b.WriteString(l)
	}
	return b.String()
}
