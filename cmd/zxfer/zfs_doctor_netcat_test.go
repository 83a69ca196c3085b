package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
	"zxfer/pkg/probe"
)

// What doctor expects of a transfer by a host's own nc, against that transfer, there
// and back. Of the host where no zxfer runs nothing is measured, and that is said.
func TestZFSDoctorNetcat(t *testing.T) {
	lab(t)
	plainHost(t, "nc.openbsd")
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 24<<20)
	zfsCmd(t, "snapshot", src+"@x")
	shape(t, "delay", "1ms", "rate", "64mbit")
	t.Cleanup(func() { shape(t) })
	all := func() string { return zfsCmd(t, "list", "-H", "-t", "all", "-o", "name,guid") }
	before := all()
	for _, c := range []struct{ from, to, target, limit, unmeasured string }{
		{src, "beta:" + dst, dst, "network or target", probe.TargetWrite},
		{"beta:" + src, dst, dst, "source or network", probe.SourceRead},
	} {
		t.Run(c.limit, func(t *testing.T) {
			measured(t, func() error {
				var r job.DoctorReport
				o := mustZxfer(t, "doctor", "--json", "--wire", "nc", "--only", "link,"+probe.SourceRead+","+probe.TargetWrite, c.from, c.to)
				require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
				require.Equal(t, before, all(), "nothing lasts")
				skipped := map[string]string{}
				for _, m := range r.Ceilings {
					skipped[m.ID] = m.Skipped
				}
				require.Equal(t, "not measured: no zxfer runs there", skipped[c.unmeasured], "%+v", r.Ceilings)
				require.Empty(t, skipped["link"])
				require.NotNil(t, r.Expected, o.stdout)

				o = mustZxfer(t, plain("--json", c.from, c.to)...)
				zfsCmd(t, "destroy", "-r", c.target)
				var sent job.Report
				require.NoError(t, json.Unmarshal([]byte(o.stdout), &sent))
				got := sent.Results[0]
				t.Logf("expected %+v; got %d B/s, limited by %s", *r.Expected, got.Rate, got.LimitedBy)
				if r.Expected.LimitedBy != c.limit || got.LimitedBy != c.limit {
					return fmt.Errorf("limited by %s, expected %+v", got.LimitedBy, *r.Expected)
				}
				return within(float64(r.Expected.BytesPerSecond), float64(got.Rate), 0.25)
			})
		})
	}
}
