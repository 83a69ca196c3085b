package preflight

import (
	"strings"

	"zxfer/pkg/finding"
)

// Way is how it went to find a way between two hosts that passes. The zero Way was
// not looked for.
type Way struct {
	Path    string   // that is taken: "from alpha to beta", "through ssh"
	Shut    []string // those that were tried before, and why they do not pass
	Closed  bool     // none passes
	Shell   bool     // it is ssh's own connection
	Untried []string // options of what was not tried, as another way was asked for
}

// passes tells which way data takes where it is not the first.
func passes(in *Input) []finding.Finding {
	w := in.Way
	f := finding.Finding{Host: in.Target.Name, Severity: finding.Note, Evidence: strings.Join(w.Shut, "\n")}
	var remedy []string
	switch {
	case len(w.Shut) == 0:
		f.Severity, f.Summary, f.Evidence = finding.OK, "data passes "+w.Path, "a connection to the data port, made and closed"
		return one(f)
	case w.Closed:
		f.Severity, f.Summary = finding.Fail, "no data passes between the two hosts: "+strings.Join(w.Shut, "; ")
		for _, o := range w.Untried {
			remedy = append(remedy, "take another way: "+o)
		}
	case w.Shell:
		f.Severity, f.Summary = finding.Warn, "only ssh gets through: all data passes its one cipher stream, which takes a processor at each end and is slower; zxfer doctor measures it"
		remedy = append(remedy, "to do so at once, without this warning: {{wire ssh}}")
	default:
		f.Summary = "the connection is made " + w.Path + ", as the other direction is closed; the rate is the same"
		remedy = append(remedy, "to do so at once: {{dial}}")
	}
	f.Remedy = strings.Join(append([]string{"open ports, and name them: {{port-range LOW-HIGH}}"}, remedy...), "\n")
	return one(f)
}
