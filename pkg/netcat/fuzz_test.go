package netcat

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What another host says of itself fills in facts, each from one line.
func FuzzParseSurvey(f *testing.F) {
	f.Add("hostname a\nkernel 6.1\nuser root\nuid 0\nboot x\nconnection 192.0.2.1 1 192.0.2.2 22\ncpus 4\nzfs 2.3.9-1\ntool /sbin/zfs\nmbuffer \nhelp nc\nOpenBSD netcat (Debian patchlevel 1.226-1)\n")
	f.Add("cpus -1\nuid 00\nhelp nc\nhelp ncat\nNcat 7.93\n")
	f.Add("help \nhelp x\n\nhelp nc\nusage: nc [-46]")
	f.Fuzz(func(t *testing.T, text string) {
		facts, tools := parseSurvey(text)
		for _, s := range []string{facts.Hostname, facts.Kernel, facts.User, facts.Boot, facts.ZFS, facts.SSHPeer, facts.SSHLocal, tools.nc} {
			require.NotContains(t, s, "\n")
			require.LessOrEqual(t, len(s), len(text))
		}
		require.GreaterOrEqual(t, facts.CPUs, 0)
		if facts.Root {
			require.Contains(t, text, "uid 0")
		}
	})
}

func FuzzSplitAddress(f *testing.F) {
	for _, s := range []string{"192.0.2.1:9", "[2001:db8::1]:65535", ":1", "a:ssh", "a:99999", "a", "[::1]", "a:-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := splitAddress(s)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, port, 0)
		require.LessOrEqual(t, port, 65535)
		again, text, err := net.SplitHostPort(net.JoinHostPort(host, strconv.Itoa(port)))
		require.NoError(t, err)
		require.Equal(t, host, again)
		require.Equal(t, strconv.Itoa(port), text)
		require.True(t, strings.Contains(s, host))
	})
}
