package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/doctor"
	"zxfer/pkg/probe"
)

// TestZFSDoctorNetcat measures a push and a pull through the nc of a remote host. doctor
// reports that it measured nothing on the host without zxfer.
func TestZFSDoctorNetcat(t *testing.T) {
	lab(t)
	installNC(t, "nc.openbsd")
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "f", 8<<20)
	zfsCmd(t, "snapshot", src+"@x")
	all := func() string { return zfsCmd(t, "list", "-H", "-t", "all", "-o", "name,guid") }
	mustZxfer(t, ncSend(src, "beta:"+dst)...)
	before := all()
	for _, c := range []struct{ name, from, to, unmeasured, part string }{
		{"push", src, "beta:" + dst + "-2", probe.TargetWrite, "target"},
		{"pull", "beta:" + dst, src + "-2", probe.SourceRead, "source"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r doctor.Report
			o := mustZxfer(t, "doctor", "--json", "--time", "100ms", "--wire", "nc", "--only", "link,"+probe.SourceRead+","+probe.TargetWrite, c.from, c.to)
			require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
			require.Equal(t, before, all(), "doctor left datasets or snapshots")
			skipped := map[string]string{}
			for _, m := range r.Ceilings {
				skipped[m.ID] = m.Skipped
			}
			require.Equal(t, "not measured: zxfer does not run there", skipped[c.unmeasured], "%+v", r.Ceilings)
			require.Empty(t, skipped["link"])
			require.NotNil(t, r.Expected, o.stdout)
			require.Equal(t, []string{c.part}, r.Expected.Unmeasured)
		})
	}
}
