package preflight

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/transport"
)

// Which way data takes is said where it is not the first, and stops a job where
// there is none.
func TestWay(t *testing.T) {
	t.Parallel()
	shut := []string{"from alpha to beta: timeout"}
	for _, tt := range []struct {
		name            string
		way             transport.PathSearch
		severity        finding.Severity
		summary, remedy string
	}{
		{"not looked for", transport.PathSearch{}, "", "", ""},
		{"the first", transport.PathSearch{Path: "from alpha to beta"}, finding.OK, "data passes from alpha to beta", ""},
		{"the other direction", transport.PathSearch{Path: "from beta to alpha", Rejected: shut, Listen: "beta", Option: "{{dial target}}"}, finding.Note, "the connection is made from beta to alpha, as none was made in the other direction", "open ports for the other host, and name them: {{port-range LOW-HIGH}}\nor spare the search: {{dial target}}"},
		{"the other direction, as an address leads nowhere", transport.PathSearch{Path: "from beta to alpha", Rejected: shut, Unroutable: true, Listen: "beta", Option: "{{dial target}}"}, finding.Note, "the connection is made from beta to alpha", "name an address that leads there: {{data-address ADDRESS}}\nor spare the search: {{dial target}}"},
		{"ssh", transport.PathSearch{Path: "through ssh", Rejected: shut, OverSSH: true, Option: "{{wire ssh}}"}, finding.Warn, "only ssh gets through", "{{wire ssh}}"},
		{"none", transport.PathSearch{Path: "from alpha to beta", Rejected: shut, NoPath: true, Untried: []string{"{{dial target}}"}}, finding.Fail, "from alpha to beta: timeout", "{{dial target}}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := sound()
			in.Way = tt.way
			var got finding.Finding
			for _, f := range Doctor(in, func(id string) bool { return id != WayID }) {
				got = f
			}
			require.Equal(t, tt.severity, got.Severity)
			require.Contains(t, got.Summary, tt.summary)
			require.Contains(t, got.Remedy, tt.remedy)
			require.False(t, got.Evidence != "" && strings.Contains(got.Summary, got.Evidence), "said twice: %s", got.Evidence)
			told := tt.severity.Compare(finding.Note) >= 0
			for _, checks := range []func(Input) []finding.Finding{Send, Device} {
				found := checks(in)
				require.Equal(t, told, len(found) == 1, "%v", found)
				require.Equal(t, tt.way.NoPath, len(Blocking(found, nil)) == 1)
				require.Empty(t, Blocking(found, []string{WayID}))
			}
		})
	}
}
