package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/preflight"
	"zxfer/pkg/testenv"
)

// gigabit returns a link of 1 Gbit/s with a round trip of 20 ms and a queue of 40 ms.
func gigabit() lineShape {
	return lineShape{Rate: 1e9, Delay: 10 * time.Millisecond, Queue: 5 << 20}
}

// TestMTURemedy changes the MTU of the far host, and applies the command that doctor prints.
// It expects doctor to report the MTU as ok afterwards.
func TestMTURemedy(t *testing.T) {
	t.Parallel()
	f := newFarHosts(t, gigabit())
	mtu := func() finding.Finding {
		var r doctor.Report
		f.zxfer(t, &r, "doctor", "--only", "link,mtu", "--time", "100ms", "beta")
		return worstOf(t, r, "mtu")
	}
	f.on(t, f.far, "ip", "link", "set", "dev", f.far.Device, "mtu", "1400")
	found := mtu()
	require.Equal(t, finding.Note, found.Severity)
	_, command, ok := strings.Cut(found.Remedy, "on beta: ")
	require.True(t, ok, found.Remedy)
	f.on(t, f.far, "sh", "-c", command)
	require.Equal(t, finding.OK, mtu().Severity)
}

// TestBufferRemedies applies the printed sysctl commands for limiting socket buffers in a
// network namespace, and expects the new values.
func TestBufferRemedies(t *testing.T) {
	t.Parallel()
	testenv.NeedsRoot(t, "to make network namespaces")
	namespace := fmt.Sprintf("zxsysctl-%d", os.Getpid())
	require.NoError(t, ipCommand("netns", "add", namespace))
	t.Cleanup(func() { require.NoError(t, ipCommand("netns", "del", namespace)) })
	for limit, c := range map[string]struct{ host, key, want string }{
		"network (receiver window)": {"beta", "net.ipv4.tcp_rmem", "4096\t131072\t8388608"},
		"network (send buffer)":     {"alpha", "net.ipv4.tcp_wmem", "4096\t16384\t8388608"},
	} {
		t.Run(limit, func(t *testing.T) {
			link := preflight.Link{From: "alpha", To: "beta", BytesPerSecond: 10_000_000, Streams: 1, Seconds: 1, Limit: limit,
				RTT: 20 * time.Millisecond, WriteMax: 4 << 20, ReadMax: 6 << 20}
			found := preflight.Doctor(preflight.Input{Links: []preflight.MeasuredLink{{Link: link}}}, func(id string) bool { return id != "link" })
			require.Len(t, found, 1)
			_, command, ok := strings.Cut(found[0].Remedy, "on "+c.host+": ")
			require.True(t, ok, found[0].Remedy)
			run(t, "ip", "netns", "exec", namespace, "sh", "-c", command)
			require.Equal(t, c.want, strings.TrimSpace(run(t, "ip", "netns", "exec", namespace, "sysctl", "-n", c.key)))
		})
	}
}
