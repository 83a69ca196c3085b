package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/send"
)

// TestZFSLossyLink sends over a link that loses packets. The sender switches to bbr, unless
// the command line selects an algorithm.
func TestZFSLossyLink(t *testing.T) {
	lab(t)
	source, target := dataset(t)
	zfsCmd(t, "create", source)
	zfsCmd(t, "create", target)
	fill(t, source, "f", 48<<20)
	zfsCmd(t, "snapshot", source+"@s")
	shapeLink(t, "delay", "10ms", "rate", "400mbit", "loss", "1%")
	t.Cleanup(func() { shapeLink(t) })
	for i, tt := range []struct{ asked, want string }{
		{"auto", "bbr"}, {"reno", "reno"},
	} {
		o := mustZxfer(t, "send", "--json", "--congestion", tt.asked, source+"@s", fmt.Sprintf("beta:%s/%d", target, i))
		var r send.Report
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &r))
		require.Equal(t, tt.want, r.Results[0].Network.Congestion, "%+v", r.Results[0].Network)
	}
}
