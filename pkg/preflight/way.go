package preflight

import (
	"strings"

	"zxfer/pkg/finding"
)

// passes tells which way data takes where it is not the first.
func passes(in *Input) []finding.Finding {
	w := in.Way
	f := finding.Finding{Host: w.Listen, Severity: finding.Note, Evidence: strings.Join(w.Rejected, "; ")}
	remedy := []string{"open ports for the other host, and name them: {{port-range LOW-HIGH}}"}
	if w.Unroutable {
		remedy[0] = "name an address that leads there: {{data-address ADDRESS}}"
	}
	switch {
	case len(w.Rejected) == 0:
		f.Severity, f.Summary, f.Evidence = finding.OK, "data passes "+w.Path, "a connection to the data port, made and closed"
		return one(f)
	case w.NoPath:
		f.Severity, f.Summary, f.Evidence = finding.Fail, "no data passes between the two hosts: "+f.Evidence, ""
		for _, o := range w.Untried {
			remedy = append(remedy, "take another way: "+o)
		}
	case w.OverSSH:
		f.Severity, f.Summary = finding.Warn, "only ssh gets through: all data passes its one cipher stream, which takes a processor at each end and is slower"
		remedy = append(remedy, "or spare the search: "+w.Option)
	default:
		f.Summary = "the connection is made " + w.Path + ", as none was made in the other direction"
		remedy = append(remedy, "or spare the search: "+w.Option)
	}
	f.Remedy = strings.Join(remedy, "\n")
	return one(f)
}
