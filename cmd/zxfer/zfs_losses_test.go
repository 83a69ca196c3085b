package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
)

// Over a line that loses packets the sending end goes on with bbr, and over one that
// does not with what its kernel is set to.
func TestZFSLossyLine(t *testing.T) {
	lab(t)
	source, target := dataset(t)
	zfsCmd(t, "create", source)
	zfsCmd(t, "create", target)
	fill(t, source, "f", 48<<20)
	zfsCmd(t, "snapshot", source+"@s")
	for i, tt := range []struct{ loss, asked, want string }{
		{"1%", "auto", "bbr"}, {"1%", "reno", "reno"}, {"0%", "auto", "cubic"},
	} {
		shape(t, "delay", "10ms", "rate", "400mbit", "loss", tt.loss)
		t.Cleanup(func() { shape(t) })
		o := mustZxfer(t, "send", "--json", "--congestion", tt.asked, source+"@s", fmt.Sprintf("beta:%s/%d", target, i))
		var r job.Report
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
		require.Equal(t, tt.want, r.Results[0].Network.Congestion, "%+v", r.Results[0].Network)
	}
}
