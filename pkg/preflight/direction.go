package preflight

import (
	"zxfer/pkg/finding"
)

// direction finds pairs whose roles changed without a record that block sizes were compared, as in earlier
// versions. Their increments may have replaced files by zeros, with equal GUIDs.
func direction(in *Input) []finding.Finding {
	names := in.Plan.Exposed()
	if len(names) == 0 {
		return nil
	}
	return findings(finding.Finding{Host: in.Target.Name, Severity: finding.Warn,
		Summary: "the roles changed, and there is no record that block sizes were compared: " + finding.JoinFirst(names, 3),
		Remedy:  "to find out whether files lost data: zxfer replicate drill JOB"})
}
