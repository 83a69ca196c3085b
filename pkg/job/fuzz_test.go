package job

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

// doctor --facts judges what somebody else captured: a report, or an error of
// usage, whatever is in it.
func FuzzJudge(f *testing.F) {
	f.Add("source", []byte("-- proc/meminfo --\nMemTotal: 1 kB\n-- etc/os-release --\nPRETTY_NAME=x\n"), []byte("{}"))
	f.Add("target", []byte("-- a --\n-- a/b --\n-- .. --\n"), []byte(`{"plan":{"datasets":[{}]},"source":{"name":"x"}}`))
	f.Add("", []byte(""), []byte(`{"Source":{"Name":"a"},"Plan":{"Datasets":[{"Steps":[{}]}]}}`))
	f.Add("source", []byte("-- zxfer/transfer.json --\n{"), []byte("null"))
	f.Fuzz(func(t *testing.T, role string, host, transfer []byte) {
		all := []Archive{{Role: role, Host: "h", Text: host}, {Role: roleTransfer, Host: "-", Text: append([]byte("-- "+transferFile+" --\n"), transfer...)}}
		for _, archives := range [][]Archive{all[:1], all} {
			r, err := Judge(archives, Doctor{})
			if err != nil {
				require.Equal(t, fault.Usage, fault.ClassOf(err))
				continue
			}
			for _, finding := range r.Findings {
				require.NotEmpty(t, finding.ID)
				require.NotEmpty(t, finding.Severity)
			}
		}
	})
}
