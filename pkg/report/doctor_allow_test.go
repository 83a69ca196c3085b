package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/doctor"
)

// TestDoctorAllow expects that the output says so if no permission is needed. It was once empty.
func TestDoctorAllow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allow []string
		want  string
	}{
		{nil, "# nothing to send: no permission is needed; for a job: zxfer replicate check\n"},
		{[]string{"# as root on a", "zfs allow -u b send tank"}, "# as root on a\nzfs allow -u b send tank\n"},
	} {
		var b strings.Builder
		require.NoError(t, DoctorAllow(&b, &doctor.Report{Allow: c.allow}))
		require.Equal(t, c.want, b.String())
	}
}
