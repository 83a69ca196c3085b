package importer

import (
	"strings"

	toml "github.com/pelletier/go-toml/v2"

	"zxfer/pkg/replicate"
)

// write returns the job file.
func write(drafts []*draft) string {
	var b strings.Builder
	b.WriteString("# Jobs of zxfer replicate, imported from the settings of another tool. Look\n" +
		"# through them, then: zxfer replicate check. A job whose source or target is\n" +
		"# commented out is refused until it is written.\n")
	for _, d := range drafts {
		b.WriteString("\n# " + comment(d.where) + "\n")
		for _, e := range d.entries {
			b.WriteString("# left by hand: " + comment(e.What+": "+e.Do) + "\n")
		}
		b.WriteString(d.text())
		if len(d.Targets) == 0 {
			b.WriteString("\n# No target: nothing is sent.\n")
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
		panic("the types of a job file cannot be written: " + err.Error()) // cannot happen: every test encodes these types
	}
	return string(text)
}
